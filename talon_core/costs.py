"""What this machine takes for a pass: told to policies, so that they can weigh a node against its price."""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from functools import lru_cache
from math import exp, inf, log, log2

import attrs
import numpy as np

from talon_core.overheads import Overheads
from talon_core.rounds import Span
from talon_core.tree_arrays import FloatArray, IntArray

OCTAVES = 12
"""Octaves of sizes with a rise of their own; the last one's goes on."""

ROOM = np.append(np.ones(OCTAVES - 1), np.inf)
"""How much of each octave a pass may have, shape `(octaves,)`."""

RISE = 0.4
"""Of an octave of which nothing is known: between no cost and twice as much for twice as many."""

READING = 0.9
"""The same where many tokens are read at once: nearly twice as much for twice as many."""

TOLERANCE = 0.4**2 * 0.7 ** np.abs(np.subtract.outer(np.arange(OCTAVES), np.arange(OCTAVES)))
"""Covariance of the rises while nothing is known, shape `(octaves, octaves)`."""

UNKNOWN = 1e4
"""Variance of a level of which nothing is known."""

DOUBT = np.pad(TOLERANCE, (1, 0))
DOUBT[0, 0] = UNKNOWN
"""Covariance of the level and the rises while nothing is known, shape `(1 + octaves, 1 + octaves)`."""

NOISE, QUIET = 0.2, 0.01
"""Standard deviation of a pass's logarithm: before it is known, and at least."""

WANDERS = 0.3
"""How far the level wanders from one pass to the next, in standard deviations of the noise."""

FAR = 1.345
"""Standard deviations beyond which a pass counts less: Huber's."""

CLIPPED = 0.71
"""The mean square of a standard normal number that is cut at `FAR`."""

FIRST, LATEST = 4, 64
"""Passes that tell of the noise: what is taken for it counts like so many at first, and all known ones at most."""

OLD = 2048
"""After so many passes there is as much doubt about a rise again as before any."""

LEAST = 1e-9
"""Seconds of a pass, at least."""

LOG_2 = log(2.0)

ENDS = np.tri(1 + OCTAVES, dtype=np.float64) * [1.0, *[LOG_2] * OCTAVES]
"""What of the level and the rises is in a pass at the beginning of each octave, and at the last one's end."""

WAITING = 256
"""Passes that wait until somebody asks, at most; of more the latest count, see `ALIKE` as well."""

ALIKE = 16
"""Of passes of one size that follow each other and wait, the latest that are looked at. More tell of the noise alone,
and looking at one takes about a five-hundredth of a pass of a small model."""

HOPE = 0.5
"""By how many standard deviations less than expected a pass is said to take: what is hardly known is worth trying."""

BEYOND = 2
"""Up to so many times the largest size that was measured, a size is told of by the line: what is hardly known is tried
in steps, so that none takes far longer than what was tried before."""


class Costs(ABC):
    """Seconds of passes on one machine, with one target and one drafter."""

    @abstractmethod
    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        """The target's pass over trees; None if nothing is known yet.

        Args:
            nodes: of all trees together, their roots included, at least 1.
            context: committed tokens of the longest text.
            batch: sequences that share the pass.
        """

    def verify_each(self, nodes: IntArray, context: int, batch: int = 1) -> FloatArray | None:
        """`verify` for trees of several sizes, one pass each; None if it is None for one of them.

        Args:
            nodes: shape `(sizes,)`.
            context: as there.
            batch: likewise.

        Returns:
            Seconds, shape `(sizes,)`, float64.
        """
        told: list[float] = []
        for size in nodes.tolist():
            seconds = self.verify(size, context, batch)
            if seconds is None:
                return None
            told.append(seconds)
        return np.array(told, dtype=np.float64)

    def verify_after(self, nodes: IntArray, contexts: Sequence[int], batch: int = 1) -> Sequence[FloatArray | None]:
        """`verify_each` after texts of several lengths.

        Args:
            nodes: shape `(sizes,)`.
            contexts: committed tokens of the longest text.
            batch: as there.

        Returns:
            Of each length what `verify_each` says.
        """
        return [self.verify_each(nodes, context, batch) for context in contexts]

    @abstractmethod
    def draft(self, rows: int, width: int) -> float | None:
        """A layer of the drafter; None if nothing is known yet.

        Args:
            rows: frontier nodes of all trees together, at least 1.
            width: candidates asked for after each.
        """

    def accept(self, nodes: int) -> float | None:
        """The walk of the rule over one tree, where the target does not walk by itself; None if nothing is known.

        Args:
            nodes: of the tree, at least 1.
        """
        return None

    def commit(self, tokens: int) -> float | None:
        """Keeping what a round has emitted, in the target's cache and in the books; None if nothing is known.

        Args:
            tokens: that one sequence has emitted, at least 1.
        """
        return None

    def tell(self, tokens: int) -> float | None:
        """What the drafter takes to learn of what a round has emitted; None if nothing is known.

        That is its `commit`, and what the first layer of the next round takes more than another layer of one row.

        Args:
            tokens: that one sequence has emitted, at least 1.
        """
        return None

    def besides(self, drafted: bool) -> float | None:
        """Seconds of a round besides the target's pass and the layers; None if nothing is known.

        What each layer takes besides the drafter is not among it, see `beside_layer`.

        By default `accept`, `commit` and `tell` for one token, as far as they are known; without `tell` where the
        drafter is not asked, as it hears of the tokens with its next layer.

        Args:
            drafted: whether the drafter is asked in it.
        """
        parts = self.accept(1), self.commit(1), self.tell(1) if drafted else None
        known = [seconds for seconds in parts if seconds is not None]
        return sum(known) if known else None

    def rest(self, rounds: int) -> float | None:
        """Seconds of rounds without a draft besides their passes, where it is known that they follow each other.

        None if nothing is known. Their passes may be run ahead of them (`Target.verify`), so that one round takes less
        than `besides` says.

        Args:
            rounds: how many they are, at least 1; all of them together take this.
        """
        return None

    def beside_layer(self) -> float | None:
        """Seconds of a layer besides the drafter: what the policy takes for it; None if nothing is known.

        By default None, as given costs know of no policy.
        """
        return None

    def chain(self, layers: int) -> float | None:
        """Seconds of a round besides the target's pass where its passes were run ahead; None if nothing is known.

        Passes of rounds whose trees are known to be chains may be run ahead of them (`TreePolicy.chains`), the
        drafter's, too. These are a part of it, as `draft` is of layers that are asked for in their round.

        Args:
            layers: of the round, at least 1.
        """
        return None

    def snapshot(self) -> "Costs":
        """What is known now, for another thread to ask while passes are still being measured.

        By default these costs themselves.
        """
        return self

    def of_source(self, source: int | None) -> "Costs":
        """These costs as they are where one of the drafter's sources is asked alone (`Drafter.sources`).

        By default these costs themselves.

        Args:
            source: its index; None for all of them together.
        """
        return self

    @property
    def fixed(self) -> bool:
        """Whether the same question always has the same answer; by default False, as nobody has said so."""
        return False

    def know(self, drafter: str) -> bool:
        """Whether `draft`, `tell` and `catch_up` are of a drafter of this registered name.

        By default False, as nobody has said so.
        """
        return False

    def read(self, tokens: int) -> float | None:
        """Reading a prompt, by the target and by a drafter that reads it at once; None if nothing is known.

        Args:
            tokens: of the prompt, at least 1.
        """
        return None

    def catch_up(self, tokens: int) -> float | None:
        """What the drafter takes to read what it was told of while nothing was drafted; None if nothing is known.

        A drafter with a network of its own reads a prompt when it is first asked to draft for the text, and what comes
        while drafting pauses when it is asked again. Others never take anything, so nothing is ever known of them.

        Args:
            tokens: that it has not read, at least 1.
        """
        return None


@lru_cache
def _mean(rise: float) -> FloatArray:
    """The level and the rises while nothing is known, shape `(1 + octaves,)`."""
    return np.array([0.0, *[rise] * OCTAVES])


@lru_cache(1024)
def _row(size: int) -> FloatArray:
    """What of the level and the rises is in a pass of a size, shape `(1 + octaves,)`."""
    return np.concatenate([[1.0], LOG_2 * np.clip(log2(size) - np.arange(OCTAVES), 0.0, ROOM)])


class Line:
    """Seconds by size on a rising line, found from passes that a busy machine has held up, some more and some less.

    The logarithm of a pass's seconds is taken to be a level, a rise in each octave of sizes up to its own, and noise.
    The level wanders from pass to pass, as a machine is slower for a while: passes of two sizes are compared as far as
    they came close together. A rise is 0 where more nodes cost nothing, and 1 where twice as many cost twice as much.
    Before anything is measured, rises are `RISE`, with some tolerance, and neighbours alike; so what is known of one
    octave tells of the next, and a size that was never measured is neither free nor out of reach. Beyond `beyond` times
    the largest that was measured, twice as many cost twice as much. All of it is kept by a Kalman filter, in which a
    pass counts the less, the further it is from what was expected (Huber).

    Passes are noted, and looked at when somebody asks: most policies never do. Of many of one size in a row the latest
    are; so those before and behind count as closer than they came.

    Args:
        rise: of an octave of which nothing is known.
        beyond: as `BEYOND`; infinity where nobody chooses among sizes.
    """

    def __init__(self, rise: float = RISE, beyond: float = BEYOND) -> None:
        self._mean = _mean(rise)  # of the level and the rises; never changed in place
        self._covariance = DOUBT.copy()
        self._noise = NOISE**2
        self._error = 0.0  # of the latest pass
        self._passes = 0
        self._beyond, self._largest = beyond, 1
        self._waiting: deque[tuple[int, float]] = deque(maxlen=WAITING)
        self._alike = 0  # of those that wait, the latest of one size
        self._logs: list[float] = []  # at the beginning of each octave and at the last one's end, once somebody asks

    @property
    def known(self) -> bool:
        """Whether anything was measured."""
        return self._passes > 0 or bool(self._waiting)

    def beside(self) -> "Line":
        """A line for passes of another kind: their level is not known, and their rises may be a little different."""
        self._learn()
        other = Line(beyond=self._beyond)
        other._mean, other._noise, other._largest = self._mean, self._noise, self._largest
        other._covariance[1:, 1:] = 0.5 * (self._covariance[1:, 1:] + TOLERANCE)
        return other

    def copied(self) -> "Line":
        """A line that knows as much, and learns by itself."""
        other = Line()
        other._mean, other._covariance = self._mean, self._covariance.copy()
        other._noise, other._error, other._passes = self._noise, self._error, self._passes
        other._beyond, other._largest = self._beyond, self._largest
        other._waiting, other._alike, other._logs = self._waiting.copy(), self._alike, self._logs
        return other

    def add(self, size: int, seconds: float) -> None:
        waiting = self._waiting
        self._alike = self._alike + 1 if waiting and waiting[-1][0] == size else 1
        if self._alike > ALIKE:
            del waiting[-ALIKE]
        waiting.append((size, seconds))

    def _learn(self) -> None:
        """Look at the passes that wait."""
        while self._waiting:
            self._look(*self._waiting.popleft())

    def _look(self, size: int, seconds: float) -> None:
        row = _row(size)
        covariance = self._covariance
        covariance[1:, 1:] += (TOLERANCE - covariance[1:, 1:]) / OLD
        covariance[0, 0] += WANDERS**2 * max(self._noise, self._error**2)
        spread = covariance @ row
        error = log(max(seconds, LEAST)) - float(row @ self._mean)
        expected = float(row @ spread) + self._noise
        surprise = error * error / expected
        self._error = error if self._passes else 0.0
        noise = self._noise * max(1.0, surprise / FAR**2) if self._passes else self._noise
        gain = spread / (expected - self._noise + noise)
        self._mean = self._mean + gain * error
        self._covariance = covariance - np.outer(gain, spread)
        if self._passes:
            share = 1.0 / min(self._passes + FIRST, LATEST)
            self._noise = max(self._noise * (1.0 + share * (min(surprise, FAR**2) / CLIPPED - 1.0)), QUIET**2)
        self._passes += 1
        self._largest = max(self._largest, size)
        self._logs = []

    def at(self, size: int, known: int = 1) -> float:
        """Seconds of a size.

        Args:
            size: at least 1.
            known: up to this size it is as if it had been measured.
        """
        self._learn()
        if not self._logs:
            expected = ENDS @ np.append(self._mean[0], np.maximum(self._mean[1:], 0.0))
            doubt = np.sqrt(np.maximum(((ENDS @ self._covariance) * ENDS).sum(axis=1), 0.0))
            self._logs = np.maximum.accumulate(expected - HOPE * doubt).tolist()
        last = self._beyond * max(self._largest, known)
        if size > last:
            return max(self._on_line(size), self._on_line(last) * size / last)
        return self._on_line(size)

    def _on_line(self, size: float) -> float:
        octaves = log2(size)
        octave = min(int(octaves), OCTAVES - 1)
        start, end = self._logs[octave : octave + 2]
        return exp(start + (octaves - octave) * (end - start))


class UnknownCosts(Costs):
    """Nothing is known, and nothing will be."""

    def __init__(self) -> None:
        self._asked = False

    @property
    def asked(self) -> bool:
        """Whether somebody wanted to know what a pass takes, since this was made."""
        return self._asked

    @property
    def fixed(self) -> bool:
        return True

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        self._asked = True
        return None

    def draft(self, rows: int, width: int) -> float | None:
        self._asked = True
        return None


class MeasuredCosts(Costs):
    """Costs that are measured while one decodes: the engine tells it of every pass.

    Contexts and batches by powers of two have a line each, on which more never costs less; so have the widths of
    drafts. A line begins with what is known of the nearest one.
    """

    def __init__(self) -> None:
        self._verified: dict[tuple[int, ...], Line] = {}  # by (batch, context)
        self._drafted: dict[tuple[int, ...], Line] = {}  # by (width,)
        self._by_source: dict[int, dict[tuple[int, ...], Line]] = {}  # likewise, of layers that one source drafted
        self._caught_up = _reading()
        self._readers: set[int] = set()  # sources that have read before they drafted alone
        self._overheads = Overheads()

    def verified(self, nodes: int, context: int, batch: int, seconds: float) -> None:
        """A pass of the target took so long; arguments as for `verify`."""
        _own(self._verified, (_power(batch), _power(context))).add(nodes, seconds)

    def drafted(self, rows: int, width: int, seconds: float) -> None:
        """A layer of the drafter took so long; arguments as for `draft`."""
        _own(self._drafted, (_power(width),)).add(rows, seconds)

    def drafted_alone(self, source: int, rows: int, width: int, seconds: float) -> None:
        """A layer of one source that was asked alone took so long; arguments as for `draft_alone`."""
        _own(self._by_source.setdefault(source, {}), (_power(width),)).add(rows, seconds)

    def caught_up(self, tokens: int, seconds: float, source: int | None = None) -> None:
        """The drafter took so long to read so many tokens before it could draft; `source` is who was asked alone."""
        self._caught_up.add(tokens, seconds)
        if source is not None:
            self._readers.add(source)

    def went(self, spans: Sequence[Span], ahead: bool = False, seconds: float | None = None) -> None:
        """A round of a sequence that was alone took this.

        Args:
            spans: of the round.
            ahead: whether its passes, the drafter's, too, were run ahead of it.
            seconds: that all of it took; None if the spans are all that is known.
        """
        self._overheads.add(spans, ahead, seconds)

    def forget(self) -> None:
        """Nothing is known any more."""
        self._verified.clear()
        self._drafted.clear()
        self._by_source.clear()
        self._caught_up = _reading()
        self._readers.clear()
        self._overheads.clear()

    def snapshot(self) -> "MeasuredCosts":
        other = MeasuredCosts()
        other._verified = {kind: line.copied() for kind, line in self._verified.items()}
        other._drafted = {kind: line.copied() for kind, line in self._drafted.items()}
        other._by_source = {
            source: {kind: line.copied() for kind, line in lines.items()} for source, lines in self._by_source.items()
        }
        other._caught_up, other._readers = self._caught_up.copied(), {*self._readers}
        other._overheads = self._overheads.copied()
        return other

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        line = _nearest(self._verified, (_power(batch), _power(context)))
        return None if line is None else line.at(nodes, batch)  # a batch has as many roots

    def draft(self, rows: int, width: int) -> float | None:
        return _at(self._drafted, rows, width)

    def draft_alone(self, source: int, rows: int, width: int) -> float | None:
        """As `draft`, of one source that is asked alone, by its index in `Drafter.sources`."""
        return _at(self._by_source.get(source, {}), rows, width)

    def of_source(self, source: int | None) -> Costs:
        return self if source is None else OfSource(self, source)

    def catch_up(self, tokens: int) -> float | None:
        return self._caught_up.at(tokens) if self._caught_up.known else None

    def catch_up_alone(self, source: int, tokens: int) -> float | None:
        """As `catch_up`, of one source that is asked alone; None, too, of one that was never seen to read."""
        return self.catch_up(tokens) if source in self._readers else None

    def besides(self, drafted: bool) -> float | None:
        return self._overheads.of(drafted)

    def beside_layer(self) -> float | None:
        return self._overheads.of_layer

    def chain(self, layers: int) -> float | None:
        return self._overheads.of_chain(layers)


@attrs.frozen(eq=False)
class OfSource(Costs):
    """Measured costs where one source drafts.

    Attributes:
        measured: of all of them.
        source: its index.
    """

    measured: MeasuredCosts
    source: int

    def verify(self, nodes: int, context: int, batch: int = 1) -> float | None:
        return self.measured.verify(nodes, context, batch)

    def draft(self, rows: int, width: int) -> float | None:
        return self.measured.draft_alone(self.source, rows, width)

    def besides(self, drafted: bool) -> float | None:
        return self.measured.besides(drafted)

    def beside_layer(self) -> float | None:
        return self.measured.beside_layer()

    def catch_up(self, tokens: int) -> float | None:
        return self.measured.catch_up_alone(self.source, tokens)

    def snapshot(self) -> Costs:
        return self.measured.snapshot().of_source(self.source)


def _reading() -> Line:
    """Of reading many tokens at once: nobody chooses how many these are, so that there is nothing to try in steps."""
    return Line(READING, inf)


def _at(lines: dict[tuple[int, ...], Line], rows: int, width: int) -> float | None:
    """Seconds of a layer, by its rows and its candidates; None where there are no lines."""
    line = _nearest(lines, (_power(width),))
    return None if line is None else line.at(rows)


def _power(size: int) -> int:
    """The power of two that a size reaches."""
    return max(size, 1).bit_length()


def _nearest(lines: dict[tuple[int, ...], Line], kind: tuple[int, ...]) -> Line | None:
    """The line of a kind, or of the nearest one; the first number counts more than the next."""
    if kind in lines or not lines:
        return lines.get(kind)
    return lines[min(lines, key=lambda other: [abs(a - b) for a, b in zip(kind, other, strict=True)])]


def _own(lines: dict[tuple[int, ...], Line], kind: tuple[int, ...]) -> Line:
    if kind not in lines:
        near = _nearest(lines, kind)
        lines[kind] = Line() if near is None else near.beside()
    return lines[kind]
