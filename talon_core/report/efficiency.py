"""Tokens and draft passes for each target pass: of the methods, and of the best that a drafter allows."""

import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from talon_core.bench.measurement import Measurement
from talon_core.bench.methods import PLAIN
from talon_core.bench.results import Results
from talon_core.defaults import AUTO
from talon_core.drafter import DrafterSpec
from talon_core.plugins.registry import load_registry
from talon_core.report.figures import ALL, Budget, Efficiency, Oracle, Point
from talon_core.trace.along import Along
from talon_core.trace.asking import rows_of, superset_of
from talon_core.trace.columns import TextTrace
from talon_core.trace.folder import Trace
from talon_core.trace.methods import own_drafter
from talon_core.trace.oracle import along_rows, best_trees
from talon_core.tree import FloatArray

PRICES = (0.0, *np.geomspace(1e-3, 30.0, 60).tolist())
"""What a draft pass may cost, to a target pass: at each of them somebody who knows the text drafts as much as pays."""
NODES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
SETTINGS = ("max_new_tokens", "temperature", "raw")
"""What must be the same in a trace and a run for their texts to be the same."""


def efficiency_of(measured: Mapping[str, Sequence[Measurement]], sets: Sequence[str]) -> Efficiency | None:
    """Where each method stands; None where nothing was drafted.

    Methods that have prepared something are left out: the passes that it took are beside the target's, and not counted.

    Args:
        measured: by method.
        sets: names of the prompt sets.
    """
    measured = {method: of for method, of in measured.items() if not _prepared(of)}
    points = []
    for method, of in measured.items():
        groups: dict[str | None, Sequence[Measurement]] = {ALL: of}
        groups.update({name: [each for each in of if each.set == name] for name in sets if len(sets) > 1})
        points += [point for name, part in groups.items() if (point := _point(method, name, part)) is not None]
    return Efficiency(points, _cost(measured)) if any(point.method != PLAIN for point in points) else None


def _prepared(of: Sequence[Measurement]) -> bool:
    return any(each.stats.get(name) for each in of for name in ("hits", "misses"))


def _point(method: str, group: str | None, of: Sequence[Measurement]) -> Point | None:
    tokens, passes, drafts, nodes = (
        _total(of, name) for name in ("new_tokens", "target_passes", "draft_passes", "nodes_verified")
    )
    if tokens is None or not passes or drafts is None or nodes is None:
        return None
    return Point(method, group, drafts / passes, tokens / passes, nodes / passes)


def _cost(measured: Mapping[str, Sequence[Measurement]]) -> float | None:
    """What a draft pass takes to a target pass over one node: of the methods that draft with a model, the median."""
    plain = measured.get(PLAIN, ())
    verify, passes = _total(plain, "verify_seconds"), _total(plain, "target_passes")
    found = []
    for of in measured.values():
        draft, drafts = _total(of, "draft_seconds"), _total(of, "draft_passes")
        if draft and drafts:
            found.append(draft / drafts)
    return statistics.median(found) / (verify / passes) if found and verify and passes else None


def _total(of: Sequence[Measurement], name: str) -> float | None:
    values: list[Any] = [each.stats.get(name) for each in of]
    return None if not values or None in values else float(sum(values))


class TooLow(ValueError):
    """A run drafted what a trace does not have, so that the oracle would get too little."""


def oracle_of(trace: Trace, results: Results) -> Oracle:
    """What the drafter of a trace allows on the prompts of a run.

    A drafter of texts is asked as deep as the run's trees with it went.

    Raises:
        TooLow: if trees of the run are deeper than the trace, and it offers the text down to its last layer somewhere,
            or a text that it has was written in fewer passes than the trace allows.
        ValueError: if the trace is of another model, of other settings, or of none of the prompts, or the files that
            its drafter looks things up in were changed; the sentence says what differs.
    """
    check_trace(trace, results)
    wanted = {(each.set, each.prompt) for each in results.measurements}
    same = _same_sets(trace, results)
    texts = {of: trace.text(*of) for of in trace.texts() if of in wanted and of[0] in same}
    if not texts:
        raise ValueError(f"the trace in '{trace.folder}' has none of the prompts of the run in '{results.folder}'")
    drafter = trace["drafter"]["spec"]
    methods = _methods_with(drafter, results.manifest)
    drafted = {name: [each for each in results.measurements if each.method == name] for name in methods}
    drafted = {name: of for name, of in drafted.items() if not _prepared(of)}  # the others have no points
    depths = {name: _deepest(of) for name, of in drafted.items()}
    own = own_drafter(trace, load_registry()) if trace["drafter"]["reads_texts"] else None
    walked = {of: _offers(trace, text, own, max(depths.values(), default=0)) for of, text in texts.items()}
    along = [each.along for each in walked.values()]
    if own is None:
        _check_depth(trace, along, depths)
    ways = {of: cheapest(each, np.array(PRICES)) for of, each in walked.items()}
    _check_passes(trace, texts, ways, drafted)
    best = [best_trees(along, nodes) for nodes in NODES]
    budgets = [Budget(nodes, each.in_hindsight, each.by_the_laws) for nodes, each in zip(NODES, best, strict=True)]
    same_texts = all(_wrote(texts, of) for of in drafted.values())
    return Oracle(drafter, len(texts), _line(walked.values(), ways.values()), budgets, methods, same_texts)


def check_trace(trace: Trace, results: Results) -> None:
    """Refuse a trace of something else; raises as `oracle_of` does."""
    own, settings = trace["settings"], results.manifest["settings"]
    environment = results.manifest["environment"]
    differing = [
        f"{name} is {own[name]} there and {settings.get(name)} in the run"
        for name in SETTINGS
        if own[name] != settings.get(name)
    ]
    if trace["target"]["weights_sha256"] != environment.get("weights_sha256"):
        differing.append("the model's weights are others")
    if differing:
        raise ValueError(
            f"the trace in '{trace.folder}' is not of this run: {'; '.join(differing)}; record one with the "
            "run's model and options"
        )


def _same_sets(trace: Trace, results: Results) -> set[str]:
    """Names of the sets that are the same file in both."""
    own = {each["name"]: each.get("sha256") for each in trace["settings"]["sets"]}
    return {each["name"] for each in results.manifest["settings"]["sets"] if own.get(each["name"]) == each["sha256"]}


def _methods_with(drafter: str, manifest: Mapping[str, Any]) -> list[str]:
    """Methods of the run that draft with this drafter; what was chosen by itself is in the environment."""
    chosen = manifest["environment"].get(AUTO)
    return [
        each["name"]
        for each in manifest["settings"]["methods"]
        if drafter in (each.get("drafter"), chosen if each.get("drafter") == AUTO else None)
    ]


def _deepest(of: Sequence[Measurement]) -> int:
    """Layers of the deepest tree that was verified."""
    return max((row["depth"] for each in of for row in each.acceptance_by_depth or ()), default=0)


def _check_depth(trace: Trace, texts: Sequence[Along], depths: Mapping[str, int]) -> None:
    """Refuse a trace that ends above the run's trees, unless the text is nowhere offered down to its last layer."""
    recorded = trace["settings"]["depth"]
    method, deepest = max(depths.items(), key=lambda each: each[1], default=("", 0))
    if deepest <= recorded:
        return
    for text in texts:
        left = np.arange(len(text))[::-1]  # the last token is no drafted one
        if ((text.reach >= recorded) & (left > recorded)).any():
            raise TooLow(
                f"the trace in '{trace.folder}' goes {recorded} deep, and {method} drafted {deepest} deep; record one "
                f"with --depth {deepest}, or leave --trace out"
            )


def _check_passes(
    trace: Trace,
    texts: Mapping[tuple[str, int], TextTrace],
    ways: Mapping[tuple[str, int], FloatArray],
    drafted: Mapping[str, Sequence[Measurement]],
) -> None:
    """Refuse a trace without something that the run accepted: one of its texts took fewer passes than is possible.

    Args:
        trace: it.
        texts: of it.
        ways: what `cheapest` says of them.
        drafted: what was measured with its drafter, by method.
    """
    prices = np.array(PRICES)
    for method, of in drafted.items():
        for each in of:
            passes, drafts = (each.stats.get(name) for name in ("target_passes", "draft_passes"))
            if passes is None or drafts is None or not _is_text(texts, each):
                continue
            fewest = ways[each.set, each.prompt]
            if (passes + prices * drafts < fewest[0] + prices * fewest[1] - 1e-6).any():
                width = trace["settings"]["width"]
                raise TooLow(
                    f"the trace in '{trace.folder}' has the best {width} of each node's candidates, and {method} "
                    f"accepted others on prompt {each.prompt} of the set '{each.set}'; record one with a --width above "
                    f"{width}, or leave --trace out"
                )


def _is_text(texts: Mapping[tuple[str, int], TextTrace], one: Measurement) -> bool:
    """Whether the text of a trace was written: a rule may have drawn another."""
    text = None if one.turn else texts.get((one.set, one.prompt))
    return text is not None and [*one.token_ids] == text.ids[text.prompt_tokens :].tolist()


def _wrote(texts: Mapping[tuple[str, int], TextTrace], of: Sequence[Measurement]) -> bool:
    """Whether a method wrote just these texts, each as often."""
    counts = Counter((each.set, each.prompt) for each in of)
    often = {counts[text] for text in texts}
    return len(often) == 1 and all(_is_text(texts, each) for each in of)


@attrs.frozen
class Offers:
    """What the drafter offers along a text.

    Attributes:
        along: how far.
        passes: for each position, draft passes of the first layers together, shape `(positions, layers + 1)`.
    """

    along: Along
    passes: FloatArray


def _offers(trace: Trace, text: TextTrace, own: DrafterSpec | None, depth: int) -> Offers:
    """What is offered along a text; a drafter of texts is asked for so many layers, or as many as the trace has."""
    if own is None:
        assert text.along is not None
        rows, found = text.recorded, text.along
    else:
        rows = rows_of(own, text, trace, superset_of(trace, depth))
        found = along_rows(rows, text.ids[text.prompt_tokens :].tolist())
    passes = np.cumsum(np.asarray(rows.passes, dtype=np.float64), axis=1)
    return Offers(found, np.concatenate([np.zeros((len(passes), 1)), passes], axis=1))


def _line(texts: Iterable[Offers], ways: Iterable[FloatArray]) -> list[tuple[float, float]]:
    """Delta and tau of somebody who knows the texts, for each price of a draft pass; where it is dear, none pays.

    Args:
        texts: what is offered along them.
        ways: what `cheapest` says of them at `PRICES`.
    """
    totals = np.sum([*ways], axis=0)  # (2, prices)
    new = sum(len(text.along) for text in texts)
    found = {(float(drafts / passes), float(new / passes)) for passes, drafts in totals.T}
    return sorted(found)


def cheapest(text: Offers, prices: FloatArray) -> FloatArray:
    """Target passes and draft passes of the cheapest way through a text, at each price; shape `(2, prices)`.

    At each position a chain along the text is drafted, as long as pays, or none.
    """
    reach = text.along.reach.tolist()
    best = np.zeros((len(reach) + 1, 3, len(prices)))  # what it costs; target passes; draft passes
    for position in reversed(range(len(reach))):
        longest = min(reach[position], text.passes.shape[1] - 1)
        drafts = text.passes[position, : longest + 1, None]  # (lengths, 1)
        after = best[position + 1 : position + longest + 2]  # (lengths, 3, prices)
        # a draft pass is never for nothing: of ways that cost the same, the one with fewer
        cost = 1 + np.maximum(prices, 1e-9) * drafts + after[:, 0]
        chosen = cost.argmin(axis=0)
        at = np.arange(len(prices))
        best[position] = cost[chosen, at], 1 + after[chosen, 1, at], drafts[chosen, 0] + after[chosen, 2, at]
    return best[0, 1:]
