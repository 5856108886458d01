"""Measuring how much a target and a drafter slow each other down: passes of each, alone and beside the other."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from threading import Event
from time import perf_counter

import attrs
import numpy as np
import torch

from talon_core.candidates import Candidates
from talon_core.choices import SeededChoices
from talon_core.decoding.hosting import process_worker
from talon_core.decoding.source import Source
from talon_core.drafter import Committed, Drafter, DrafterSpec, Frontier, Part, Proposed
from talon_core.engine.ahead.place import parse_place, usable_cores
from talon_core.engine.checked_drafter import opened
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.engine.engine import Engine
from talon_core.engine.sequence import Sequence as Decoded
from talon_core.errors import LostError, PluginError
from talon_core.profiles.contention import Contention, Stretches
from talon_core.profiles.shapes import LAYERS, Full, Shape, Shaped
from talon_core.request import Request
from talon_core.rounds import Span
from talon_core.rule import AcceptanceRule
from talon_core.target import Target
from talon_core.tree import IntArray

SLOT = 0
"""Of the text that the drafter drafts for."""

CYCLES = 32
"""Trees that it drafts before its text begins anew."""

PASSES, SETTLING = 8, 2
"""Passes of the target in a stretch, and how many before that do not count: threads and caches change."""

PERIOD = 24
"""After so many tokens the prompt repeats itself."""


@attrs.frozen
class BesidePlan:
    """What is timed; all at least 1.

    Attributes:
        nodes: of each tree that the target verifies.
        rows: of each layer of the drafter.
        width: candidates of each row.
        context: tokens of the prompt, at least 2.
        repetitions: of all stretches.
    """

    nodes: int = 8
    rows: int = 4
    width: int = 8
    context: int = 64
    repetitions: int = 5

    @property
    def tokens(self) -> int:
        """Most new tokens of a text of the target's."""
        return (1 + 3 * (PASSES + SETTLING)) * (LAYERS + 2) + 1

    def check(self, context_length: int | None) -> None:
        """Refuse what a model has no room for.

        Raises:
            ValueError: the sentence names the values.
        """
        for name, least in (("nodes", 1), ("rows", 1), ("width", 1), ("context", 2), ("repetitions", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least {least}")
        if context_length is not None and self.context + self.tokens > context_length:
            raise ValueError(
                f"a prompt of {self.context} tokens, and {self.tokens} new ones for the passes that are timed, do not "
                f"fit the model's context of {context_length}; take a model of a longer one"
            )


def measured_beside(
    target: Target,
    rule: AcceptanceRule,
    drafter: Drafter,
    threads: int,
    draft_on: str,
    plan: BesidePlan = BesidePlan(),
    now: Callable[[], float] = perf_counter,
) -> Contention:
    """Time passes of a target on a processor and layers of a drafter, each alone and both at the same time.

    The drafter is asked in a thread, as `ThreadWorker` does it; one that stands for a process beside works there.
    It drafts for a text of its own, with the hidden states that the target has given for its. Stretches take turns, as
    other work comes and goes, every second time in the opposite order.

    Args:
        target: with the features that the drafter asks for.
        rule: that its trees are walked by.
        drafter: opened, and used by nobody else.
        threads: of the target beside the drafter; alone it has all that there are.
        draft_on: where the drafter works, for the answer.
        plan: what is timed.
        now: the clock, in seconds.

    Raises:
        ValueError: if the drafter runs layers of the target, or drafts nothing; or if the model has no room.
        LostError: if the drafter is in a process, and that has ended or has failed.
    """
    if drafter.uses_target:
        raise ValueError("the drafter runs layers of the target, which are busy: it cannot work beside it")
    if drafter.max_depth == 0:
        raise ValueError("the drafter drafts nothing, so that there is nothing to time")
    plan.check(target.context_length)
    whole = torch.get_num_threads()
    try:
        return _Measuring(target, rule, drafter, plan, now).run(threads, whole, draft_on)
    finally:
        torch.set_num_threads(whole)


@contextmanager
def drafting_beside(
    spec: DrafterSpec, target: Target, draft_on: str, source: Source | None
) -> Iterator[tuple[Drafter, int]]:
    """A drafter, opened where it would go ahead on a processor and nowhere else, and the threads of the target then.

    A process takes its cores from these threads; a thread takes none, and computes with as many.

    Args:
        spec: the drafter's options.
        target: what it drafts for, with the features that it asks for.
        draft_on: "thread", or "cpu:1" with a number of cores.
        source: what the target's model was loaded by; None where nobody knows.

    Raises:
        ValueError: if the target is on no processor, there is one core, or the drafter cannot be opened there; or if
            its process is lost while this is entered.
    """
    if target.device.type != "cpu":
        raise ValueError(
            f"the target is on {target.device}; how it and a drafter slow each other down is timed on a processor"
        )
    place, whole, cores = parse_place(draft_on), torch.get_num_threads(), usable_cores()
    if cores < 2:
        raise ValueError("this process may use one core, on which nothing works at the same time")
    if place is None:
        yield opened(spec, target), whole
        return
    worker = process_worker(spec, target, place, source)
    try:
        yield worker.drafter, max(1, whole - place.number)
    except (LostError, PluginError) as error:
        lost = error if isinstance(error, LostError) else error.__cause__
        if not isinstance(lost, LostError):
            raise
        raise ValueError(f"drafter '{spec.name}' cannot be timed on {draft_on} any more: {lost}") from error
    finally:
        worker.close()


class _Heard(Drafter):
    """Takes note of what a drafter would hear of a text; it offers nothing itself.

    Args:
        behind: that drafter, whose session is entered.
    """

    def __init__(self, behind: Drafter) -> None:
        self._behind = behind
        self.parts: list[Part] = []
        self.committed: Committed | None = None

    def session(self) -> AbstractContextManager[object]:
        return self._behind.session()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self.parts = []

    def read(self, parts: Mapping[int, Part]) -> None:
        self.parts += parts.values()

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        return Proposed([Candidates.unknown(one.nodes) for one in frontiers])

    def commit(self, committed: Mapping[int, Committed]) -> None:
        (self.committed,) = committed.values()


class _Noting(Drafter):
    """Passes on what a drafter is told and asked, and notes how long each call takes.

    Attributes:
        layers: of `propose`, rows and width, and when.
        calls: all of them, in their order.
    """

    def __init__(self, inner: Drafter, now: Callable[[], float]) -> None:
        self._inner, self._now = inner, now
        self.max_depth = inner.max_depth
        self.layers: list[tuple[tuple[int, int], Span]] = []
        self.calls: list[Span] = []

    @contextmanager
    def _noted(self, work: str, layer: int | None = None) -> Iterator[None]:
        start = self._now()
        yield
        self.calls.append(Span("draft", start, self._now(), work, layer))

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        with self._noted("reading"):
            self._inner.open(slot, prompt, room)

    def read(self, parts: Mapping[int, Part]) -> None:
        with self._noted("reading"):
            self._inner.read(parts)

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        with self._noted("layer", int(frontiers[0].tree.depths[frontiers[0].nodes].max())):
            proposed = self._inner.propose(frontiers)
        (one,) = frontiers
        self.layers.append(((len(one.nodes), one.width), self.calls[-1]))
        return proposed

    def commit(self, committed: Mapping[int, Committed]) -> None:
        with self._noted("commit"):
            self._inner.commit(committed)

    def close(self, slot: int) -> None:
        self._inner.close(slot)


class _Drafting:
    """Has a drafter draft one tree after the other, until it is told to stop.

    Args:
        noting: the drafter.
        heard: what it is told of its text.
        policy: shapes its trees.
        vocab_size: the target's.
    """

    def __init__(self, noting: _Noting, heard: _Heard, policy: Shaped, vocab_size: int) -> None:
        self._noting, self._full = noting, Full(noting, vocab_size)
        self._prompt: IntArray = np.empty(0, dtype=np.int64)
        self._heard, self._policy = heard, policy
        self._limits = DraftLimits(vocab_size, LAYERS + 1)
        self._root = self._left = 0

    def begin(self, prompt: IntArray) -> None:
        """Another text, of which all was heard but what is to come."""
        self._prompt, self._left = prompt, 0

    def until(self, stop: Event) -> None:
        """At least two trees; the layers of the first, in which things settle, are forgotten."""
        self._draft()
        self._noting.layers = []
        while True:
            self._draft()
            if stop.is_set():
                return

    def _draft(self) -> None:
        told = self._heard.committed
        assert told is not None
        if not self._left:
            self._full.open(SLOT, self._prompt.copy(), len(self._prompt) + CYCLES + LAYERS + 2)
            for part in self._heard.parts:
                self._full.read({SLOT: part})
            self._root, self._left = int(self._prompt[-1]), CYCLES
        draft_tree(self._policy, self._full, self._root, self._limits, SeededChoices(0))
        self._full.layers.clear()
        features = None if told.features is None else told.features[:1]
        self._full.commit({SLOT: Committed(told.tokens[:1].copy(), np.zeros(1, dtype=np.int64), features)})
        self._root, self._left = int(told.tokens[0]), self._left - 1


class _Measuring:
    """Both, and the stretches in which they work.

    Args:
        target: likewise, and so are the others.
    """

    def __init__(
        self, target: Target, rule: AcceptanceRule, drafter: Drafter, plan: BesidePlan, now: Callable[[], float]
    ) -> None:
        self._plan, self._now = plan, now
        most = max(plan.nodes, plan.rows, plan.width)
        layers = 1 + most + LAYERS * plan.rows * plan.width
        self._trees = Shaped(plan.nodes, layers, Shape(plan.nodes, 1, 1))
        self._heard = _Heard(drafter)
        full = Full(self._heard, target.vocab_size)
        self._engine = Engine(target, rule, self._trees, full, allocator=None, keep=False, now=now)
        self._rng, self._vocab_size = np.random.default_rng(0), target.vocab_size
        self._noting = _Noting(drafter, now)
        own = Shaped(plan.nodes, layers, Shape(plan.nodes, plan.rows, plan.width))
        self._drafting = _Drafting(self._noting, self._heard, own, target.vocab_size)
        self._lasted = 0.0  # seconds of the target's latest stretch

    def run(self, threads: int, whole: int, draft_on: str) -> Contention:
        """All stretches, each time on a new text."""
        seen = Stretches()
        with self._engine.session(), ExitStack() as leaving:
            leaving.callback(self._closed)
            torch.set_num_threads(threads)
            thread = ThreadPoolExecutor(1, "talon-drafts")  # one thread, and torch's own settings in it, for all
            leaving.callback(thread.shutdown)
            for number in range(self._plan.repetitions):
                piece = self._rng.integers(0, self._vocab_size, min(PERIOD, self._plan.context))
                request = Request(np.resize(piece, self._plan.context), self._plan.tokens)
                sequence = self._engine.submit(request)
                try:
                    self._step(sequence)
                    self._drafting.begin(request.ids)
                    stretches = self._stretches(sequence, thread, seen, threads, whole)
                    for stretch in stretches if number % 2 == 0 else reversed(stretches):
                        stretch()
                finally:
                    if not sequence.finished:
                        self._engine.cancel(sequence)
        return seen.contention(draft_on, threads, whole)

    def _closed(self) -> None:
        with suppress(Exception):  # what has failed is said by who has raised it
            self._noting.close(SLOT)
        with suppress(Exception):
            self._engine.step()  # which lets a text go that was cancelled

    def _stretches(
        self, sequence: Decoded, thread: ThreadPoolExecutor, seen: Stretches, threads: int, whole: int
    ) -> Sequence[Callable[[], None]]:
        """Each of both alone, and both beside each other.

        The text grows from one to the next, and other work comes and goes: every second time they are made in the
        opposite order. Alone the drafter works for as long as the target did in the stretch before.
        """

        def with_all() -> None:
            torch.set_num_threads(whole)
            seen.passes.extend(span.seconds for span in self._passes(sequence)[SETTLING:])

        def with_fewer() -> None:
            torch.set_num_threads(threads)
            seen.passes_fewer.extend(span.seconds for span in self._passes(sequence)[SETTLING:])

        def drafter_alone() -> None:
            torch.set_num_threads(threads)
            with self._drafting_in(thread):
                Event().wait(self._lasted)
            for size, span in self._noting.layers:
                seen.layers.setdefault(size, []).append(span.seconds)

        def beside() -> None:
            torch.set_num_threads(threads)
            with self._drafting_in(thread):
                passes = self._passes(sequence)
            seen.passes_beside.extend(passes[SETTLING:])
            seen.all_passes_beside.extend(passes)
            seen.layers_beside.extend(self._noting.layers)
            seen.calls_beside.extend(self._noting.calls)

        return with_all, with_fewer, drafter_alone, beside

    @contextmanager
    def _drafting_in(self, thread: ThreadPoolExecutor) -> Iterator[None]:
        """The drafter works meanwhile, and has stopped after."""
        self._noting.layers, self._noting.calls = [], []
        stop = Event()
        working = thread.submit(self._drafting.until, stop)
        try:
            yield
        finally:
            stop.set()
            working.result()

    def _passes(self, sequence: Decoded) -> list[Span]:
        """Passes of the target, of which the first do not count."""
        rounds = [self._step(sequence) for _ in range(SETTLING + PASSES)]
        passes = [span for own in rounds for span in own if span.part == "verify"]
        self._lasted = sum(span.seconds for span in passes)
        return passes

    def _step(self, sequence: Decoded) -> tuple[Span, ...]:
        done = self._engine.step()
        if sequence.error is not None:
            raise sequence.error
        return done[sequence].spans
