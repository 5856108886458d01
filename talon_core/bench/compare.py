"""What came out of a run: ratios prompt by prompt with their intervals, tokens per pass, and whether outputs agree."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from talon_core.basics.suggestions import did_you_mean
from talon_core.bench.bootstrap import Interval, mean_with_interval, median_with_interval, with_interval
from talon_core.bench.measurement import Measurement, first_difference, shares_by_depth
from talon_core.bench.methods import PLAIN
from talon_core.bench.peers import unlike
from talon_core.bench.results import Results
from talon_core.rule import Lossless
from talon_core.tree import FloatArray

FEW = 10
"""With fewer prompts than this an interval says little."""

Key = tuple[str, int]
"""A prompt: its set and its index there. The turns of a conversation are one prompt: they are not independent."""


@attrs.frozen
class Difference:
    """One output that is not plain decoding's.

    Attributes:
        set: the prompt set's name.
        prompt: the prompt's index.
        turn: the turn's index.
        repetition: which one.
        first_difference: index of the first token that differs.
        logit_gap: the difference of the two tokens' logits there, as it was measured; None if it is not known.
    """

    set: str
    prompt: int
    turn: int
    repetition: int
    first_difference: int
    logit_gap: float | None


@attrs.frozen
class Summary:
    """One method on some prompts. What a peer, or transformers' own `generate`, does not tell is None.

    Attributes:
        lossless: whether the method is, "claimed", or "measured" for a peer.
        unlike: for a peer, in what it is not like the other methods, a word or two each, such as "q4_1".
        measurements: how many there are.
        tokens_per_second: median over prompts, of each prompt's median over repetitions.
        speed: the same with its interval.
        after_prompt: likewise without the seconds in which prompts were read; a peer's are by its own clock. None where
            that is not known.
        ratio: to the baseline, in tokens per second, prompt by prompt; None if there is no prompt that both decoded.
        to_plain: the same to plain decoding, whatever the baseline is.
        more_prompts: how many more prompts would decide on which side of 1 `ratio` is, an estimate; 0 where that is
            decided, None where it cannot be estimated.
        mean_accepted_tokens: all new tokens over all target passes.
        mat: the same with its interval.
        mat_ratio: to the baseline's `mean_accepted_tokens`, over the prompts that both decoded; resamples draw prompts,
            with what both made of them.
        accepted_ratio: likewise of drafted tokens that were accepted for each target pass, without the bonus token.
        mean_of_sets: mean over the prompt sets of each set's `mean_accepted_tokens`.
        mat_of_sets: the same with its interval.
        draft_passes_per_round: all draft passes over all rounds.
        hits: of the rounds for which something was being prepared, the share that began with it; None where nothing
            was.
        outside_target: share of the seconds that were spent neither in the prefill nor in the target's passes.
        identical: how many outputs are plain decoding's; None where tokens are drawn.
        compared: how many outputs were compared with plain decoding's.
        differences: those that are not the same.
        acceptance_by_depth: see `shares_by_depth`.
    """

    lossless: Lossless
    unlike: Sequence[str]
    measurements: int
    tokens_per_second: float
    speed: Interval
    after_prompt: Interval | None
    ratio: Interval | None
    to_plain: Interval | None
    more_prompts: int | None
    mean_accepted_tokens: float | None
    mat: Interval | None
    mat_ratio: Interval | None
    accepted_ratio: Interval | None
    mean_of_sets: float | None
    mat_of_sets: Interval | None
    draft_passes_per_round: float | None
    hits: float | None
    outside_target: float | None
    identical: int | None
    compared: int
    differences: Sequence[Difference]
    acceptance_by_depth: Sequence[Mapping[str, Any]] | None


@attrs.frozen
class Comparison:
    """A run, compared.

    Attributes:
        baseline: the method that ratios are to.
        methods: the names, in the manifest's order.
        sets: for each prompt set and method a summary.
        all: for each method a summary of all prompts.
        commits: at which it was measured, each once; several where it was gone on with at another one.
    """

    baseline: str
    methods: Sequence[str]
    sets: Mapping[str, Mapping[str, Summary]]
    all: Mapping[str, Summary]
    commits: Sequence[str] = ()

    def as_dict(self) -> dict[str, Any]:
        """It as what JSON knows."""
        return attrs.asdict(self)


def compare(results: Results, baseline: str = PLAIN) -> Comparison:
    """Compare the methods of a run.

    Args:
        results: of a finished run, or of one that is still going on.
        baseline: what the ratios are to; outputs are compared with plain decoding's whatever it is.

    Raises:
        LookupError: if there is no such method.
        ValueError: if nothing is measured yet.
    """
    settings = results.manifest["settings"]
    environment = results.manifest["environment"]
    lossless = {method["name"]: method["lossless"] for method in settings["methods"]}
    marks = {name: unlike(peer, environment) for name, peer in environment.get("peers", {}).items()}
    if baseline not in lossless:
        there = f"{did_you_mean(baseline, lossless)}there are: {', '.join(lossless)}"
        raise LookupError(f"no method '{baseline}' in '{results.folder}'; {there}")
    if not results.measurements:
        raise ValueError(f"nothing is measured in '{results.folder}' yet; let talon bench run finish a prompt")
    greedy = not settings["temperature"]
    measured = {each.set for each in results.measurements}
    names = [each["name"] for each in settings["sets"] if each["name"] in measured]
    sets = {
        name: _summaries([each for each in results.measurements if each.set == name], lossless, marks, baseline, greedy)
        for name in names
    }
    together = _summaries(results.measurements, lossless, marks, baseline, greedy)
    commits = [str(session["commit"]) for session in results.manifest["sessions"] if session.get("commit")]
    return Comparison(baseline, list(lossless), sets, together, [*dict.fromkeys(commits)])


def _summaries(
    measurements: Sequence[Measurement],
    lossless: Mapping[str, Lossless],
    marks: Mapping[str, Sequence[str]],
    baseline: str,
    greedy: bool,
) -> dict[str, Summary]:
    by_method: dict[str, list[Measurement]] = {method: [] for method in lossless}
    for measurement in measurements:
        by_method[measurement.method].append(measurement)
    plain, reference = by_method[PLAIN], by_method[baseline]
    return {
        method: _summary(of, lossless[method], marks.get(method, ()), reference, plain, greedy)
        for method, of in by_method.items()
    }


def _summary(
    of: Sequence[Measurement],
    lossless: Lossless,
    marks: Sequence[str],
    reference: Sequence[Measurement],
    plain: Sequence[Measurement],
    greedy: bool,
) -> Summary:
    own = {each.unit: each for each in plain}
    compared = [each for each in of if each.unit in own] if greedy else []
    differences = [found for each in compared if (found := _difference(each, own[each.unit])) is not None]
    speed = median_with_interval([*speeds(of).values()])
    ratio = speed_ratio(of, reference)
    sets: dict[str, list[Measurement]] = defaultdict(list)
    for each in of:
        sets[each.set].append(each)
    totals = [_totals(part) for part in sets.values()]
    known = [part for part in totals if part is not None]
    mat = with_interval(np.concatenate(known), _tokens_per_pass) if len(known) == len(totals) else None
    mat_of_sets = mean_with_interval(known, _tokens_per_pass) if len(known) == len(totals) else None
    return Summary(
        lossless=lossless,
        unlike=marks,
        measurements=len(of),
        tokens_per_second=speed.median,
        speed=speed,
        after_prompt=_after_prompt(of),
        ratio=ratio,
        to_plain=ratio if reference is plain else speed_ratio(of, plain),
        more_prompts=more_prompts(ratio),
        mean_accepted_tokens=None if mat is None else mat.median,
        mat=mat,
        mat_ratio=mat_ratio(of, reference),
        accepted_ratio=mat_ratio(of, reference, bonus=0),
        mean_of_sets=None if mat_of_sets is None else mat_of_sets.median,
        mat_of_sets=mat_of_sets,
        draft_passes_per_round=_quotient(of, "draft_passes", "rounds"),
        hits=_hits(of),
        outside_target=_outside(of),
        identical=len(compared) - len(differences) if greedy else None,
        compared=len(compared),
        differences=differences,
        acceptance_by_depth=shares_by_depth(of),
    )


def speeds(measurements: Iterable[Measurement], without: str | None = None) -> dict[Key, float]:
    """Tokens per second of each prompt: all turns of a repetition together, then the median over repetitions.

    Args:
        measurements: of one method.
        without: a part of the seconds that does not count, by its name in `Stats`.
    """
    totals: dict[Key, dict[int, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0]))
    for each in measurements:
        total = totals[each.set, each.prompt][each.repetition]
        total[0] += each.stats["new_tokens"]
        total[1] += each.stats["seconds"] - (each.stats[without] if without is not None else 0.0)
    return {
        key: statistics.median(tokens / seconds for tokens, seconds in repetitions.values())
        for key, repetitions in totals.items()
    }


def _after_prompt(of: Sequence[Measurement]) -> Interval | None:
    """Tokens per second once the prompt was read; None where that is not known, or took no less than all."""
    read = [each.stats.get("prefill_seconds") for each in of]
    if any(seconds is None or seconds >= each.stats["seconds"] for seconds, each in zip(read, of, strict=True)):
        return None
    return median_with_interval([*speeds(of, "prefill_seconds").values()])


def speed_ratio(of: Sequence[Measurement], reference: Sequence[Measurement]) -> Interval | None:
    """Tokens per second, to the reference's, prompt by prompt; None if there is no prompt that both decoded."""
    mine, theirs = speeds(of), speeds(reference)
    ratios = [mine[key] / theirs[key] for key in mine if key in theirs]
    return median_with_interval(ratios) if ratios else None


def more_prompts(ratio: Interval | None) -> int | None:
    """How many more prompts would decide on which side of 1 a ratio is: see `Summary`."""
    if ratio is None or ratio.low is None:
        return None
    needed = ratio.prompts_to_decide
    if needed is None:
        return 0
    return math.ceil(max(needed, FEW)) - ratio.prompts if math.isfinite(needed) else None


def _totals(of: Sequence[Measurement]) -> FloatArray | None:
    """New tokens and target passes of each prompt, shape `(prompts, 2)`; None if some measurement lacks them."""
    totals = [*_tokens_and_passes(of).values()]
    return np.array(totals, dtype=np.float64) if all(tokens and passes for tokens, passes in totals) else None


def _tokens_per_pass(drawn: FloatArray) -> FloatArray:
    """From shape `(resamples, prompts, 2)` to `(resamples,)`."""
    tokens, passes = drawn.sum(axis=1).T
    ratios: FloatArray = tokens / passes
    return ratios


def mat_ratio(of: Sequence[Measurement], reference: Sequence[Measurement], bonus: int = 1) -> Interval | None:
    """Tokens for each target pass, to the reference's; `bonus` is 0 to leave the bonus token of each pass out."""
    mine, theirs = _tokens_and_passes(of), _tokens_and_passes(reference)
    both = [[*mine[key], *theirs[key]] for key in mine if key in theirs]
    if not both or any(None in counts for counts in both):
        return None
    totals = np.array(both, dtype=np.float64)  # (prompts, 4)

    def figure(drawn: FloatArray) -> FloatArray:
        tokens, passes, other_tokens, other_passes = drawn.sum(axis=1).T
        unpaid = 1 - bonus
        ratios: FloatArray = (tokens / passes - unpaid) / (other_tokens / other_passes - unpaid)
        return ratios

    if not bonus and (totals[:, 2] <= totals[:, 3]).all():
        return None  # the reference accepts nothing
    with np.errstate(divide="ignore", invalid="ignore"):
        found = with_interval(totals, figure)
    return found if np.isfinite([found.median, found.low or 0.0, found.high or 0.0]).all() else None


def _tokens_and_passes(measurements: Sequence[Measurement]) -> dict[Key, list[float | None]]:
    """New tokens and target passes of each prompt, all turns and repetitions together."""
    parts: dict[Key, list[Measurement]] = defaultdict(list)
    for each in measurements:
        parts[each.set, each.prompt].append(each)
    return {key: [_total(part, "new_tokens"), _total(part, "target_passes")] for key, part in parts.items()}


def _difference(one: Measurement, plain: Measurement) -> Difference | None:
    """Where two outputs part; from the tokens themselves, not from what a line says of them."""
    where = first_difference(one.token_ids, plain.token_ids)
    if where is None:
        return None
    return Difference(one.set, one.prompt, one.turn, one.repetition, where, one.logit_gap)


def _total(of: Sequence[Measurement], name: str) -> float | None:
    """The sum of a figure, None if some measurement lacks it."""
    values = [each.stats.get(name) for each in of]
    return None if any(value is None for value in values) else float(sum(filter(None, values)))


def _quotient(of: Sequence[Measurement], above: str, below: str) -> float | None:
    numerator, denominator = _total(of, above), _total(of, below)
    return None if numerator is None or not denominator else numerator / denominator


def _hits(of: Sequence[Measurement]) -> float | None:
    hits, misses = (sum(each.stats.get(name) or 0 for each in of) for name in ("hits", "misses"))
    return hits / (hits + misses) if hits + misses else None


def _outside(of: Sequence[Measurement]) -> float | None:
    seconds, prefill, verify = (_total(of, f"{part}seconds") for part in ("", "prefill_", "verify_"))
    return None if prefill is None or verify is None or not seconds else 1 - (prefill + verify) / seconds
