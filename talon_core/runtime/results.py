"""One piece of memory for what recorded passes return, in the place of one for each of them."""

from collections import Counter
from typing import Any, TypeVar

from torch import Tensor

T = TypeVar("T")

FEWEST_ROWS = 64
"""Rows that a piece of memory has room for from the beginning, so that growing trees move nothing."""


class SharedResults:
    """Memory for what recorded passes return.

    What a recording returns has to stay where it is for as long as the recording is kept. With a vocabulary of 150,000
    tokens and bfloat16 that is 20 megabytes for 64 nodes, for each size and kind of pass. Here all recordings write to
    the same rows, those of the largest.

    Attributes:
        moves: how often a piece had to be replaced by a larger one. Recordings of before go on writing to the old one.
    """

    def __init__(self) -> None:
        self._pieces: dict[object, Tensor] = {}
        self.moves = 0

    def copied(self, made: T) -> T:
        """Copy what a pass has made to its place, over what others have made.

        Args:
            made: a tensor, or a tuple of what this takes; anything else is handed on as it is.

        Returns:
            The same, of tensors that share memory with those of other calls.
        """
        found: T = self._copied(made, Counter())
        return found

    def _copied(self, made: Any, before: Counter[object]) -> Any:
        """As `copied`; `before` counts tensors of each kind that were met before in what a pass has made."""
        if isinstance(made, tuple):
            return tuple(self._copied(one, before) for one in made)
        if not isinstance(made, Tensor) or not made.ndim:
            return made
        kind = made.dtype, made.device, made.shape[1:]
        place = kind, before[kind]
        before[kind] += 1
        piece = self._pieces.get(place)
        if piece is None or len(piece) < len(made):
            self.moves += piece is not None
            rows = max(FEWEST_ROWS, 1 << (len(made) - 1).bit_length())
            piece = self._pieces[place] = made.new_empty((rows, *made.shape[1:]))
        return piece[: len(made)].copy_(made)

    def state(self) -> tuple[dict[object, Tensor], int]:
        """The pieces and `moves` as they are now, for `go_back`."""
        return self._pieces.copy(), self.moves

    def go_back(self, state: tuple[dict[object, Tensor], int]) -> None:
        """Have the pieces again that there were at some time; recordings of before still write to them."""
        self._pieces, self.moves = state

    def clear(self) -> None:
        """Give up all pieces; recordings that write to them keep theirs."""
        self._pieces.clear()
