"""Runs passes over draft trees, and over prompts, for whoever has a network: a target's adapter, or a neural drafter.

There are two executors. `HostExecutor` runs what it is given as it is, or repeats what was recorded of it, to the bit.
`DeviceExecutor` (in `device`) sends all numbers of a pass in one copy, keeps every shape to one of few, and repeats
recorded passes without Python. What a pass does is one function of a `TreeView` for both, so nobody who has a network
needs to know which it is.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from time import perf_counter
from typing import Any, Protocol, TypeVar
from weakref import WeakSet

import attrs
import torch
from torch import Tensor

from talon_core.attention import AttentionBackend
from talon_core.runtime.cache import KeyValueCache, TreeCache
from talon_core.runtime.host_draws import Warp
from talon_core.runtime.host_walks import drawn_walks, greedy_walks
from talon_core.runtime.inputs import PassInputs, Staged, pass_inputs, prompt_passes
from talon_core.runtime.passes import Pass, PromptPass, TreePass
from talon_core.runtime.recording import PassRecorder, Trusted, Walks
from talon_core.runtime.repeating import RepeatedPasses
from talon_core.runtime.running_on import OfRoots, RunningOn
from talon_core.runtime.scores import best_numbers
from talon_core.runtime.transfers import sent
from talon_core.sampling import Processor
from talon_core.target import ALL_WALKED, NOTHING_DRAWN, SECONDS_AHEAD, Further, NodeDraws
from talon_core.tree import IntArray, TokenTree

T = TypeVar("T")
Made = TypeVar("Made", bound=tuple[Any, ...])

HOST_PROMPT_TOKENS = 1024
"""Tokens of a prompt that run in one pass on a CPU; bounds the attention mask of long prompts with a sliding window."""

HOST_SHORT_PART, HOST_SHORT_PARTS = 16, 8
"""So few tokens of a prompt cost a CPU about what one does, which is to read the weights; so many such parts, of one
length, share a pass."""

DEVICE_PROMPT_TOKENS = 4096
"""Tokens of a prompt that run in one pass elsewhere: its first part needs no mask, and gets the fastest attention."""

DEVICE_PROMPTS = 8
"""Prompts that run in one pass elsewhere than on a CPU, where padding costs more than a pass."""


@attrs.frozen(eq=False)
class TreeView:
    """What a pass over trees reads, in the memory of the device that runs it.

    Attributes:
        ids: token ids, shape `(queries,)`, int64; padding is 0.
        positions: shape `(queries,)`, int64.
        attention: who attends to whom; the network's attention layers call its `attend`.
        more: what else was sent, by name, each of shape `(numbers,)`, int64.
    """

    ids: Tensor
    positions: Tensor
    attention: Pass
    more: Mapping[str, Tensor]


@attrs.frozen(eq=False)
class Numbers:
    """Further numbers for a pass.

    Attributes:
        values: at most as many as the pass has queries, int64, not negative but for `padding`.
        padding: what stands behind them where there is room for more.
        one_each: there is one for each query.
    """

    values: IntArray
    padding: int = 0
    one_each: bool = False


NOTHING: Mapping[str, Numbers] = {}


class Ahead(Protocol):
    """Has passes ready that were run ahead of their time."""

    def forget(self) -> None:
        """Another pass begins: nothing is ready any more."""


class Executor(ABC):
    """Runs a network's passes over prompts and trees, on a cache of its own.

    Args:
        attention: computes tree attention.
        device: where the network is.
        cache: the network's keys and values.

    Attributes:
        attention: likewise.
        device: likewise.
        cache: likewise.
        can_walk: whether `walk` can be called.
        can_draw: whether it can be called with `drawn`.
        asks: whether it calls `set_up`. Where it does not, a session may put nothing off.
        set_up: called before the network itself is run, and not what was recorded of it: each sets up what a session
            of it has put off.
    """

    can_walk: bool = False
    can_draw: bool = False
    asks: bool = False

    def __init__(self, attention: AttentionBackend, device: torch.device, cache: KeyValueCache) -> None:
        self.attention = attention
        self.device = device
        self.cache = cache
        self.set_up: list[Callable[[], None]] = []

    @property
    def failure(self) -> str | None:
        """Why passes are not recorded any more, if recording one has failed."""
        return None

    @property
    def recorded(self) -> int:
        """How many kinds of passes are recorded now."""
        return 0

    @property
    def preparations(self) -> int:
        """How often a pass or a call took longer than others like it will, as it was being recorded."""
        return 0

    @property
    def runs_on(self) -> bool:
        """Whether `walk_roots` may give anything."""
        return False

    @property
    def prompt_tokens(self) -> int:
        """Most tokens of a prompt in a pass."""
        return HOST_PROMPT_TOKENS if self.device.type == "cpu" else DEVICE_PROMPT_TOKENS

    @property
    def prompts(self) -> int:
        """Most prompts in a pass, whatever their lengths are."""
        return 1 if self.device.type == "cpu" else DEVICE_PROMPTS

    def prompt_passes(self, counts: Mapping[int, int]) -> Iterator[tuple[int, list[int]]]:
        """The passes over the next tokens of prompts; each is run inside `reading`.

        On a CPU only short parts of one length share a pass: without padding. In kernels whose rows do not depend on
        each other, they are rounded as alone then.

        Args:
            counts: by slot how many tokens, perhaps none.

        Yields:
            Where the pass begins, counted from the beginning of these tokens, and its slots. It takes up to
            `prompt_tokens` of each.
        """
        parts = {slot: (self.cache.lengths[slot], count) for slot, count in counts.items() if count}
        if self.prompts > 1:
            yield from prompt_passes(parts, self.prompt_tokens, self.prompts)
            return
        for length in sorted({count for _, count in parts.values()}):
            alike = {slot: part for slot, part in parts.items() if part[1] == length}
            together = HOST_SHORT_PARTS if length <= HOST_SHORT_PART else 1
            yield from prompt_passes(alike, self.prompt_tokens, together)

    @contextmanager
    def reading(self, slots: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[Tensor, Pass]]:
        """The next tokens of some sequences go through the network inside, and belong to their prefixes after.

        Args:
            slots: which sequences; they have equally long prefixes.
            counts: how many tokens of each; the pass is as wide as the longest, and shorter ones are padded at the end.

        Yields:
            Their positions on the device, shape `(len(slots), longest)`, int64, and the pass.

        Raises:
            ValueError: if a slot is not open, is named twice or has staged nodes, or the prefixes differ in length.
        """
        self.cache.check_open(slots)
        lengths = [self.cache.lengths[slot] for slot in slots]
        if len({*slots}) != len(slots) or len({*lengths}) != 1:
            raise ValueError(
                f"slots {[*slots]} have prefixes of {lengths} rows; what is read together must be different slots "
                "whose prefixes are equally long"
            )
        busy = [slot for slot in slots if self.cache.staged[slot]]
        if busy:
            raise ValueError(f"slot {busy[0]} has staged nodes; commit them before more of its text is read")
        self._set_up()
        start, count = self.cache.lengths[slots[0]], max(counts)
        self.cache.stage_prompts(slots, counts)
        positions = torch.arange(start, start + count, device=self.device)
        yield positions.expand(len(slots), count), PromptPass(start, count, self.attention)
        for slot, own in zip(slots, counts, strict=True):
            self.cache.lengths[slot] += own

    def _set_up(self) -> None:
        for what in self.set_up:
            what()

    def inputs(self, staged: Staged) -> PassInputs:
        """What a pass over the nodes of trees reads that are not staged in the cache yet.

        Raises:
            ValueError: if a slot is not open.
        """
        self.cache.check_open(staged)
        return pass_inputs(staged, self.cache.lengths)

    @abstractmethod
    def run(
        self,
        inputs: PassInputs,
        work: Callable[[TreeView], T],
        kind: Hashable,
        more: Mapping[str, Numbers] = NOTHING,
    ) -> T:
        """Run one pass over trees; its nodes are staged in the cache then.

        Args:
            inputs: what is to be run, as `inputs` makes it.
            work: the pass. It asks the device for nothing. Whatever it reads beside its argument must be the same for
                the same `kind`, or device memory that stays where it is.
            kind: tells different `work` apart.
            more: further numbers, by name.

        Returns:
            What `work` returned. Rows behind those of the queries, or of the numbers, are padding. It may be
            overwritten by the next pass or call of this executor: see `lasting`.

        Raises:
            ValueError: if there are more further numbers than queries, or they are no whole numbers in a row.
        """

    def prepare(  # noqa: B027 - most record nothing by its size
        self,
        slots: Collection[int],
        nodes: int,
        work: Callable[[TreeView], Made],
        kind: Hashable,
        ends: frozenset[int] | None = None,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
    ) -> None:
        """Record passes over trees of some sequences before they are wanted, where passes are recorded by their size.

        What was recorded before is not dropped for them.

        Args:
            slots: whose, all of them open.
            nodes: of the largest tree.
            work: as for `run`.
            kind: likewise.
            ends: as for `walk`; None records passes of `run` without further numbers.
            drawn: as `walk` will have it, but for the numbers.
        """

    @abstractmethod
    def call(self, kind: Hashable, function: Callable[..., T], *inputs: Tensor) -> T:
        """Call a function of tensors that works row by row and needs no cache.

        Args:
            kind: tells different functions apart.
            function: reads beside its arguments only what stays where it is.
            inputs: each of shape `(rows, ..)`, those of one kind with the same further sizes.

        Returns:
            What the function returns for these rows, and behind them perhaps for others. It may be overwritten by the
            next pass or call of this executor: see `lasting`.
        """

    def best_numbers(self, scores: Tensor, width: int) -> Tensor:
        """As `best_numbers`, but for rounding: in the way that is fastest here, in a pass, in a call or elsewhere."""
        return best_numbers(scores, width)

    @abstractmethod
    def lasting(self, found: Tensor) -> Tensor:
        """What a pass or a call has found, in memory that later ones leave alone."""

    @abstractmethod
    def commit(self, paths: Mapping[int, IntArray]) -> None:
        """Keep these of the staged nodes of each slot, ascending, and forget the others.

        Raises:
            ValueError: if a slot is not open, or a path does not ascend or has other nodes than those that are staged.
        """

    def walk(
        self,
        inputs: PassInputs,
        work: Callable[[TreeView], Made],
        kind: Hashable,
        slots: Collection[int],
        ends: frozenset[int],
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        logits: bool = True,
    ) -> tuple[Made, Walks]:
        """Run whole trees; walk along the most likely tokens in some, and commit the paths, all on the device.

        Args:
            inputs: the trees; every node is a query.
            work: the pass, as for `run`; the first of what it returns are the logits.
            kind: as for `run`.
            slots: where to walk.
            ends: tokens that end their texts.
            unwalked: by slot, how many nodes at the end of its tree no path goes to.
            drawn: in which of these slots other tokens than the most likely ones are walked along, and how they are
                taken.
            logits: whether they are wanted; without, anything may stand in their place.

        Returns:
            What `work` returned, and of each slot that was walked the accepted nodes and the token after them, which is
            `NO_TOKEN` where there was no law. A slot whose warpers have raised is not among them.

        Raises:
            RuntimeError: if this executor cannot.
        """
        raise RuntimeError(f"{type(self).__name__} does not walk so; ask its `can_walk` and `can_draw` first")

    def draws(self, warpers: Sequence[Processor]) -> bool:
        """Whether `walk` can be called with `drawn` that warp scores so and test nothing, though not with any."""
        return False

    def walk_roots(
        self,
        trees: Mapping[int, TokenTree],
        kind: Hashable,
        ends: frozenset[int],
        further: Further | None,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
    ) -> OfRoots | None:
        """As `walk` without logits, where all trees are roots alone, if that takes less time.

        Args:
            trees: by slot.
            kind: as for `walk`.
            ends: likewise.
            further: rounds behind this one in which the same slots will be walked through their roots alone, as far as
                is known. Their passes may be run now.
            drawn: as for `walk`.

        Returns:
            None where `walk` is to be asked: nothing was done.
        """
        return None

    def walked_rows(self, rows: Tensor, inputs: PassInputs, walks: Walks) -> dict[int, Tensor]:
        """The rows of the accepted nodes, out of those of all nodes of the last `walk`.

        Args:
            rows: what its pass returned, or made of that, shape `(queries, ..)`.
            inputs: of the walk.
            walks: what it found.

        Returns:
            By slot, shape `(path, ..)`, in memory of their own.
        """
        starts = inputs.layout.starts
        return {slot: _lasting(rows, walk.path, int(starts[slot])) for slot, walk in walks.items()}

    @abstractmethod
    def forget(self) -> None:
        """Give up what was recorded, because memory that it uses is given up."""

    def let_be_seen(self, why: str | None) -> None:  # noqa: B027 - most repeat nothing without the network
        """Told when a session is entered: whether somebody looks at each pass, so that on a host none is repeated.

        Args:
            why: what for, as the end of a sentence; None if nobody looks any more.
        """

    def _check_paths(self, paths: Mapping[int, IntArray]) -> None:
        self.cache.check_open(paths)
        for slot, path in paths.items():
            staged = self.cache.staged[slot]
            if len(path) and (path[0] < 0 or path[-1] >= staged or not (path[1:] > path[:-1]).all()):
                raise ValueError(
                    f"the path of slot {slot} is {path.tolist()}; it must ascend, within its {staged} staged nodes"
                )


def walking(kind: Hashable) -> Hashable:
    """The kind of passes that are walked, of those of a kind."""
    return "walk", kind


def _without_logits(found: tuple[Tensor, tuple[Any, ...]]) -> tuple[Any, ...]:
    """What is kept of a pass that is walked: the most likely tokens, and what it returns behind the logits."""
    best, made = found
    return best, *made[1:]


def _all_of_it(made: tuple[Any, ...]) -> tuple[Any, ...]:
    """What is kept of a pass whose tokens are drawn, but for the logits."""
    return made


def _lasting(rows: Tensor, path: IntArray, start: int) -> Tensor:
    """The rows of a path that begins at its tree's root, in memory of their own; `start` is where the tree's are."""
    if len(path) == 1:  # as most are where nothing is drafted; a copy takes half as long
        return rows[start : start + 1].clone()
    return rows.index_select(0, sent(path + start, rows.device))


def check_numbers(inputs: PassInputs, more: Mapping[str, Numbers]) -> None:
    """Make sure that further numbers of a pass have room; raises as `Executor.run`."""
    queries = inputs.layout.queries
    for name, numbers in more.items():
        values = numbers.values
        if values.ndim != 1 or values.dtype.kind != "i" or len(values) > queries:
            raise ValueError(
                f"'{name}' has shape {values.shape} and type {values.dtype}; it must be whole numbers in a row, at "
                f"most as many as the pass has queries, which are {queries}"
            )


class HostExecutor(Executor):
    """Runs what it is given as it is, or repeats what a recorder has written down of it.

    What is repeated gives the same bits (`talon_core.runtime.repeating`).

    Args:
        attention: as for `Executor`.
        device: likewise.
        recorder: writes passes down; None runs all as they are.
    """

    asks = True

    def __init__(self, attention: AttentionBackend, device: torch.device, recorder: PassRecorder | None = None) -> None:
        super().__init__(attention, device, TreeCache())
        self.cache: TreeCache
        self._recorder = recorder
        self._passes = RepeatedPasses(recorder, self.cache) if recorder is not None else None
        self._running_on = RunningOn(self._passes, self.cache) if self._passes is not None else None
        self.beside: WeakSet[Ahead] = WeakSet()  # who has passes ready that were run ahead
        self._seconds = 0.0  # of the latest pass over roots alone
        self._move: tuple[tuple[int, int], Callable[[int, int, IntArray], None]] | None = None

    @property
    def failure(self) -> str | None:
        return None if self._passes is None else self._passes.seen or self._passes.failure

    @property
    def recorded(self) -> int:
        return self._passes.recorded if self._passes is not None else 0

    @property
    def preparations(self) -> int:
        return self._passes.prepared if self._passes is not None else 0

    def run(
        self,
        inputs: PassInputs,
        work: Callable[[TreeView], T],
        kind: Hashable,
        more: Mapping[str, Numbers] = NOTHING,
    ) -> T:
        check_numbers(inputs, more)
        return self._run(inputs, work, kind, more, None)

    def _run(
        self,
        inputs: PassInputs,
        work: Callable[[TreeView], T],
        kind: Hashable,
        more: Mapping[str, Numbers],
        chosen: Callable[[T], Any] | None,
    ) -> T:
        """`run`; of `chosen` see `RepeatedPasses.run`."""
        self.forget_ahead()

        def plainly() -> T:
            self._set_up()
            with torch.inference_mode():
                self.cache.stage(inputs.counts)
                sent = {name: torch.from_numpy(numbers.values).to(self.device) for name, numbers in more.items()}
                this_pass = TreePass(inputs.layout, self.attention.attend)
                ids, positions = (torch.from_numpy(one).to(self.device) for one in (inputs.ids, inputs.positions))
                return work(TreeView(ids, positions, this_pass, sent))

        passes = self._passes
        made = plainly() if passes is None else passes.run(inputs, work, kind, more, plainly, self._set_up, chosen)
        self.cache.staged_now(inputs.counts)
        return made

    @property
    def can_walk(self) -> bool:  # type: ignore[override]  # who has no recorder has nothing that walks
        return self._recorder is not None

    def walk(
        self,
        inputs: PassInputs,
        work: Callable[[TreeView], Made],
        kind: Hashable,
        slots: Collection[int],
        ends: frozenset[int],
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        logits: bool = True,
    ) -> tuple[Made, Walks]:
        if self._recorder is None:
            return super().walk(inputs, work, kind, slots, ends, unwalked, drawn, logits)

        def chosen(view: TreeView) -> tuple[Tensor, Made]:
            made = work(view)
            return made[0].argmax(-1), made

        began = perf_counter()
        if drawn:
            made = self._run(inputs, work, kind, NOTHING, None)
            walks = drawn_walks(inputs, made[0], slots, ends, unwalked, drawn, self._recorder.draw_token)
        else:
            best, made = self._run(inputs, chosen, walking(kind), NOTHING, None if logits else _without_logits)
            walks = greedy_walks(inputs, best, slots, ends, unwalked)
        if len(inputs.ids) == len(slots):
            self._seconds = perf_counter() - began
        self.cache.commit({slot: walk.path for slot, walk in walks.items()}, self._moved)
        return made, walks

    def draws(self, warpers: Sequence[Processor]) -> bool:
        return self._recorder is not None and Warp.of(warpers) is not None

    @property
    def runs_on(self) -> bool:
        return self._running_on is not None

    def walk_roots(
        self,
        trees: Mapping[int, TokenTree],
        kind: Hashable,
        ends: frozenset[int],
        further: Further | None,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
    ) -> OfRoots | None:
        if self._running_on is None:
            return None
        own, chosen = (kind, _all_of_it) if drawn else (walking(kind), _without_logits)
        found = self._running_on.take(trees, own, ends, drawn)
        if found is None and further and self._seconds:
            self.forget_ahead()
            began, most = perf_counter(), min(1 + further.rounds, int(SECONDS_AHEAD / self._seconds))
            found = self._running_on.run(trees, own, ends, most, chosen, drawn, further.wanted, further.behind())
            if found is not None:
                self._seconds = (perf_counter() - began) / found.passes
        if found is not None:
            self.cache.staged_now([int(slot in trees) for slot in range(len(self.cache.lengths))])
            self.cache.committed(dict.fromkeys(trees, 1))
        return found

    def best_numbers(self, scores: Tensor, width: int) -> Tensor:
        if self._recorder is None or scores.dtype != torch.float32:
            return best_numbers(scores, width)
        return self._recorder.best_numbers(scores, width)

    def call(self, kind: Hashable, function: Callable[..., T], *inputs: Tensor) -> T:
        self._set_up()
        return function(*inputs)

    def lasting(self, found: Tensor) -> Tensor:
        return found.clone() if self._passes is not None else found

    def commit(self, paths: Mapping[int, IntArray]) -> None:
        self._check_paths(paths)
        self.cache.commit(paths, self._moved if self._recorder is not None else None)

    def _moved(self, slot: int, start: int, path: IntArray) -> None:
        """The recorder moves rows in the cache's present buffers; most rounds without a draft move none."""
        assert self._recorder is not None
        buffers = self.cache.buffers()
        now = self.cache.reallocations, len(buffers)
        if self._move is None or self._move[0] != now:
            self._move = now, self._recorder.mover(buffers)
        self._move[1](slot, start, path)

    def forget(self) -> None:
        if self._passes is not None:
            self._passes.forget()

    def let_be_seen(self, why: str | None) -> None:
        if self._passes is not None:
            self._passes.seen = why
        self.forget_ahead()

    @contextmanager
    def reading(self, slots: Sequence[int], counts: Sequence[int]) -> Iterator[tuple[Tensor, Pass]]:
        self.forget_ahead()
        with super().reading(slots, counts) as read:
            yield read

    def forget_ahead(self) -> None:
        """Another pass begins, or the model may be another one; a pass may fail when it has written over some rows."""
        if self._running_on is not None:
            self._running_on.forget()
        for one in self.beside:
            one.forget()

    @property
    def recorder(self) -> PassRecorder | None:
        """What writes passes down; None where all run as they are."""
        return self._recorder

    def trusted(self, kind: Hashable, choosing: bool) -> Trusted | None:
        """As `RepeatedPasses.trusted`; None where nothing is repeated."""
        return None if self._passes is None else self._passes.trusted(kind, choosing)
