"""A drafter that offers what is allowed and hard to deal with."""

import math
from collections.abc import Callable, Mapping
from functools import cache

import attrs
import numpy as np
from attrs.validators import deep_iterable, ge, in_
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.table import Memoryless, TableDrafter, path_number
from talon_core.tree import FloatArray, IntArray, TokenTree, read_only

HOPELESS = -1e300
"""A log-probability that can still be added up, and whose probability is 0 in double precision."""


def _tied(vocab_size: int) -> FloatArray:
    return np.full(vocab_size, -math.log(vocab_size))


def _certain(vocab_size: int) -> FloatArray:
    return np.where(np.arange(vocab_size) == 0, 0.0, HOPELESS)


def _alone(vocab_size: int) -> FloatArray:
    return np.where(np.arange(vocab_size) == 0, 0.0, -np.inf)


def _steep(vocab_size: int) -> FloatArray:
    return -736.0 * np.arange(vocab_size, dtype=np.float64)  # the second is the last that is not 0 in double precision


def _some(vocab_size: int) -> FloatArray:
    known = (vocab_size + 1) // 2
    return np.where(np.arange(vocab_size) < known, -math.log(known), -np.inf)


def _nothing(vocab_size: int) -> FloatArray:
    return np.full(vocab_size, -np.inf)


ROWS: Mapping[str, Callable[[int], FloatArray]] = {
    "tied": _tied,
    "certain": _certain,
    "alone": _alone,
    "steep": _steep,
    "some": _some,
    "nothing": _nothing,
}
"""What a hostile drafter thinks of the next token, its log-probabilities by falling rank, shape `(vocab,)`.

- "tied": all tokens are as likely as each other.
- "certain": one has log-probability 0, the others -1e300.
- "alone": one has log-probability 0, and the rest of the row is padding.
- "steep": the second is hardly possible, the third is less so, and so on.
- "some": half of the tokens, as likely as each other, and the rest of the row is padding.
- "nothing": a row of padding, without a law.
"""


@attrs.frozen
class HostileDrafter(Memoryless):
    """Offers rows of `ROWS`, always the same after the same path. All it returns is read only.

    Attributes:
        vocab_size: token ids are 0 to `vocab_size - 1`; at least 2.
        kinds: keys of `ROWS`; which of them comes after a path, and which token is the first there, hangs on the path.
        most: most columns it returns; None for as many as are asked for.
    """

    vocab_size: int = attrs.field(validator=ge(2))
    kinds: tuple[str, ...] = attrs.field(validator=deep_iterable(in_(ROWS)))
    most: int | None = None

    def offer(self, tree: TokenTree, frontier: IntArray, width: int) -> Candidates:
        width = min(width, self.most or width)
        numbers = [path_number(tree.tokens[tree.path(node)].tolist()) for node in frontier.tolist()]
        ranked = [ROWS[self.kinds[number % len(self.kinds)]](self.vocab_size) for number in numbers]
        logp = np.array([scores[:width] for scores in ranked]).reshape(len(frontier), width)
        first = np.array(numbers, dtype=np.int64).reshape(-1, 1)
        tokens = np.where(np.isfinite(logp), (first + np.arange(width)) % self.vocab_size, -1)

        def law(row: int) -> FloatArray:
            probs = np.exp(ranked[row])
            if not probs.any():
                raise ValueError(f"frontier row {row} is all padding and has no law; draw where something is offered")
            return np.roll(probs / probs.sum(), numbers[row] % self.vocab_size)

        path_logp = tree.path_logp[frontier][:, None] + logp
        return Candidates(frontier, read_only(tokens), read_only(logp), read_only(path_logp), law)


AnyDrafter = TableDrafter | HostileDrafter
"""What policies are tried with."""


def hostile_drafters(vocab_size: int | None = None) -> st.SearchStrategy[HostileDrafter]:
    """Drafters of any mixture of `ROWS`, some of them with one column only.

    Args:
        vocab_size: tokens are 0 to `vocab_size - 1`; by default 2, 3 or 100 of them.
    """
    sizes = st.sampled_from([2, 3, 100]) if vocab_size is None else st.just(vocab_size)
    rows = st.sampled_from([3, 1, 2, 4]).flatmap(_some_rows)
    return st.builds(HostileDrafter, sizes, rows, st.sampled_from([None, None, 1]))


@cache
def _some_rows(count: int) -> st.SearchStrategy[tuple[str, ...]]:
    return st.tuples(*[st.sampled_from([*ROWS, "tied", "nothing"])] * count)
