"""Candidates out of rows of scores: the best tokens on the host, whole laws on demand."""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_core.candidates import Candidates
from talon_core.drafter import Frontier
from talon_core.errors import is_whole
from talon_core.runtime.executor import Executor
from talon_core.runtime.scores import best_numbers
from talon_core.runtime.transfers import fetched, sent
from talon_core.tree import FloatArray, IntArray


@attrs.frozen(eq=False)
class Vocabulary:
    """Which of the target's tokens a drafter scores.

    Attributes:
        size: the target's tokens.
        ids: the target's id of each of the drafter's tokens, shape `(draft vocab,)`, int64; None where the drafter
            scores the target's own, from 0 on.

    Raises:
        ValueError: if `ids` are no different tokens of the target.
    """

    size: int
    ids: IntArray | None = None

    def __attrs_post_init__(self) -> None:
        if self.ids is not None:
            check_tokens("the ids of a drafter's tokens", self.ids, self.size)

    def named(self, tokens: IntArray) -> IntArray:
        """The target's ids of the drafter's tokens, of any shape."""
        return tokens if self.ids is None else self.ids[tokens]

    def spread(self, prob: FloatArray) -> FloatArray:
        """A law over the drafter's tokens, shape `(draft vocab,)`, as one over the target's, shape `(vocab,)`."""
        law: FloatArray = np.zeros(self.size)
        law[slice(len(prob)) if self.ids is None else self.ids] = prob
        return law


def check_tokens(what: str, ids: Any, size: int) -> None:
    """Refuse what are no different token ids.

    Args:
        what: they are, for the message.
        ids: an array, or a tensor on the host.
        size: there are ids 0 to `size - 1`.

    Raises:
        ValueError: if they are not in one row, no whole numbers, others than there are, or one stands there twice.
    """
    numbers = np.asarray(ids)
    if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
        raise ValueError(f"{what} have shape {numbers.shape} and type {numbers.dtype}; they are whole numbers in a row")
    wrong = numbers[(numbers < 0) | (numbers >= size)]
    if len(wrong):
        raise ValueError(f"{what} hold {wrong[0]}; the target's vocabulary has ids 0 to {size - 1}")
    if len(np.unique(numbers)) < len(numbers):
        raise ValueError(f"{what} hold a token twice; each stands there once")


@attrs.frozen(eq=False)
class Best:
    """The best tokens of some rows of scores, on the host, and the rows' laws on demand.

    Attributes:
        vocabulary: what the columns of the scores stand for.
        scores: the drafter's; a row's softmax is its law. Shape `(rows, draft vocab)`, float32.
        tokens: the target's ids, best first, shape `(rows, width)`, int64.
        logp: their natural log-probabilities, same shape, float64.
    """

    vocabulary: Vocabulary
    scores: Tensor
    tokens: IntArray
    logp: FloatArray

    @classmethod
    def of(cls, scores: Tensor, width: int, vocabulary: Vocabulary, executor: Executor | None = None) -> "Best":
        """The best `width` tokens of each row, or all if there are fewer, as an executor finds them; one copy to the
        host."""
        scores = scores.float()
        found = best_numbers(scores, width) if executor is None else executor.best_numbers(scores, width)
        return cls.read((found, scores), vocabulary)

    @classmethod
    def read(cls, found: tuple[Tensor, Tensor], vocabulary: Vocabulary) -> "Best":
        """What `best_numbers` found, and the scores it was found in; one copy to the host."""
        numbers, scores = found
        both = fetched(numbers).numpy()
        width = both.shape[1] // 2
        tokens = vocabulary.named(both[:, :width].astype(np.int64))
        return cls(vocabulary, scores, tokens, both[:, width:].astype(np.float64))

    @classmethod
    def lasting(cls, executor: Executor, found: tuple[Tensor, Tensor], rows: int, vocabulary: Vocabulary) -> "Best":
        """As `read`, of the first rows of what a pass or a call has found: laws may be asked for after the next one."""
        numbers, scores = found
        return cls.read((numbers[:rows], executor.lasting(scores[:rows])), vocabulary)

    @classmethod
    def joined(cls, parts: Sequence["Best"], order: IntArray) -> "Best":
        """All rows of several, in this order; as many tokens a row as all of them have."""
        width = min(part.width for part in parts)
        tokens, logp = (
            np.concatenate([getattr(part, name)[:, :width] for part in parts])[order] for name in ("tokens", "logp")
        )
        scores = torch.cat([part.scores for part in parts])[torch.from_numpy(order)]
        return cls(parts[0].vocabulary, scores, tokens, logp)

    @property
    def width(self) -> int:
        """Tokens a row."""
        return int(self.tokens.shape[1])

    def law(self, row: int) -> FloatArray:
        """A row's whole law over the target's vocabulary, shape `(vocab,)`, float64."""
        return self.vocabulary.spread(torch.softmax(self.scores[row].double(), dim=-1).cpu().numpy())

    def candidates(self, rows: Sequence[int] | IntArray, frontier: Frontier) -> Candidates:
        """Candidates for a frontier whose nodes these rows speak about, in its order."""
        logp = self.logp[rows, : frontier.width]  # (frontier, width)
        return Candidates(
            frontier=frontier.nodes,
            tokens=self.tokens[rows, : frontier.width],
            logp=logp,
            path_logp=frontier.tree.path_logp[frontier.nodes][:, None] + logp,
            law=lambda row: self.law(int(rows[row])),
        )

    def shared_out(self, frontiers: Sequence[Frontier], first: Mapping[int, int]) -> list[Candidates]:
        """The candidates of each frontier.

        Args:
            frontiers: as in `Drafter.propose`.
            first: by slot the first of its rows, which stand in the order of its nodes; slots that nothing is known
                about are not among them.
        """
        return [
            self.candidates(np.arange(len(one.nodes)) + first[one.slot], one)
            if one.slot in first
            else Candidates.unknown(one.nodes)
            for one in frontiers
        ]


def few_widths(width: int) -> int:
    """At least `width`, and one of few: each is recorded by itself.

    Raises:
        ValueError: if `width` is below 1.
    """
    if width < 1:
        raise ValueError(f"the width is {width}; at least 1 candidate must be wanted")
    return 1 << (width - 1).bit_length()


def last_rows(starts: IntArray, counts: Mapping[int, int]) -> tuple[IntArray, dict[int, int]]:
    """The last rows of some slots, out of those of all slots one after another.

    Args:
        starts: where the rows of each slot start, shape `(slots + 1,)`.
        counts: how many are wanted, by slot.

    Returns:
        Their places, ascending, int64, and for each slot the first of its own among them.

    Raises:
        ValueError: if there is no such slot, or it has fewer rows.
    """
    places: list[IntArray] = []
    first: dict[int, int] = {}
    for slot in sorted(counts):
        if not 0 <= slot < len(starts) - 1:
            raise ValueError(f"rows of slot {slot} are wanted; the pass has slots 0 to {len(starts) - 2}")
        there = int(starts[slot + 1] - starts[slot])
        if not is_whole(counts[slot]) or not 0 <= counts[slot] <= there:
            raise ValueError(f"the last {counts[slot]} rows of slot {slot} are wanted; it has {there} in this pass")
        first[slot] = sum(map(len, places))
        places.append(np.arange(starts[slot + 1] - counts[slot], starts[slot + 1]))
    return np.concatenate([_NO_PLACES, *places]), first


_NO_PLACES: IntArray = np.empty(0, dtype=np.int64)


def rows_at(rows: Tensor, places: IntArray) -> Tensor:
    """Rows at ascending places, at least one; a view where they stand together, as those of one sequence do."""
    first, last = int(places[0]), int(places[-1])
    if last - first + 1 == len(places):
        return rows[first : last + 1]
    return rows.index_select(0, sent(places, rows.device))


def best_by(
    executor: Executor,
    kind: Hashable,
    scored: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    width: int,
    vocabulary: Vocabulary,
    heads: int = 1,
) -> Best:
    """The best tokens by a function that works row by row and needs no cache.

    Args:
        executor: calls it.
        kind: tells different functions apart.
        scored: from the inputs to scores of shape `(rows * heads, draft vocab)`.
        inputs: each of shape `(rows, ..)`.
        width: how many tokens, best first.
        vocabulary: what the columns of the scores stand for.
        heads: rows of scores for each row of the inputs.

    Raises:
        ValueError: if there are no inputs, or the width is below 1.
    """
    if not inputs:
        raise ValueError("inputs are empty; give what the function works on, as a tuple of tensors")
    width = few_widths(width)

    def found(*own: Tensor) -> tuple[Tensor, Tensor]:
        scores = scored(*own).float()
        return executor.best_numbers(scores, width), scores

    made = executor.call((kind, width), found, *inputs)
    return Best.lasting(executor, made, heads * len(inputs[0]), vocabulary)
