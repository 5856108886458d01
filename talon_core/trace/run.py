"""Methods on all texts of a trace, in several processes."""

import os
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import attrs

from talon_core.costs import Costs
from talon_core.drafter import DrafterSpec
from talon_core.trace.asking import rows_of
from talon_core.trace.folder import Trace
from talon_core.trace.oracle import Along, BestTrees, best_trees
from talon_core.trace.processes import can_fork, in_processes
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
        missing: texts of the trace that are not there.
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
        counts = {"texts": self.texts, "missing": self.missing}
        return {"methods": methods, "oracle": hindsight, **counts, "seconds": self.seconds}


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
        raise ValueError(f"no text of the trace in '{trace.folder}' is there")
    drafters: list[DrafterSpec | None] = []
    for drafter in (method.drafter for method in methods):
        if drafter not in drafters:
            drafters.append(drafter)
    found: list[_OfText] = []
    report(0, len(texts))
    count = min(jobs or os.cpu_count() or 1, len(texts))

    def work(text: tuple[str, int]) -> _OfText:
        return _text(replay, methods, drafters, *text)

    for one in in_processes(work, texts, count) if count > 1 and can_fork() else map(work, texts):
        found.append(one)
        report(len(found), len(texts))
    along = [[one.along[number] for one in found] for number in range(len(drafters))]
    tried = []
    for number, method in enumerate(methods):
        totals = Totals.all_of(one.totals[number] for one in found)
        tried.append(Tried(method, totals, best_trees(along[drafters.index(method.drafter)], totals.largest_tree)))
    oracle = best_trees(along[drafters.index(None) if None in drafters else 0])
    return Answer(tried, oracle, len(texts), trace.planned_texts - len(texts), perf_counter() - started)


def _text(
    replay: Replay, methods: Sequence[Method], drafters: Sequence[DrafterSpec | None], name: str, prompt: int
) -> _OfText:
    text, trace = replay.trace.text(name, prompt), replay.trace
    new = text.ids[text.prompt_tokens :].tolist()
    tried = [replay.text(method, text) for method in methods]
    trees = [one.tree if one.drafted is None else one.drafted for replayed in tried for one in replayed.rounds]
    deepest = max(int(tree.depths.max()) for tree in trees)
    along = []
    for drafter in drafters:
        if drafter is None:
            assert text.ranks is not None
            along.append(Along(text.ranks))
        else:
            along.append(Along.of(rows_of(drafter, text, trace, deepest), new))
    return _OfText([Totals.of(one) for one in tried], along)
