"""Methods on all texts of a trace, in several processes."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from time import perf_counter
from typing import Any

import attrs

from talon_core.costs import Costs
from talon_core.drafter import DrafterSpec
from talon_core.trace.asking import rows_of
from talon_core.trace.folder import Trace
from talon_core.trace.oracle import Along, BestTrees, best_trees
from talon_core.trace.replay import Method, Replay, Totals


@attrs.frozen
class Tried:
    """A method on all texts.

    Attributes:
        method: it.
        totals: what it did.
        oracle: the best trees of as many nodes as its largest has.
    """

    method: Method
    totals: Totals
    oracle: BestTrees


@attrs.frozen
class Answer:
    """What came of the methods.

    Attributes:
        tried: one for each method.
        oracle: the best trees of any number of nodes, with the trace's own drafter, or the first method's.
        texts: on which they were tried.
        missing: texts that are not recorded yet.
        seconds: all of it took.
    """

    tried: Sequence[Tried]
    oracle: BestTrees
    texts: int
    missing: int
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, as `talon trace replay --json` prints it."""
        methods = [
            {
                "method": one.method.name,
                "mean_accepted_tokens": one.totals.mean_accepted_tokens,
                **_totals(one.totals),
                "oracle": attrs.asdict(one.oracle),
            }
            for one in self.tried
        ]
        hindsight = {"mean_accepted_tokens": self.oracle.in_hindsight}
        return {"methods": methods, "oracle": hindsight, "texts": self.texts, "seconds": self.seconds}


def _totals(totals: Totals) -> dict[str, Any]:
    """The fields by name; what is predicted only where it is."""
    found = attrs.asdict(totals)
    if totals.predicted_seconds is None:
        del found["predicted_seconds"]
    else:
        found["predicted_tokens_per_second"] = totals.predicted_tokens_per_second
    return found


@attrs.frozen
class _OfText:
    """What came of one text: the methods' totals, and the offers along it by each drafter."""

    totals: Sequence[Totals]
    along: Sequence[Along]


def replayed(
    trace: Trace,
    methods: Sequence[Method],
    jobs: int | None = None,
    report: Callable[[int, int], None] = lambda done, all_: None,
    costs: Costs | None = None,
) -> Answer:
    """Try methods on every text of a trace that is there.

    Args:
        trace: the trace.
        methods: at least one.
        jobs: processes; by default one for each core. There is one where the system cannot fork, and where torch is
            loaded, whose threads a fork does not have.
        report: called with the number of texts that are done and of all.
        costs: what passes take, on the machine that is asked about; None if nobody wants to know.

    Raises:
        ValueError: if a method cannot be tried on this trace, it has no texts, or a file of it is none.
        PluginError: if a plugin breaks its contract; the message names it.
    """
    started = perf_counter()
    replay, texts = Replay(trace, costs), trace.texts()
    for method in methods:
        replay.check(method)
    if not texts:
        raise ValueError(f"no text of the trace in '{trace.folder}' is recorded yet")
    drafters: list[DrafterSpec | None] = []
    for drafter in (method.drafter for method in methods):
        if drafter not in drafters:
            drafters.append(drafter)
    found: list[_OfText] = []
    report(0, len(texts))
    for one in _each(lambda text: _text(replay, methods, drafters, *text), texts, jobs):
        found.append(one)
        report(len(found), len(texts))
    along = {drafter: [one.along[number] for one in found] for number, drafter in enumerate(drafters)}
    tried = []
    for number, method in enumerate(methods):
        totals = Totals.all_of(one.totals[number] for one in found)
        tried.append(Tried(method, totals, best_trees(along[method.drafter], totals.largest_tree)))
    oracle = best_trees(along.get(None) or along[drafters[0]])
    return Answer(tried, oracle, len(texts), len(trace.planned()) - len(texts), perf_counter() - started)


def _text(
    replay: Replay, methods: Sequence[Method], drafters: Sequence[DrafterSpec | None], name: str, prompt: int
) -> _OfText:
    text, trace = replay.trace.text(name, prompt), replay.trace
    new = text.ids[text.prompt_tokens :].tolist()
    along = []
    for drafter in drafters:
        if drafter is None:
            assert text.ranks is not None
            along.append(Along(text.ranks))
        else:
            along.append(Along.of(rows_of(drafter, text, trace["settings"], trace["target"]), new))
    return _OfText([Totals.of(replay.text(method, text)) for method in methods], along)


_WORK: list[Callable[[Any], Any]] = []
"""What forked processes do; it need not be sent to them."""


def _each(work: Callable[[Any], Any], things: Sequence[Any], jobs: int | None) -> Iterator[Any]:
    """Do work on all things, in their order, in as many processes as there are cores or jobs."""
    count = min(jobs or os.cpu_count() or 1, len(things))
    if count < 2 or "fork" not in multiprocessing.get_all_start_methods() or "torch" in sys.modules:
        yield from map(work, things)
        return
    _WORK.append(work)
    try:
        with multiprocessing.get_context("fork").Pool(count) as pool:
            yield from pool.imap(_work, things)
    finally:
        _WORK.clear()


def _work(thing: Any) -> Any:
    return _WORK[-1](thing)
