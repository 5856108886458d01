"""The window of Jacobi iteration: guesses at the tokens to come, and what the target made of them in earlier passes."""

from collections.abc import Sequence


class Window:
    """Levels of tokens: level 0 is a row of guesses, and each further one is what the target said to those before it.

    Column `i` follows the first `i` tokens of level 0: its tokens, one of each further level, were each the target's
    most likely one after all before it, with the level 0 of an earlier pass. So its path from the root is

        level 0, tokens 0 to i - 1;  then level 1, 2, .., token i

    and the target's answer at its end is the next level's token. While there is only level 0, column `i` is its token
    `i`, after those before it.

    Args:
        columns: when all levels are there (W).
        ngram: tokens of an n-gram (N); there are `ngram - 1` levels in the end.
        guesses: level 0 to begin with, `first_guesses(columns, ngram)` tokens: each pass that adds a level takes one.

    Attributes:
        levels: their tokens.
    """

    def __init__(self, columns: int, ngram: int, guesses: Sequence[int]) -> None:
        assert len(guesses) == first_guesses(columns, ngram)
        self.levels: list[list[int]] = [[*guesses]]
        self._full = ngram - 1

    def paths(self) -> list[list[int]]:
        """The tokens of each column, from the one after the root on."""
        first, *others = self.levels
        if not others:
            return [first[: place + 1] for place in range(len(first))]
        return [[*first[:place], *(level[place] for level in others)] for place in range(len(others[0]))]

    def advance(self, root: int, answers: Sequence[int]) -> list[tuple[int, list[int]]]:
        """A pass is over: there is one level more, or the oldest goes; the window moves on by one token.

        Args:
            root: the token before the window.
            answers: the target's most likely token after each column.

        Returns:
            The n-grams that were made, each a first token and those after it; none as long as levels are missing.
        """
        first, *others = self.levels
        if len(self.levels) < self._full:
            new = [*answers] if not others else [*answers][1:]
            self.levels = [*(level[1:] for level in self.levels), new]
            return []
        self.levels = [others[0][1:], *others[1:], [*answers]]
        return [
            (before, [*column, answer])
            for before, column, answer in zip([root, *first], zip(*others, strict=True), answers, strict=True)
        ]


def first_guesses(columns: int, ngram: int) -> int:
    """Tokens that a window begins with; this is also how deep below the root it reaches."""
    return columns + ngram - 3


def most_nodes(columns: int, ngram: int) -> int:
    """Nodes of a window in the pass in which it has most; levels besides the first are a token longer than that one."""
    length = first_guesses(columns, ngram)
    return max((length - others) + others * (length - others + 1) for others in range(ngram - 1))
