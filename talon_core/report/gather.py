"""A report out of the folder of a run."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import attrs

from talon_core.bench.advice import advice, named
from talon_core.bench.compare import Comparison, Summary, compare
from talon_core.bench.measurement import Measurement
from talon_core.bench.methods import PLAIN
from talon_core.bench.results import Results
from talon_core.bench.rounds import ROUNDS, KeptRounds, read_rounds
from talon_core.defaults import AUTO
from talon_core.errors import written
from talon_core.report import figures as of
from talon_core.report.efficiency import efficiency_of
from talon_core.report.figures import ALL, DepthShare, Estimate, Progress, Report, Shown
from talon_core.report.progress import command_of, progress_of
from talon_core.report.shapes import Shapes
from talon_core.report.steps import Questions, Steps, choose
from talon_core.report.texts import Texts
from talon_core.report.timing import RoundTimes, time_per_token
from talon_core.rule import MEASURED

ENVIRONMENT = {
    "cpu": "processor",
    "gpu": "GPU",
    "threads": "threads",
    "device": "device",
    "dtype": "dtype",
    "attention": "attention backend",
    "accelerator": "accelerator",
    "architecture": "architecture",
    "parameters": "parameters",
    "torch": "torch",
    "transformers": "transformers",
    "talon": "TALON",
}
"""What is told of the environment, and how it is called."""
SETTINGS = {
    "model": "model",
    "max_new_tokens": "most new tokens",
    "temperature": "temperature",
    "seed": "seed",
    "repetitions": "repetitions",
    "turns": "turns",
    "raw": "without chat template",
}

MOST_SETS = 4
"""Sets whose names are in the title."""


@attrs.frozen
class Besides:
    """What a report is told besides the run.

    Attributes:
        texts: what tokens say.
        questions: what prompts say, as far as that is known.
        oracle: what the drafter of a trace allows; None without one.
        most: prompts that can be stepped through, of the fastest and of the slowest.
        no_texts: why tokens are shown by their ids, in a sentence; empty where they are not.
        no_oracle: why a trace that was given says nothing, as `TooLow` has it; empty where it does, or none was given.
    """

    texts: Texts = attrs.field(factory=Texts)
    questions: Questions = attrs.field(factory=dict)
    oracle: of.Oracle | None = None
    most: int = 3
    no_texts: str = ""
    no_oracle: str = ""


def report_of(results: Results, baseline: str = PLAIN, besides: Besides | None = None) -> Report:
    """Everything that a run tells.

    Args:
        results: the run, over or not.
        baseline: the method that speeds are to.
        besides: what is known from elsewhere.

    Raises:
        LookupError: if there is no such method.
        ValueError: if nothing is measured yet, or the rounds of the run cannot be read.
    """
    besides = besides or Besides()
    comparison = compare(results, baseline)
    progress = progress_of(results)
    measured: dict[str, list[Measurement]] = {method: [] for method in comparison.methods}
    for each in results.measurements:
        measured[each.method].append(each)
    methods = _methods(results, comparison)
    drafting = [one.name for one in methods if one.drafter is not None]
    chosen = choose(measured, _leader(comparison, drafting), besides.most)
    steps = Steps(chosen, measured, besides.texts)
    rounds = _Rounds(drafting, steps)
    if (results.folder / ROUNDS).is_file():
        rounds.read(read_rounds(results.folder), measured)
    names = list(comparison.sets)
    groups = [ALL, *(names if len(names) > 1 else ())]
    speed = _estimates(comparison, lambda summary: summary.ratio, {baseline})
    efficiency = efficiency_of(measured, names)
    time = [one for method in measured if (one := time_per_token(method, measured[method])) is not None]
    timeline = [one for method in measured if (one := rounds.times[method].summary(method)) is not None]
    careful = [sentence.removeprefix("warning: ") for sentence in advice(comparison)]
    report = Report(
        name=results.folder.resolve().name,
        title=_title(results.manifest["settings"], names),
        baseline=baseline,
        methods=methods,
        sets={name: max(one.speed.prompts for one in each.values()) for name, each in comparison.sets.items()},
        progress=progress,
        headline=_headline(comparison, chosen.by),
        notes=[*_unfinished(progress), *careful, *([besides.no_texts] if besides.no_texts else [])],
        facts=_facts(results.manifest, results),
        speed=speed,
        tokens_per_second=_estimates(comparison, lambda summary: summary.speed),
        mat=_estimates(comparison, lambda summary: summary.mat, {PLAIN}),
        depths={method: shares for method in drafting if (shares := _depths(comparison.all[method]))},
        ranks={method: ranks for method in drafting if (ranks := rounds.shapes[method].ranks()) is not None},
        shapes=[
            shape
            for group in groups
            for method in drafting
            if (shape := rounds.shapes[method].shapes(method, group)) is not None
        ],
        time=time,
        timeline=timeline,
        lanes={method: lanes for method in measured if (lanes := rounds.times[method].lanes) is not None},
        efficiency=efficiency,
        oracle=besides.oracle,
        no_oracle=besides.no_oracle,
        walks=steps.walks(drafting, besides.questions) if chosen.units else None,
        missing={},
    )
    return attrs.evolve(report, missing=_missing(report, results))


class _Rounds:
    """What is counted in one reading of the rounds: a file of gigabytes is not read twice, nor are its trees kept."""

    def __init__(self, drafting: Sequence[str], steps: Steps) -> None:
        self._steps = steps
        self._drafting = frozenset(drafting)
        self.shapes = _Made(Shapes)
        self.times = _Made(RoundTimes)

    def read(self, kept: Iterable[KeptRounds], measured: Mapping[str, Sequence[Measurement]]) -> None:
        """Count the rounds of whatever is measured in full."""
        known = {(each.unit, method) for method, own in measured.items() for each in own}
        for one in kept:
            if (one.unit, one.method) not in known:
                continue
            self.times[one.method].add(one.rounds)
            if one.method in self._drafting:
                self.shapes[one.method].add(one.set, one.rounds)
                self._steps.add(one)


class _Made(dict[str, Any]):
    """Something of each method, made when it is first wanted."""

    def __init__(self, make: Callable[[], Any]) -> None:
        self._make = make

    def __missing__(self, method: str) -> Any:
        self[method] = self._make()
        return self[method]


def _title(settings: Mapping[str, Any], sets: Sequence[str]) -> str:
    model = str(settings.get("model", "a model")).rstrip("/").rpartition("/")[2]
    named = [name if name.strip() else written(name) for name in sets]
    shown = [*named[:MOST_SETS], f"{len(sets) - MOST_SETS} more"] if len(sets) > MOST_SETS + 1 else named
    return f"{model} on {', '.join(shown[:-1])}{' and ' if len(shown) > 1 else ''}{shown[-1]}"


def _methods(results: Results, comparison: Comparison) -> list[Shown]:
    said = {each["name"]: each for each in results.manifest["settings"]["methods"]}
    others = [name for name in comparison.methods if name != PLAIN]
    return [
        Shown(
            name,
            named(name, comparison.all[name]),
            0 if name == PLAIN else 1 + others.index(name),
            comparison.all[name].lossless,
            said[name].get("drafter"),
        )
        for name in comparison.methods
    ]


def _leader(comparison: Comparison, drafting: Sequence[str]) -> str:
    """The fastest method that drafts, or the fastest of all."""
    candidates = drafting or [method for method in comparison.methods if method != PLAIN] or [PLAIN]

    def ratio(method: str) -> float:
        found = comparison.all[method].to_plain
        return 0.0 if found is None else found.median

    return max(candidates, key=ratio)


def _estimates(
    comparison: Comparison, figure: Callable[[Summary], Any], left_out: frozenset[str] | set[str] = frozenset()
) -> list[Estimate]:
    groups: dict[str | None, Mapping[str, Summary]] = {ALL: comparison.all}
    if len(comparison.sets) > 1:
        groups.update(comparison.sets)
    return [
        Estimate(group, method, found)
        for group, summaries in groups.items()
        for method, summary in summaries.items()
        if method not in left_out and (found := figure(summary)) is not None
    ]


def _depths(summary: Summary) -> list[DepthShare]:
    return [
        DepthShare(row["depth"], row["tested"], row["accepted"] or 0, row["parent_accepted"] or 0)
        for row in summary.acceptance_by_depth or ()
    ]


def _headline(comparison: Comparison, leader: str) -> str:
    summary = comparison.all[leader]
    prompts, sets = summary.speed.prompts, len(comparison.sets)
    over = f"over {prompts} prompt{'' if prompts == 1 else 's'} of {sets} set{'' if sets == 1 else 's'}"
    if leader == PLAIN or summary.to_plain is None:
        return f"Plain decoding wrote {summary.speed.median:.1f} tokens per second {over}."
    ratio = summary.to_plain
    interval = "" if ratio.low is None else f" (95 % interval {ratio.low:.2f} to {ratio.high:.2f})"
    said = f"{named(leader, summary)} was {ratio.median:.2f} times as fast as plain decoding{interval}, {over}."
    return f"{said} {_equal(comparison)}".strip()


def _equal(comparison: Comparison) -> str:
    """Whether outputs are plain decoding's, of the methods of which that is expected."""
    expected = [
        one for method, one in comparison.all.items() if method != PLAIN and one.lossless not in (False, MEASURED)
    ]
    compared, identical = sum(one.compared for one in expected), sum(one.identical or 0 for one in expected)
    if not compared:
        return ""
    if identical == compared:
        return f"All {compared} outputs of the lossless methods were the same as plain decoding's."
    return f"{compared - identical} of {compared} outputs of the lossless methods differed from plain decoding's."


def _unfinished(progress: Progress) -> list[str]:
    if progress.finished:
        return []
    return [
        f"This run is not over: {progress.done} of {progress.planned} prompts are measured. Go on with it: "
        f"{progress.command}"
    ]


def _facts(manifest: Mapping[str, Any], results: Results) -> list[tuple[str, str]]:
    settings, environment = manifest["settings"], manifest["environment"]
    found = [(called, _said(settings[name])) for name, called in SETTINGS.items() if name in settings]
    found += [
        (f"method {each['name']}", _made_of(each, environment.get(AUTO, AUTO)))
        for each in settings["methods"]
        if each.get("drafter") is not None
    ]
    found += [(called, _said(environment[name])) for name, called in ENVIRONMENT.items() if environment.get(name)]
    for each in settings["sets"]:
        found.append((f"set {each['name']}", f"{each.get('prompts')} prompts, sha256 {each['sha256'][:12]}"))
    for session in manifest["sessions"]:
        commit = session.get("commit")
        found.append(("measured", _said(session.get("started")) + (f", commit {_said(commit)[:13]}" if commit else "")))
    return [*found, ("folder", results.folder.resolve().name)]


def _made_of(method: Mapping[str, Any], chosen: Any) -> str:
    """A method's parts with the defaults filled in, and the drafter that `auto` stood for."""
    drafter = chosen if method["drafter"] == AUTO else method["drafter"]
    parts = [str(part) for part in (drafter, method.get("policy"), method.get("rule")) if part is not None]
    ahead = [str(method[name]) for name in ("schedule", "draft_on") if name in method]
    return " @ ".join([" / ".join(parts), *ahead])


def _said(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) and value > 9999 else str(value)


def _missing(report: Report, results: Results) -> dict[str, str]:
    """Why figures are not there, in the order of the page."""
    drafting = [one for one in report.methods if one.drafter is not None]
    nothing = "No method of this run drafts anything."
    found = dict.fromkeys([of.DEPTHS, of.RANKS, of.SHAPES, of.EFFICIENCY], nothing) if not drafting else {}
    if not (results.folder / ROUNDS).is_file():
        command = command_of(results.manifest["settings"], "FOLDER", rounds=True)
        sentence = f"The run kept no rounds; this command makes a run that does: {command}"
        found.update({name: sentence for name in (of.RANKS, of.SHAPES, of.STEPS) if name not in found})
        found[of.TIMELINE] = found[of.LANES] = sentence
    if not report.mat:
        found[of.MAT] = nothing
    if report.no_oracle:
        found[of.ORACLE] = (
            f"This figure and the oracle's line are left out, as both would be too low: {report.no_oracle}."
        )
    elif report.oracle is None:
        found[of.ORACLE] = (
            "No trace was given: talon trace record keeps what a drafter proposes on the same prompts, and talon bench "
            "report --trace shows here what the best trees would have got."
        )
    if report.efficiency is None and drafting:
        found[of.EFFICIENCY] = (
            "Every method that drafts does so while the target verifies, too, and the passes that it takes are not "
            "counted."
        )
    for name in (of.SPEED, of.DEPTHS, of.RANKS, of.SHAPES, of.TIME, of.TIMELINE, of.LANES, of.EFFICIENCY):
        if not getattr(report, name):
            found.setdefault(name, "The run measured nothing that this is about.")
    return found
