"""Several runs side by side: what each method does in one run, to the same method in the first."""

from collections.abc import Mapping, Sequence

import attrs

from talon_core.bench.advice import advice
from talon_core.bench.bootstrap import Interval, median_with_interval
from talon_core.bench.compare import Comparison, Key, compare, mat_ratio, speeds
from talon_core.bench.measurement import Measurement
from talon_core.bench.methods import PLAIN
from talon_core.bench.results import Results

SETTINGS = ("max_new_tokens", "temperature", "seed", "turns", "raw")
MODEL = ("weights_sha256", "chat_template_sha256")
"""What must be the same in two runs for a prompt to be the same task; the model's part is in the environment."""
HINTS = {"weights_sha256": "the model's weights are not the same", "chat_template_sha256": "the chat templates differ"}


@attrs.frozen
class Pair:
    """One method in a run, to the same method in the first run, over the prompts, and their turns, that both decoded.

    Attributes:
        run: the later run's label.
        method: the method's name.
        prompts: how many prompts both decoded.
        ratio: of tokens per second, prompt by prompt. It holds whatever was different on the machine.
        ratio_of_ratios: likewise of the ratios to each run's own baseline, in which cancels what slowed both down;
            None for the baseline itself.
        mat_ratio: of new tokens per target pass, as totals.
    """

    run: str
    method: str
    prompts: int
    ratio: Interval
    ratio_of_ratios: Interval | None
    mat_ratio: Interval | None


@attrs.frozen
class SideBySide:
    """Several runs.

    Attributes:
        runs: each run's comparison, by its label.
        pairs: for each later run and method that the first run has too; none for runs that decoded something else.
        notes: what was paired, what was not and why, and what follows from each run.
    """

    runs: Mapping[str, Comparison]
    pairs: Sequence[Pair]
    notes: Sequence[str]


def side_by_side(results: Sequence[Results], baseline: str = PLAIN) -> SideBySide:
    """Compare runs.

    Args:
        results: at least one; the first is what the others are compared with.
        baseline: a method of each.

    Raises:
        LookupError: if a run has no such method.
        ValueError: if nothing is measured in one yet, or one is there twice.
    """
    labels = _labels(results)
    runs = {label: compare(each, baseline) for label, each in zip(labels, results, strict=True)}
    first, pairs, notes = results[0], list[Pair](), list[str]()
    for label, each in zip(labels[1:], results[1:], strict=True):
        why, sets = _common(first, each)
        found = [] if why else _pairs(label, first, each, sets, baseline)
        if found:
            notes += _noted(label, labels[0], first, each)
        else:
            notes.append(
                f"{label} and {labels[0]} are not paired: {why or 'they have no prompt of a method in common'}"
            )
        pairs += found
    for label, run in runs.items():
        notes += [f"{label}: {sentence}" if len(runs) > 1 else sentence for sentence in advice(run)]
    return SideBySide(runs, pairs, notes)


def _labels(results: Sequence[Results]) -> list[str]:
    """The folders' names where they tell the runs apart, otherwise the folders as they were given."""
    resolved = [each.folder.resolve() for each in results]
    again = next((each.folder for number, each in enumerate(results) if resolved[number] in resolved[:number]), None)
    if again is not None:
        raise ValueError(f"'{again}' is given twice; give each run once")
    names = [path.name for path in resolved]
    return names if len(set(names)) == len(names) else [str(each.folder) for each in results]


def _common(one: Results, other: Results) -> tuple[str, set[str]]:
    """Why two runs cannot be paired, empty if they can, and the sets that are the same in both."""
    settings, others = one.manifest["settings"], other.manifest["settings"]
    differing = [
        f"{name} is {others.get(name)} and {settings.get(name)}" for name in SETTINGS if _differ(name, one, other)
    ]
    differing += [HINTS[name] for name in MODEL if _differ(name, one, other, "environment")]
    hashes, other_hashes = ({each["name"]: each["sha256"] for each in of["sets"]} for of in (settings, others))
    same = {name for name, digest in hashes.items() if other_hashes.get(name) == digest}
    if not same:
        differing.append("no set of prompts is the same in both")
    return "; ".join(differing), same


def _differ(name: str, one: Results, other: Results, part: str = "settings") -> bool:
    return bool(one.manifest[part].get(name) != other.manifest[part].get(name))


def _noted(label: str, first: str, one: Results, other: Results) -> list[str]:
    """What else was different while the two were measured."""
    environment, others = one.manifest["environment"], other.manifest["environment"]
    differing = [
        f"{name} is {others.get(name)} and {environment.get(name)}"
        for name in {**environment, **others}
        if _differ(name, one, other, "environment")
    ]
    parts, other_parts = ({each["name"]: each for each in of.manifest["settings"]["methods"]} for of in (one, other))
    differing += [
        f"what {name} stands for" for name in parts if name in other_parts and parts[name] != other_parts[name]
    ]
    said = f"{label} and {first} were not measured in turns: what slowed the machine in one of them is in their ratios"
    return [said, *([f"{label} and {first} differ in {'; '.join(differing)}"] if differing else [])]


def _pairs(label: str, first: Results, later: Results, sets: set[str], baseline: str) -> list[Pair]:
    turns = _turns(first) & _turns(later)  # a conversation that was broken off lacks some
    then, now = ({key: of for key, of in _by_method(each, sets, turns).items() if of} for each in (first, later))
    found = []
    for method in now:
        if method not in then:
            continue
        mine, theirs = speeds(now[method]), speeds(then[method])
        both = [key for key in mine if key in theirs]
        if both:
            gains = _gains(mine, speeds(now.get(baseline, []))), _gains(theirs, speeds(then.get(baseline, [])))
            twofold = [gains[0][key] / gains[1][key] for key in both if key in gains[0] and key in gains[1]]
            found.append(
                Pair(
                    run=label,
                    method=method,
                    prompts=len(both),
                    ratio=median_with_interval([mine[key] / theirs[key] for key in both]),
                    ratio_of_ratios=median_with_interval(twofold) if twofold and method != baseline else None,
                    mat_ratio=mat_ratio(now[method], then[method]),
                )
            )
    return found


def _gains(of: Mapping[Key, float], reference: Mapping[Key, float]) -> dict[Key, float]:
    return {key: of[key] / reference[key] for key in of if key in reference}


def _turns(results: Results) -> set[tuple[str, int, int]]:
    """What is measured: sets, prompts and turns."""
    return {(one.set, one.prompt, one.turn) for one in results.measurements}


def _by_method(results: Results, sets: set[str], turns: set[tuple[str, int, int]]) -> dict[str, list[Measurement]]:
    names = [method["name"] for method in results.manifest["settings"]["methods"]]
    both = [one for one in results.measurements if one.set in sets and (one.set, one.prompt, one.turn) in turns]
    return {name: [one for one in both if one.method == name] for name in names}
