"""Sums over parts of whole laws, by which draws and tests are made without reading the laws in full.

Two kinds are kept beside the laws p of the target and q of the drafter at each row:

- what the probabilities of each block of `BLOCK` tokens add up to: a draw finds its block by these, and its token by
  that block alone;
- of those tokens for which p is at least e times q what p and q add up to, for each e of `LEVELS`: between these lies
  what a rejection leaves of p, the sum of (p - b q)+, for any b.

Policies draw from q at a temperature, so both are kept for some of these.
"""

from functools import cached_property
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.choices import BLOCK
from talon_core.trace.sums import row_sums
from talon_core.tree import FloatArray

STEPS = 3
"""Bits of a fraction by which levels differ: eight of them lie between a number and its double."""

OCTAVES = 16
"""Levels go from 1 to two to the power of this."""

_SHIFT = 23 - STEPS
_ONE = 127 << STEPS

LEVELS: FloatArray = (
    (np.arange(_ONE, _ONE + (OCTAVES << STEPS), dtype=np.int32) << _SHIFT).view(np.float32).astype(np.float64)
)
"""By how much p is larger than q, rising from 1."""

DRAWN_AT = (1.0, 0.8)
"""At so many times the temperature of the text policies draw mostly: these sums are kept."""


def drawn_at(temperature: float) -> tuple[float, ...]:
    """The temperatures of the drafter's laws whose sums are kept, of a text with a temperature of its own."""
    return tuple(each * (temperature or 1.0) for each in DRAWN_AT)


TARGET = 0
"""Which part of a row's sums has the target's by block."""


@attrs.frozen
class Layout:
    """Where the sums of a row stand.

    Attributes:
        vocab_size: the target's.
        temperatures: at which the drafter's laws are drawn from.
    """

    vocab_size: int
    temperatures: tuple[float, ...]

    @cached_property
    def blocks(self) -> int:
        """Blocks of a law."""
        return -(-self.vocab_size // BLOCK)

    @property
    def parts(self) -> tuple[int, ...]:
        """How many numbers each part of a row's sums has.

        The target's by block; then for each temperature the drafter's, with the peak, and both by level.
        """
        return (self.blocks, *(self.blocks + 1, 2 * len(LEVELS)) * len(self.temperatures))

    @property
    def size(self) -> int:
        """Bytes that the sums of a row take, with the checksums of its blocks."""
        return 8 * sum(self.parts) + 4 * 2 * self.blocks

    def drafter(self, temperature: int) -> int:
        """Which part has the drafter's by block at one of the temperatures, in units of `weights`.

        Behind the blocks stands the largest number of the law.
        """
        return 1 + 2 * temperature

    def levels(self, temperature: int) -> int:
        """Which part has those of p by level, and behind them those of q."""
        return 2 + 2 * temperature

    def of(
        self, target: NDArray[np.float32], drafter: NDArray[np.float32], totals: tuple[float, float]
    ) -> list[FloatArray]:
        """The sums of a row, part by part.

        Args:
            target: the law p as it is kept, shape `(vocab,)`.
            drafter: the law q, likewise.
            totals: what they add up to.
        """
        p = np.divide(target, totals[0], dtype=np.float64)
        found, peak = [_by_block(p)], float(drafter.max())
        for temperature in self.temperatures:
            q = weights(drafter, totals[1], peak, temperature)
            sums = _by_block(q)
            found += [np.append(sums, peak), np.concatenate(_by_level(p, q / sums.sum()))]
        return found

    def checks(self, law: NDArray[np.float32]) -> NDArray[np.int32]:
        """A checksum of each block of a law as it is kept, shape `(blocks,)`."""
        return row_sums(_in_blocks(law))


def weights(law: NDArray[Any], total: Any, peak: Any, temperature: float) -> FloatArray:
    """In proportion to what a token has of a law at a temperature; at 1 its probability.

    Args:
        law: parts of laws as they are kept.
        total: what the laws add up to.
        peak: the largest number of the laws.
        temperature: more than 0.
    """
    if temperature == 1.0:
        found: FloatArray = np.divide(law, total, dtype=np.float64)
        return found
    with np.errstate(under="ignore"):
        sharp: FloatArray = np.divide(law, peak, dtype=np.float64) ** (1.0 / temperature)
    return sharp


def _by_block(law: FloatArray) -> FloatArray:
    """What each block of a law adds up to, shape `(blocks,)`."""
    found: FloatArray = np.add.reduceat(law, np.arange(0, len(law), BLOCK))
    return found


def _in_blocks(law: NDArray[Any]) -> NDArray[Any]:
    """A law as rows of blocks, zeros at its end."""
    missing = -len(law) % BLOCK
    return (np.concatenate([law, np.zeros(missing, law.dtype)]) if missing else law).reshape(-1, BLOCK)


def _by_level(p: FloatArray, q: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What p and q add up to where p is at least `LEVELS` times q, shape `(levels,)` each."""
    with np.errstate(all="ignore"):
        times = (p / q).astype(np.float32)
    level = (times.view(np.int32) >> _SHIFT) - _ONE  # of what is not a number, where both are 0, the last one
    some = (level >= 0) & (p > 0)
    level = np.minimum(level[some], len(LEVELS) - 1)
    return _sums_above(level, p[some]), _sums_above(level, q[some])


def _sums_above(level: NDArray[Any], law: FloatArray) -> FloatArray:
    found: FloatArray = np.bincount(level, weights=law, minlength=len(LEVELS))[::-1].cumsum()[::-1]
    return found


def left_of(p: FloatArray, q: FloatArray, least: FloatArray, most: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Bounds of what (p - b q)+ adds up to over all tokens, for b between two numbers.

    Args:
        p: sums by level, shape `(rows, levels)`.
        q: likewise.
        least: of b, at least 1, shape `(rows,)`.
        most: likewise.

    Returns:
        The least and the most that it can be, shape `(rows,)` each.
    """
    lower, upper = _bounds(p, q, most)[0], _bounds(p, q, least)[1]
    return np.maximum(lower - ROUNDING, 0.0), upper + ROUNDING


ROUNDING = 1e-7
"""By how much sums by level may be wrong: a token whose p is e times its q to six digits may count with others."""


def _bounds(p: FloatArray, q: FloatArray, b: FloatArray) -> tuple[FloatArray, FloatArray]:
    """What (p - b q)+ adds up to at least and at most.

    Of the tokens above the level behind b all count. Those of its own level have p between its e and the next one's
    times q: what they add up to is at least p - b q of all of them, and at most p (1 - b / e) of the next e.
    """
    place = LEVELS.searchsorted(b, side="right") - 1
    rows, last = np.arange(len(b)), place == len(LEVELS) - 1
    above = np.minimum(place + 1, len(LEVELS) - 1)
    all_p, all_q = p[rows, above], q[rows, above]
    all_p, all_q = np.where(last, 0.0, all_p), np.where(last, 0.0, all_q)
    own_p, own_q = p[rows, place] - all_p, q[rows, place] - all_q
    with np.errstate(invalid="ignore"):  # infinity times nothing
        counting = np.where(all_q > 0, all_p - b * all_q, all_p)
        least = np.maximum(np.where(own_q > 0, own_p - b * own_q, own_p), 0.0)
    least_loss = np.where(last, 0.0, np.minimum(b / LEVELS[above], 1.0))
    most = own_p * (1.0 - least_loss)
    most = np.where(b == LEVELS[place], least, np.maximum(most, least))
    return counting + least, counting + most
