"""Methods on all texts of a trace, in several processes."""

from collections.abc import Callable, Collection, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Any, TypeVar

import attrs

from talon_core.costs import Costs
from talon_core.drafter import DrafterSpec
from talon_core.engine.ahead.place import usable_cores
from talon_core.forest_drawer import ForestDrawer
from talon_core.forest_grower import ForestGrower
from talon_core.forest_learner import forest_learner
from talon_core.forest_planner import ForestPlanner
from talon_core.trace.along import Along
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import Trace
from talon_core.trace.oracle import BestTrees, Fewest, best_trees, fastest, fastest_by_the_laws, known_speeds
from talon_core.trace.own_time import to_be_timed, with_own_time
from talon_core.trace.processes import in_processes
from talon_core.trace.replay import Method, Replay, Totals
from talon_core.trace.trying import Done, Trying

Text = TypeVar("Text")
"""However a text is named."""

TOGETHER, SIDE_BY_SIDE = 24, 256
"""Texts of a shard at most: of more at once none takes less time. Where a method's texts go side by side it does, as a
round of each is grown in the time that one takes, nearly."""

A_PROCESS, ALONE = 16, 3
"""A method is tried on so many texts together in the time that another process costs, and on one text by itself in the
time of so many together."""


@attrs.frozen
class Tried:
    """A method on all texts.

    Attributes:
        method: it.
        totals: what it did.
        oracle: the best trees of as many nodes as its largest has, with its drafter.
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
                **one.totals.as_dict(),
                "oracle": {name: value for name, value in attrs.asdict(one.oracle).items() if value is not None},
            }
            for one in self.tried
        ]
        hindsight = {"mean_accepted_tokens": self.oracle.in_hindsight, **known_speeds(self.oracle)}
        counts = {"texts": self.texts, "missing": self.missing}
        return {"methods": methods, "oracle": hindsight, **counts, "seconds": self.seconds}


def replayed(
    trace: Trace,
    methods: Sequence[Method],
    jobs: int | None = None,
    report: Callable[[int, int], None] = lambda done, all_: None,
    costs: Costs | None = None,
    time_all: bool = False,
    timed: bool = True,
) -> Answer:
    """Try methods on every text of a trace that is there.

    Args:
        trace: the trace.
        methods: at least one.
        jobs: processes; by default one for each core, or fewer where there is little to do. There is one where the
            system cannot fork, and where torch is loaded, whose threads a fork does not have.
        report: called with the number of texts that are done and of all.
        costs: what passes take, on the machine that is asked about; None if nobody wants to know.
        time_all: with costs, take the policies' own time on all texts and not on some, which takes several times as
            long.
        timed: with costs, take the policies' own time at all; without it, it is by the costs, as in `Replay`.

    Raises:
        ValueError: if a method cannot be tried on this trace, it has no texts, or a file of it is none.
        PluginError: if a plugin breaks its contract; the message names it.
    """
    started = perf_counter()
    replay, texts = Replay(trace, costs, timed), trace.texts()
    for method in methods:
        replay.check(method)
    if not texts:
        raise ValueError(f"no text of the trace in '{trace.folder}' is there")
    report(0, len(texts))
    workers = min(jobs or _processes(methods, len(texts), time_all), len(texts))
    waits = any(not isinstance(method.policy, ForestGrower | ForestDrawer | ForestPlanner | None) for method in methods)
    shards = dealt(texts, workers, SIDE_BY_SIDE if waits else TOGETHER)
    asked = texts if time_all else to_be_timed(texts)
    found: dict[tuple[str, int], list[tuple[Totals, Along, Fewest | None]]] = {}

    def work(shard: Sequence[tuple[str, int]]) -> list[list[tuple[Totals, Along, Fewest | None]]]:
        read = [trace.text(*text) for text in shard]
        return with_fewest(replay, methods, read, tried_on(replay, methods, read, asked))

    for place, own in in_processes(workers)(work, shards):
        found |= zip(shards[place], own, strict=True)
        report(len(found), len(texts))
    of_texts = [found[text] for text in texts]
    tried, offers = [], {}
    for method, each in zip(methods, zip(*of_texts, strict=True), strict=True):
        done, along, fewest = zip(*each, strict=True)
        totals, seconds = Totals.all_of(with_own_time(done)), Fewest.all_of(fewest)
        offers[method.name] = along, None, seconds
        tried.append(Tried(method, totals, best_trees(along, totals.largest_tree, seconds)))
    first = next((method for method in methods if method.drafter in (None, method.recorded)), methods[0])
    missing = trace.planned_texts - len(texts)
    return Answer(tried, best_trees(*offers[first.name]), len(texts), missing, perf_counter() - started)


def with_fewest(
    replay: Replay,
    methods: Sequence[Method],
    texts: Sequence[TextTrace],
    done: Sequence[Sequence[tuple[Totals, Along]]],
) -> list[list[tuple[Totals, Along, Fewest | None]]]:
    """What methods did on texts, and the fewest seconds with the drafter of each; None where no costs are known.

    Args:
        replay: of the trace.
        methods: that were tried.
        texts: on which.
        done: what `tried_on` said of them.
    """
    costs = replay.costs
    if costs is None:
        return [[(totals, along, None) for totals, along in of_text] for of_text in done]
    prompts = [text.prompt_tokens for text in texts]
    known, by_method = dict[tuple[tuple[int, ...], float], list[Fewest]](), list[list[Fewest]]()
    for method, of_method in zip(methods, zip(*done, strict=True), strict=True):
        alongs = [along for _, along in of_method]
        asked_here = method.drafter is not None and replay.timed  # what it takes here may be next to nothing
        layer = 0.0 if asked_here else replay.costs_of(method).draft(1, 1) or 0.0
        question = tuple(map(id, alongs)), layer
        if question not in known:
            each = (find(alongs, prompts, costs, layer) for find in (fastest, fastest_by_the_laws))
            known[question] = [*map(Fewest, *each)]
        by_method.append(known[question])
    return [
        [(*one, fewest) for one, fewest in zip(of_text, own, strict=True)]
        for of_text, own in zip(done, zip(*by_method, strict=True), strict=True)
    ]


def _processes(methods: Sequence[Method], texts: int, time_all: bool) -> int:
    """One for each core, or fewer where each would have less to do than it costs."""
    alone = sum(time_all or not _goes_together(method) for method in methods)
    work = texts * (len(methods) + (ALONE - 1) * alone)
    return min(usable_cores(), 1 + work // A_PROCESS)


def _goes_together(method: Method) -> bool:
    """Whether a method's policy chooses for many trees at once, as far as that is known before it begins."""
    policy = method.policy
    able = policy is None or isinstance(policy, ForestGrower | ForestPlanner) or forest_learner(policy) is not None
    draws = isinstance(policy, ForestDrawer) and method.rule.tests is not None and not method.rule.follows_target
    return method.drafter is None and (able or draws)


def dealt(texts: Sequence[Text], workers: int, most: int = TOGETHER) -> list[list[Text]]:
    """Texts in as few shards as there are workers, or several for each where these would have more than so many.

    Those of a shard stand behind each other, so that where sets of equal sizes take turns, as in `Trace.texts`, it has
    as much of each.

    Args:
        texts: at least one.
        workers: at least 1.
        most: texts of a shard.
    """
    shards = min(workers * -(-len(texts) // (workers * most)), len(texts))
    bounds = [place * len(texts) // shards for place in range(1 + shards)]
    return [[*texts[first:end]] for first, end in pairwise(bounds)]


def tried_on(
    replay: Replay,
    methods: Sequence[Method],
    texts: Sequence[TextTrace],
    timed: Collection[tuple[str, int]],
) -> list[list[tuple[Totals, Along]]]:
    """Try methods on some texts.

    Args:
        replay: of the trace that they are in.
        methods: at least one; each has passed `Replay.check`.
        texts: of it.
        timed: those on which the policies' own time is taken, each by its prompt set and the prompt's index in it; on
            others it is as well where nothing is saved by leaving it out.

    Returns:
        For each text, what each method did, without the policy's own time where it was not taken, and how the offers
        of its drafter lie along the text.

    Raises:
        ValueError: if a text was changed since it was recorded.
        PluginError: if a plugin breaks its contract; the message names it.
    """
    trying = Trying(replay, texts, [place for place, text in enumerate(texts) if (text.set, text.prompt) in timed])
    by_text = zip(*(trying.done(method) for method in methods), strict=True)
    return [
        [(one.totals, along) for one, along in zip(done, _along(trying, methods, place, done), strict=True)]
        for place, done in enumerate(by_text)
    ]


def _along(trying: Trying, methods: Sequence[Method], place: int, done: Sequence[Done]) -> list[Along]:
    """How the offers of each method's drafter lie along a text."""
    deepest = max(one.deepest for one in done)
    offers: list[tuple[DrafterSpec | None, Along]] = []  # drafters cannot be hashed
    for drafter in (method.drafter for method in methods):
        if all(known != drafter for known, _ in offers):
            offers.append((drafter, trying.along(drafter, place, deepest)))
    return [next(own for drafter, own in offers if drafter == method.drafter) for method in methods]
