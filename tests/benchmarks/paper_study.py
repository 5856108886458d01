"""TALON against EAGLE-3's tree, as in the paper (arXiv 2601.07353), and how much of the best trees each policy gets.

    python tests/benchmarks/paper_study.py --prompts ./sets --out ./study [--profile NAME ...] [--other-machine]
                                           [--figures docs/images]

Records what the drafter proposes on the prompts at temperature 0 and 1, tries every method on it, and writes
`study.json`, the tables of docs/study.md as `study.md`, and with --figures its pictures. What is there already is not
done again, so it can be interrupted. Speeds are those that the profiles predict; the first one's stand in the tables.
Without --profile one of this machine is measured first, which takes a quiet minute.

How much of the best trees they get is told of every registered policy that does not draw, plugins' too, under the first
profile, at its default options and for some others.
"""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import numpy as np
from leaderboard import policies_of
from study_shares import Share, best_of, shares

from talon_core.bench.bootstrap import Interval, mean_with_interval, with_interval
from talon_core.bench.environment import describe_session
from talon_core.bench.prompts import read_sets
from talon_core.cli.costs import costs_for
from talon_core.cli.progress import progress
from talon_core.defaults import DEFAULT_MODEL
from talon_core.models.loading import load_model
from talon_core.plugins.parts import built
from talon_core.plugins.registry import load_registry
from talon_core.profiles.measure import Measuring, ProfilePlan
from talon_core.profiles.profile import Profile
from talon_core.profiles.store import find_profile, save_profile
from talon_core.runtime.machine import describe_machine
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.methods import parse_methods
from talon_core.trace.oracle import BestTrees
from talon_core.trace.processes import one_by_one
from talon_core.trace.record import Recorder, TracePlan
from talon_core.trace.replay import Replay
from talon_core.trace.sweep import Line, Summary, Sweep, summaries

EAGLE, TALON = "eagle2:budget=60,depth=8", "talon"
"""EAGLE-3's tree as the paper takes it, with nine draft passes a round, and TALON with the paper's options."""

TUNED = "talon:budget=4,top_k=5,mu=0.0959,least=0.101"
"""What `talon tune` has found of TALON on a CPU; see docs/tuning.md."""

BUDGETS, MUS = (32, 48, 64, 80, 96), (0.003, 0.01, 0.02, 0.03, 0.04, 0.06, 0.1)
LAYERS = tuple(f"talon-topk-layers:layers={count}" for count in range(4))
BY_BUDGET = {
    "EAGLE-3's tree": tuple(f"eagle2:budget={nodes},depth=8" for nodes in BUDGETS),
    "TALON": tuple(f"talon:budget={nodes}" for nodes in BUDGETS),
}
BY_MU = tuple(f"talon:mu={mu}" for mu in MUS)
METHODS = (*dict.fromkeys(("none", EAGLE, TALON, *LAYERS, *sum(BY_BUDGET.values(), ()), *BY_MU)),)
"""What is compared as in the paper."""

OTHERS = (*(f"{name}:budget=16" for name in ("eagle2", "talon", "talon-local", "talon-absolute")), TUNED)
"""Of which the study says how much of the best trees they get, besides each policy's default options."""

TEMPERATURES = (0.0, 1.0)
SUPERSET = {"width": max(BUDGETS), "depth": 20, "nodes": 2 * max(BUDGETS)}
"""No node of the largest tree is asked for more candidates. Of a layer twice as many nodes are kept as such a tree may
have: those below the first ten, from which TALON drafts, come behind many others. What is missing is counted."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--drafter", default="eagle3")
    parser.add_argument("--limit", type=int, default=5, help="only the first prompts of each set")
    parser.add_argument("--max-new-tokens", type=int, default=80)
    parser.add_argument("--profile", action="append", help="several times; the first one is that of the tables")
    parser.add_argument("--other-machine", action="store_true", help="profiles are meant, whatever they are of")
    parser.add_argument("--figures", type=Path, default=None, help="a folder for the pictures, study-*.svg")
    given = parser.parse_args()
    registry = load_registry()
    of_best = [*policies_of(registry, draws=False), *OTHERS]
    for name in given.profile or ():  # what is not there, or cannot be made, is refused before an hour of recording
        find_profile(name)
    for policy in of_best:
        built(registry, "tree policy", policy)
    given.out.mkdir(parents=True, exist_ok=True)
    traces = {temperature: recorded(given, temperature) for temperature in TEMPERATURES}
    names = given.profile or [measured(given)]
    profiles = [costs_for(name, [*traces.values()], given.other_machine) for name in names]
    lines = {
        profile.name: swept(given.out, [*traces.values()], profile, [] if place else of_best)
        for place, profile in enumerate(profiles)
    }
    first = lines[profiles[0].name]
    told = {temperature: shares(trace, of_trace(first, trace), of_best) for temperature, trace in traces.items()}
    best = {temperature: best_of(trace) for temperature, trace in traces.items()}
    study = {
        "session": describe_session(),
        "machine": describe_machine(),
        "settings": {
            "drafter": given.drafter,
            "limit": given.limit,
            "max_new_tokens": given.max_new_tokens,
            **SUPERSET,
            "sets": [one["name"] for one in traces[0.0]["settings"]["sets"]],
        },
        "profiles": [{"name": one.name, "origin": one.origin, "machine": dict(one.machine)} for one in profiles],
        "tree_building": {temperature: building(trace) for temperature, trace in traces.items()},
        "rows": {
            name: {
                temperature: [
                    one.as_dict()
                    for one in summaries(of_trace(found, trace))
                    if one.set is None or name == profiles[0].name  # counts of these are the same with any profile
                ]
                for temperature, trace in traces.items()
            }
            for name, found in lines.items()
        },
        "shares": {temperature: [attrs.asdict(one) for one in rows] for temperature, rows in told.items()},
        "best_trees": {temperature: [attrs.asdict(one) for one in trees] for temperature, trees in best.items()},
    }
    tables = written(traces, lines, study["tree_building"], told, best)
    (given.out / "study.json").write_text(json.dumps(study, separators=(",", ":")) + "\n", encoding="utf-8")
    (given.out / "study.md").write_text(tables, encoding="utf-8")
    print(tables)
    if given.figures is not None:
        pictures(traces, first, given.figures)


def recorded(given: argparse.Namespace, temperature: float) -> Trace:
    """The trace at a temperature; what is there of it already is not recorded again."""
    folder = given.out / f"trace-{temperature:g}"
    wanted = TracePlan(
        given.model, tuple(read_sets(given.prompts, given.limit)), given.max_new_tokens, temperature, **SUPERSET
    )
    recorder = Recorder(
        wanted, *load_model(given.model), built(load_registry(), "drafter", given.drafter), given.drafter
    )
    with progress(f"recording at temperature {temperature:g}", "texts") as report:
        recorder.run(folder, report)
    return read_trace(folder)


def measured(given: argparse.Namespace) -> str:
    """The name of a profile of this machine, measured now, for trees of up to 96 nodes."""
    sizes = ProfilePlan((1, 2, 4, 8, 16, 32, 48, 64, 80, 96), (64, 256, 1024), (1,), (1, 2, 4, 8, 16, 32), (4, 16), 5)
    with progress("measuring", "contexts") as report:
        found = Measuring(sizes, *load_model(given.model), given.drafter, given.model).run("study", report)
    save_profile(found)
    return found.name


def swept(out: Path, traces: Sequence[Trace], profile: Profile, more: Sequence[str]) -> list[Line]:
    """Every method on every text, and more of them."""
    methods = [*dict.fromkeys([*METHODS, *more])]
    wanted = Sweep([trace.folder for trace in traces], methods, profile, profile.fingerprint)
    with progress(f"trying methods, {profile.name}", "lines") as report:
        return wanted.run(out / "sweep", one_by_one, report)


def of_trace(lines: Sequence[Line], trace: Trace) -> list[Line]:
    """Those of one trace."""
    return [line for line in lines if line.trace == trace.fingerprint]


def building(trace: Trace, texts: int = 6) -> dict[str, float]:
    """Microseconds that a round takes a policy, the checks of what it answers included: medians over some rounds."""
    replay, taken = Replay(trace), dict[str, list[float]]()
    for name, prompt in trace.texts()[:texts]:
        text = trace.text(name, prompt)
        for method in parse_methods([TALON, EAGLE, TUNED], trace, load_registry()):  # in turn
            for one in replay.text(method, text).rounds:
                taken.setdefault(method.name, []).append(sum(s.seconds for s in one.spans if s.part == "policy"))
    return {name: 1e6 * median(seconds) for name, seconds in taken.items()}


@attrs.frozen
class Compared:
    """TALON by EAGLE-3's tree, prompt by prompt: quotients of totals, with bootstrap intervals."""

    speed: Interval
    mat: Interval
    passes: Interval


def compared(lines: Sequence[Line], one: str, other: str, name: str | None = None) -> Compared:
    """A method by another one, on a set, or on all sets, which then count alike."""
    by_text: dict[tuple[str, int], dict[str, Line]] = {}
    for line in lines:
        if line.method in (one, other):
            by_text.setdefault((line.set, line.prompt), {})[line.method] = line
    groups: dict[str, list[Any]] = {}
    for (of_set, _), pair in by_text.items():
        if name in (None, of_set):
            totals = [pair[method].totals for method in (one, other)]
            row = [[t.predicted_seconds or 0.0, t.target_passes, t.draft_passes / t.target_passes] for t in totals]
            groups.setdefault(of_set, []).append(row)
    arrays = [np.array(rows) for rows in groups.values()]  # (prompts, methods, figures) each

    def quotient(figure: int, over: int) -> Interval:
        def ratio(values: Any) -> Any:
            sums = values[..., figure].sum(axis=1)  # (resamples, methods)
            return sums[:, over] / sums[:, 1 - over]

        return with_interval(arrays[0], ratio) if len(arrays) == 1 else mean_with_interval(arrays, ratio)

    return Compared(quotient(0, 1), quotient(1, 1), quotient(2, 0))


def written(
    traces: Mapping[float, Trace],
    lines: Mapping[str, Sequence[Line]],
    times: Mapping[float, Mapping[str, float]],
    told: Mapping[float, Sequence[Share]],
    best: Mapping[float, Sequence[BestTrees]],
) -> str:
    """The tables, as docs/study.md has them.

    Args:
        traces: by temperature.
        lines: by profile; the first one's speeds are in the tables.
        times: of `building`, by temperature.
        told: of `shares`, likewise.
        best: of `best_of`, likewise.
    """
    first = next(iter(lines.values()))
    parts = []
    for temperature, trace in traces.items():
        found = of_trace(first, trace)
        by_name = {(one.method, one.set): one for one in summaries(found)}
        sets = list(dict.fromkeys(line.set for line in found))
        parts += [f"### Temperature {temperature:g}", _sets(found, by_name, sets)]
        parts += ["TALON by EAGLE-3's tree, by profile:", _profiles(lines, trace)]
        parts += ["Top-K layers:", _table("layers", dict(zip(range(4), LAYERS, strict=True)), by_name)]
        for title, methods in BY_BUDGET.items():
            parts += [f"{title}, by N:", _table("N", dict(zip(BUDGETS, methods, strict=True)), by_name)]
        parts += ["TALON, by mu:", _table("mu", dict(zip(MUS, BY_MU, strict=True)), by_name)]
        taken = ", ".join(f"`{name}` {microseconds:.0f}" for name, microseconds in times[temperature].items())
        parts += [f"Building a tree, in microseconds a round, the engine's checks included:\n{taken}."]
        trees = "; ".join(
            f"of {one.nodes} nodes {one.by_the_laws:.2f} and {one.in_hindsight:.2f}" for one in best[temperature]
        )
        parts += [f"The MAT of the best trees, by the drafter's laws and in hindsight: {trees}."]
        parts += ["Of the oracle:", _shares(told[temperature], sets)]
    return "\n\n".join(parts) + "\n"


def _shown(of: Interval) -> str:
    return f"{of.median:.3f}" + ("" if of.low is None else f" ({of.low:.3f} to {of.high:.3f})")


def _sets(found: Sequence[Line], by_name: Mapping[Any, Summary], sets: Sequence[str]) -> str:
    rows = ["| set | MAT | draft passes a round | tokens/s over plain | speed | MAT | draft passes |", "|" + "---|" * 7]
    for name in (*sets, None):
        own, eagle, plain = by_name[TALON, name], by_name[EAGLE, name], by_name["none", name]
        by = compared(found, TALON, EAGLE, name)
        pairs = [f"{one(eagle):.2f} / {one(own):.2f}" for one in (_mat, _delta)]
        pairs.append(f"{_speed(eagle) / _speed(plain):.2f} / {_speed(own) / _speed(plain):.2f}")
        shown = [_shown(each) for each in (by.speed, by.mat, by.passes)]
        rows.append(f"| {'all' if name is None else f'`{name}`'} | " + " | ".join([*pairs, *shown]) + " |")
    return "EAGLE-3's tree / TALON, and TALON by EAGLE-3's tree with 95 % intervals over prompts:\n\n" + "\n".join(rows)


def _profiles(lines: Mapping[str, Sequence[Line]], trace: Trace) -> str:
    rows = ["| profile | EAGLE-3's tree over plain | TALON over plain | TALON by EAGLE-3's tree |", "|" + "---|" * 4]
    for name, found in lines.items():
        of = {one.method: one for one in summaries(of_trace(found, trace)) if one.set is None}
        plain = _speed(of["none"])
        by = compared(of_trace(found, trace), TALON, EAGLE)
        rows.append(
            f"| `{name}` | {_speed(of[EAGLE]) / plain:.2f} | {_speed(of[TALON]) / plain:.2f} | {_shown(by.speed)} |"
        )
    return "\n".join(rows)


def _table(head: str, methods: Mapping[Any, str], by_name: Mapping[Any, Summary]) -> str:
    rows = [f"| {head} | MAT | draft passes a round | tokens/s over plain | outside |", "|" + "---|" * 5]
    plain = by_name["none", None]
    for value, method in methods.items():
        one = by_name[method, None]
        ratio = _speed(one) / _speed(plain)
        rows.append(f"| {value} | {_mat(one):.3f} | {_delta(one):.2f} | {ratio:.3f} | {one.totals.outside} |")
    return "\n".join(rows)


def _shares(told: Sequence[Share], sets: Sequence[str]) -> str:
    head = ["policy", "MAT", "nodes", "largest", "outside", *(f"`{name}`" for name in sets), "all"]
    rows = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for one in told:
        figures = [f"{one.mat:.2f}", f"{one.nodes:.1f}", str(one.largest), str(one.outside)]
        parts = ["" if share is None else f"{100 * share:.0f} %" for share in (*map(one.sets.get, sets), one.share)]
        rows.append(f"| `{one.method}` | {' | '.join([*figures, *parts])} |")
    return "\n".join(rows)


def _mat(one: Summary) -> float:
    return one.totals.mean_accepted_tokens


def _delta(one: Summary) -> float:
    return one.totals.draft_passes / one.totals.target_passes


def _speed(one: Summary) -> float:
    found = one.totals.predicted_tokens_per_second
    assert found is not None
    return found


def pictures(traces: Mapping[float, Trace], lines: Sequence[Line], folder: Path) -> None:
    """The pictures: speed by N and by mu, and tau against delta as in the paper; a line is the likeliest nodes' tau."""
    import matplotlib
    from matplotlib.figure import Figure

    style = {"svg.hashsalt": "talon", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(10, 6), layout="constrained")
        _draw(figure, traces, lines)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / "study.svg", metadata={"Date": None})


def _draw(figure: Any, traces: Mapping[float, Trace], lines: Sequence[Line]) -> None:
    axes = figure.subplots(2, 3)
    for row, (temperature, trace) in zip(axes, traces.items(), strict=True):
        of = {one.method: one for one in summaries(of_trace(lines, trace)) if one.set is None}
        plain = _speed(of["none"])
        by_budget, by_mu, efficiency = row
        for (title, methods), colour, mark in zip(BY_BUDGET.items(), ("#b3541e", "#1f5fa8"), "so", strict=True):
            by_budget.plot(BUDGETS, [_speed(of[m]) / plain for m in methods], color=colour, marker=mark, label=title)
            points = [(_delta(of[m]), _mat(of[m])) for m in methods]
            efficiency.plot(*zip(*points, strict=True), color=colour, marker=mark, label=title)
            for nodes, point in zip(BUDGETS, points, strict=True):
                efficiency.annotate(str(nodes), point, textcoords="offset points", xytext=(4, 3), fontsize=7)
        by_mu.plot(MUS, [_speed(of[m]) / plain for m in BY_MU], color="#1f5fa8", marker="o")
        by_mu.set_xscale("log")
        best = of[TALON].by_the_laws
        efficiency.axhline(best, color="#555555", linestyle="--", linewidth=1)
        efficiency.annotate(
            "60 likeliest nodes", (0.02, best), xycoords=("axes fraction", "data"), fontsize=7, va="bottom"
        )
        by_budget.set(xlabel="N", ylabel=f"T = {temperature:g}\ntokens/s over plain decoding")
        by_mu.set(xlabel="mu (N = 60)", ylabel="tokens/s over plain decoding")
        efficiency.set(xlabel="delta: draft passes a round", ylabel="tau: tokens a round")
    axes[0][0].legend(frameon=False)


if __name__ == "__main__":
    main()
