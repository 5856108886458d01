"""Writes down what a device does, so that it is repeated without Python."""

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from threading import RLock
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

import attrs
import torch

from talon_core.chains import Chains
from talon_core.errors import one_line
from talon_core.tree import FloatArray, IntArray

if TYPE_CHECKING:
    from talon_core.runtime.cache import TreeCache
    from talon_core.runtime.executor import Numbers, TreeView
    from talon_core.runtime.host_draws import ChainDraws, DrawnAhead, Warp
    from talon_core.runtime.inputs import PassInputs
    from talon_core.target import Behind, StillWanted

T = TypeVar("T")


class Walk(NamedTuple):
    """A path through a tree.

    Attributes:
        path: the accepted nodes, shape `(path,)`, int64.
        token: what follows them.
        numbers: as `Accepted.numbers`.
    """

    path: IntArray
    token: int
    numbers: int = 0


Walks = dict[int, Walk]
"""By slot."""


class Recorder(ABC):
    """Writes down what a function does on a device, so that it can be done again without Python."""

    @abstractmethod
    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        """Record one call.

        Args:
            function: works on device memory alone. It may be called several times before it is recorded.

        Returns:
            What the recorded call returned, and what repeats it: the same work on the same memory, the returned
            tensors among it. Of what is returned nothing has been computed yet.

        Raises:
            RuntimeError: if the function cannot be recorded, as it asks the device for something.
        """


class FurtherPasses(ABC):
    """What passes have found that were run behind one another.

    Attributes:
        tokens: of each pass, at least one, the token after each of its texts.
    """

    tokens: list[list[int]]

    @abstractmethod
    def rest(self, which: int) -> tuple[Any, ...]:
        """What else was kept of a pass, counted from 0: to the bit what it returns, in memory of its own."""


class Asking:
    """Asks `Further.wanted` between passes, where a RuntimeError would be taken for one of these.

    Args:
        wanted: it; None where nobody is to be asked, and all is wanted.
    """

    def __init__(self, wanted: "StillWanted | None") -> None:
        self._wanted = wanted
        self._error: Exception | None = None

    @property
    def asked(self) -> "StillWanted | None":
        """What the walk asks; None where it need not."""
        return None if self._wanted is None else self._ask

    def _ask(self, new: Sequence[int]) -> bool:
        assert self._wanted is not None
        try:
            return bool(self._wanted(new))
        except Exception as error:
            self._error = error
            return False

    def check(self) -> None:
        """Raise what was raised on the way."""
        if self._error is not None:
            raise self._error


class RecordedPass(ABC, Generic[T]):
    """A pass over trees that was written down on a host, for any trees and any prefixes."""

    @abstractmethod
    def fits(self, queries: int, more: "Mapping[str, Numbers]") -> bool:
        """Whether it can be repeated for so many queries and these further numbers, and stands for the pass still."""

    @abstractmethod
    def run(self, inputs: "PassInputs", more: "Mapping[str, Numbers]", choosing: bool = False) -> T:
        """Do the pass. The keys and values of a node go to its row behind the prefix (`TreeLayout`).

        Args:
            inputs: what it reads; the cache has room for it.
            more: further numbers, by name.
            choosing: where the pass takes the largest of each row of some numbers, nothing else of these is wanted, so
                that they need not be computed.

        Returns:
            What the pass itself returns, to the bit; but with `choosing` those numbers may be anything. It is
            overwritten by the next one.

        Raises:
            RuntimeError: if it cannot be repeated for these; the sentence says why. The pass itself can be run then.
        """

    @abstractmethod
    def run_on(
        self,
        inputs: "PassInputs",
        passes: int,
        ends: Collection[int],
        chosen: Callable[[T], Any],
        draws: "DrawnAhead | None" = None,
        wanted: "StillWanted | None" = None,
        behind: "Behind | None" = None,
    ) -> "FurtherPasses | None":
        """Do the pass over trees of a root alone, and others behind it, as rounds without a draft would.

        Each text goes on with the token that the pass before has found after it.

        Args:
            inputs: as for `run`, of trees of one node without further numbers; the cache has room for all passes.
            passes: how many at most.
            ends: tokens that end texts: behind a pass that finds one of them none is done.
            chosen: the part of what the pass returns that is kept; its first are the tokens.
            draws: how tokens are drawn. The first are the scores then, which are not kept.
            wanted: as that of `Further`, of one text. It runs no pass, and raises no RuntimeError.
            behind: at which places alone it is asked; None for everywhere.

        Returns:
            What was found. None where that cannot be done, in which case nothing is.

        Raises:
            RuntimeError: as `run`.
        """


@attrs.frozen(eq=False)
class ChainPass:
    """A recorded pass of rounds whose trees are chains, with what it would be given in the first of them.

    Attributes:
        recorded: it.
        inputs: of the largest pass of its kind in these rounds, where the cache has room for them.
        more: its further numbers.
        rows: of the cache, committed and staged together, up to which it may write.
    """

    recorded: RecordedPass[Any]
    inputs: "PassInputs"
    more: "Mapping[str, Numbers]"
    rows: int


@attrs.frozen(eq=False)
class ChainRun:
    """Rounds of one text whose trees are chains, as they are to be run behind one another.

    A round reads what was committed and the drafter does not know (`first`), then each drafted token that is drafted
    from (`next`), and the target verifies root and chain; see `Chains`.

    Attributes:
        slot: of the text, in both caches.
        target: the target's pass; it returns the most likely token after each node and what the pass itself does, or
            that alone where tokens are drawn. Its inputs are a chain of `chains.depth` nodes under the root.
        features: those at its nodes out of what the target's pass itself returns, of which the first are the scores.
        first: the drafter's over what was committed. It reads the features at `sources`, which are rows of `given`.
        next: the drafter's over a drafted token. What both return is what `best_numbers` finds behind their `ends`, and
            the scores there; what they make at a node they put where `made` says, and `next` reads it at `sources`.
        given: shape `(rows, features)`: room for those of `chains.depth + 1` tokens.
        pending: tokens that were committed and the drafter has not read; the last is the root.
        ids: the target's token of each of the drafter's, shape `(draft vocab,)`, int64; None where they are the same.
        chains: the shapes.
        rounds: at most, no more than `chains.rounds`.
        left: tokens that the text may still have.
        ends: tokens that end it.
        least_pending: as many tokens must be pending in each round, or rounds end before it.
        least_drafted: as many drafted tokens must join in each, likewise.
        draws: how tokens are drawn, with as many numbers as any walk through these rounds needs; None where the most
            likely ones are taken.
        drafts: the numbers with which drafted tokens are drawn, as many as these rounds may need, shape `(draws,)`;
            None where the likeliest are taken. Such children are tested in turn, see `AcceptanceRule.tests`.
        wanted: as for `Drafter.run_on`, but for that it raises no RuntimeError.
    """

    slot: int
    target: ChainPass
    features: Callable[[Any], Any]
    first: ChainPass
    next: ChainPass
    given: torch.Tensor
    pending: list[int]
    ids: IntArray | None
    chains: Chains
    rounds: int
    left: int
    ends: frozenset[int]
    least_pending: int
    least_drafted: int
    draws: "ChainDraws | None"
    drafts: FloatArray | None = None
    wanted: "StillWanted | None" = None


@attrs.frozen(eq=False)
class ChainRecord:
    """What became of one such round.

    Attributes:
        pending: tokens that the drafter has read in it.
        layers: how often it was asked.
        drafted: tokens that have joined the tree, in their order.
        accepted: how many of them.
        token: the target's behind these.
        numbers: of the target's draws that were used, where it draws.
        logp: of the drafted tokens, where they were drawn: log-probabilities by what they were drawn from.
        seconds: of each layer, and of the target's pass behind them.
    """

    pending: int
    layers: int
    drafted: list[int]
    accepted: int
    token: int
    numbers: int
    logp: list[float]
    seconds: list[float]

    @property
    def emitted(self) -> list[int]:
        """Tokens that the text goes on with."""
        return [*self.drafted[: self.accepted], self.token]


@attrs.frozen(eq=False)
class RanChains:
    """What such rounds have found.

    Attributes:
        rounds: one after another.
        numbers: what the drafter found, as `best_numbers` gives it, shape `(rounds, depth, 2 * width)`, float32.
        scores: those that it was found in, shape `(rounds, depth, draft vocab)`, float32.
        features: the target's, at the root and the accepted nodes, shape `(rounds, depth + 1, features)`.
    """

    rounds: list[ChainRecord]
    numbers: torch.Tensor
    scores: torch.Tensor
    features: torch.Tensor


@attrs.frozen(eq=False)
class Trusted:
    """A recorded pass of which is known whether it gives what the pass itself does.

    Attributes:
        recorded: it.
        with_one: whether it can be trusted with one node.
        with_several: likewise, with several of one sequence.
    """

    recorded: RecordedPass[Any]
    with_one: bool
    with_several: bool


class PassRecorder(ABC):
    """Writes down passes over trees on a host, so that they are repeated without Python.

    Attributes:
        most: queries of the largest pass that can be repeated.
    """

    most: int

    @abstractmethod
    def record(
        self, work: "Callable[[TreeView], T]", cache: "TreeCache", queries: int, more: "Mapping[str, Numbers]"
    ) -> RecordedPass[T]:
        """Record a pass, without running it.

        Args:
            work: the pass; as for `Executor.run`. What it reads beside its argument stays where it is.
            cache: the keys and values that it works on.
            queries: how many it has now.
            more: its further numbers, as they are now.

        Raises:
            RuntimeError: if it cannot be recorded; the sentence says why.
        """

    def run_chains(self, run: ChainRun) -> RanChains | None:
        """Do rounds whose trees are chains, behind one another.

        Args:
            run: its passes were recorded by recorders of this class, and fit.

        Returns:
            What was found, perhaps of no round. None where that cannot be done, as by default: nothing is done then.

        Raises:
            RuntimeError: if a pass of the first round cannot be repeated.
        """
        return None

    @abstractmethod
    def mover(self, buffers: Sequence[torch.Tensor]) -> Callable[[int, int, IntArray], None]:
        """What moves rows in buffers of a cache, all at once: called with a slot, a row of it and a path.

        Row `row + i` becomes what was in `row + path[i]`; the path ascends.
        """

    @abstractmethod
    def draw_token(self, scores: torch.Tensor, warp: "Warp", number: float) -> int:
        """Draw a token, as in passes that draw.

        Args:
            scores: shape `(vocab,)`.
            warp: what is done to them.
            number: in [0, 1).

        Returns:
            `NO_TOKEN` where there is no law.
        """

    @abstractmethod
    def best_numbers(self, scores: torch.Tensor, width: int) -> torch.Tensor:
        """As `talon_core.runtime.scores.best_numbers`, but for rounding: in recorded passes and in others alike."""


class _Captures:
    """What captures of this process share.

    Attributes:
        beside: how many threads use the device beside the one that decodes.
        failure: why a capture broke off; None while none has.
        turn: held by the thread that warms up or captures. A capture begins by waiting for the whole device, which CUDA
            forbids while another one goes on.
    """

    def __init__(self) -> None:
        self.beside = 0
        self.failure: str | None = None
        self.turn = RLock()


_CAPTURES = _Captures()


@contextmanager
def used_beside() -> Iterator[None]:
    """While entered, another thread uses the device as well, and is not forbidden to wait for it.

    That can only be forbidden to a whole process. So it is not looked for beforehand whether a pass asks the device for
    something: one that does is found when its capture breaks off.
    """
    _CAPTURES.beside += 1
    try:
        yield
    finally:
        _CAPTURES.beside -= 1


class CudaGraphs(Recorder):
    """CUDA graphs, which share one pool of memory: what one of them returns may be lost when another is repeated.

    Threads of a process capture one after another. Once a capture has broken off, nothing is captured any more in this
    process: the allocators of some versions of PyTorch take it for one that goes on, and then give no memory back, or
    fail. A capture for which memory was too short, or in which somebody pressed Ctrl-C, ends as others do, and others
    follow it.
    """

    def __init__(self) -> None:
        self._stream: Any = None  # one for warming up and for capturing, so that libraries have their memory by then
        self._last: Any = None  # keeps the pool alive where all other graphs are given up

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        with _CAPTURES.turn:
            return self._record(function)

    def _record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]]:
        if _CAPTURES.failure is not None:
            raise RuntimeError(f"nothing is captured after a capture of this process broke off ({_CAPTURES.failure})")
        if self._stream is None:
            self._stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch has no types here
        before = torch.cuda.current_stream()
        self._warm_up(function, before)
        graph = torch.cuda.CUDAGraph()
        pool = self._last.pool() if self._last is not None else None
        left: BaseException | None = None
        try:
            # in the mode "global", what other threads allocate would break the capture off
            with torch.cuda.graph(graph, pool=pool, stream=self._stream, capture_error_mode="thread_local"):
                try:
                    out = function()
                except (torch.OutOfMemoryError, KeyboardInterrupt) as error:
                    left = error
                    raise
        except BaseException as error:
            if error is not left:  # that ends as others do
                _CAPTURES.failure = one_line(error)
            raise
        finally:
            torch.cuda.set_stream(before)  # a capture that breaks off leaves its own
        self._last = graph
        return out, graph.replay

    def _warm_up(self, function: Callable[[], object], before: Any) -> None:
        """Call it on the stream that captures; what comes on the one before waits for it, even if it fails."""
        self._stream.wait_stream(before)
        try:
            with torch.cuda.stream(self._stream):
                function()  # kernels are compiled and buffers made
                with nullcontext() if _CAPTURES.beside else _asking_raises():
                    function()  # found here, a question does no harm; a capture that breaks off does
        finally:
            before.wait_stream(self._stream)


@contextmanager
def _asking_raises() -> Iterator[None]:
    """While entered, an operation that waits for the device is a RuntimeError."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it is called a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class Recording:
    """A recorder for as long as it works.

    Args:
        recorder: what records; None records nothing.
        then: what happens when it does not work any more, for the warning.

    Attributes:
        failure: why it does not any more.
    """

    def __init__(self, recorder: Recorder | None, then: str = "passes run without CUDA graphs") -> None:
        self.failure: str | None = None
        self._recorder = recorder
        self._then = then

    @property
    def active(self) -> bool:
        """Whether anything is recorded."""
        return self._recorder is not None

    def record(self, function: Callable[[], T]) -> tuple[T, Callable[[], None]] | None:
        """As `Recorder.record`; None where nothing is recorded, or no more.

        Raises:
            torch.OutOfMemoryError: if memory is too short for this one; others may be recorded.
        """
        if self._recorder is None:
            return None
        try:
            return self._recorder.record(function)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # the model asks its device for something; it runs, but not as a graph
            self.failure = one_line(error)
            self._recorder = None
            why = f"{self._then}, which is slower: {self.failure}"
            warnings.warn(why, RuntimeWarning, stacklevel=2)
            return None
