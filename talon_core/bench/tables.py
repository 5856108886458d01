"""Comparisons for people: tables, and sentences below them. On a terminal at most 120 columns wide."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from talon_core.basics.numerals import counted
from talon_core.bench.advice import advice, named
from talon_core.bench.between import SideBySide
from talon_core.bench.bootstrap import Interval
from talon_core.bench.compare import Comparison, Summary
from talon_core.bench.methods import PLAIN
from talon_core.bench.sheets import Sheet, escaped_latex, escaped_markdown
from talon_core.errors import printable
from talon_core.rule import MEASURED

SETS_PER_TABLE = 6
DEPTHS = 8
DIFFERENCES = 3
"""How many of a method's differences are told one by one."""
BELOW = "with each figure its 95 % bootstrap interval"
RATIO = "ratio: of tokens/s, prompt by prompt; MAT: tokens per target pass"


def tables(compared: Comparison | SideBySide) -> Iterator[RenderableType]:
    """What rich prints: tables, then sentences."""
    for sheet in sheets(compared):
        yield sheet.on_terminal()
    for sentence, style in sentences(compared):
        yield Text(printable(sentence), style=style)


def as_markdown(compared: Comparison | SideBySide) -> str:
    """The same as a Markdown document."""
    said = [f"- {escaped_markdown(sentence)}" for sentence, _ in sentences(compared)]
    return (
        "\n\n".join([*(sheet.as_markdown() for sheet in sheets(compared)), *(["\n".join(said)] if said else [])]) + "\n"
    )


def as_latex(compared: Comparison | SideBySide) -> str:
    """The same as LaTeX, for a document that uses the package booktabs."""
    said = [escaped_latex(sentence) for sentence, _ in sentences(compared)]
    return "\n\n".join(["% \\usepackage{booktabs}", *(sheet.as_latex() for sheet in sheets(compared)), *said]) + "\n"


def sheets(compared: Comparison | SideBySide) -> Iterator[Sheet]:
    """The tables: of one run all of them, of several what tells them apart."""
    if isinstance(compared, SideBySide):
        yield _beside(compared)
        if compared.pairs:
            yield _between(compared)
    else:
        yield from _of_run(compared)


def sentences(compared: Comparison | SideBySide) -> Iterator[tuple[str, str]]:
    """What is said below the tables, each sentence with its style on a terminal."""
    if isinstance(compared, SideBySide):
        for label, run in compared.runs.items():
            yield from ((f"{label}: {sentence}", style) for sentence, style in _differences(run.all))
        yield from ((note, "yellow") for note in compared.notes)
    else:
        yield from _differences(compared.all)
        yield from ((sentence, "yellow") for sentence in advice(compared))


def _of_run(comparison: Comparison) -> Iterator[Sheet]:
    """Over all prompts, by set where there are several, by depth where something was drafted."""
    yield _overall(comparison)
    if any(one.lossless == MEASURED and one.after_prompt is not None for one in comparison.all.values()):
        yield _after_prompts(comparison)
    if comparison.baseline != PLAIN and comparison.all[comparison.baseline].mat_ratio is not None:
        yield _mat_ratios(comparison)
    if len(comparison.sets) > 1:
        names = list(comparison.sets)
        for start in range(0, len(names), SETS_PER_TABLE):
            yield _ratios(comparison, names[start : start + SETS_PER_TABLE])
            yield _accepted(comparison, names[start : start + SETS_PER_TABLE])
    drafting = {method: summary for method, summary in comparison.all.items() if summary.acceptance_by_depth}
    if drafting:
        yield _where_tested(drafting)
        yield _where_offered(drafting)


def _overall(comparison: Comparison) -> Sheet:
    prompts = max(summary.speed.prompts for summary in comparison.all.values())
    ahead = any(summary.hits is not None for summary in comparison.all.values())
    rows = []
    for method, summary in comparison.all.items():
        hits = [_percent(summary.hits, ".0f")] if ahead else []
        same = "drawn" if summary.identical is None else f"{summary.identical}/{summary.compared}"
        rows.append(
            [
                named(method, summary),
                _figure(summary.speed, ".1f"),
                _figure(summary.ratio, ".2f", "x"),
                _figure(summary.mat),
                _number(summary.draft_passes_per_round),
                *hits,
                _percent(summary.outside_target, ".1f"),
                same,
            ]
        )
    heads = ["drafts per round", *(["hits"] if ahead else []), "outside target", "equal"]
    told = "; hits: rounds that began with what was prepared" if ahead else ""
    equal = f"equal: outputs that are the same as with {PLAIN}"
    return Sheet(
        f"{counted(prompts, 'prompt')} of {counted(len(comparison.sets), 'set')}; ratios to {comparison.baseline}",
        ["method", "tokens/s", "ratio", "MAT", *heads],
        rows,
        dim=frozenset(number for number, method in enumerate(comparison.all) if method == comparison.baseline),
        caption=f"{BELOW}; {RATIO}{told}; outside target: of the time; {equal}",
    )


def _after_prompts(comparison: Comparison) -> Sheet:
    """Speed with and without the reading of prompts, of the methods that say how long it took."""
    return Sheet(
        "without the prompts",
        ["method", "tokens/s", "after the prompt"],
        [
            [named(method, one), _figure(one.speed, ".1f"), _figure(one.after_prompt, ".1f")]
            for method, one in comparison.all.items()
            if one.after_prompt is not None
        ],
        caption=f"{BELOW}; after the prompt: all new tokens over the rest of the time; of peers, as they say",
    )


def _mat_ratios(comparison: Comparison) -> Sheet:
    """Tokens for each target pass, to the baseline's, with the bonus token (MAT) and without."""
    return Sheet(
        f"tokens per target pass, to {comparison.baseline}",
        ["method", "MAT ratio", "accepted ratio"],
        [
            [named(method, one), _figure(one.mat_ratio, ".2f", "x"), _figure(one.accepted_ratio, ".2f", "x")]
            for method, one in comparison.all.items()
            if one.mat_ratio is not None
        ],
        caption=f"{BELOW}; accepted ratio: without the bonus token of each pass",
    )


def _ratios(comparison: Comparison, names: Sequence[str]) -> Sheet:
    """Ratios and their intervals, by set."""
    sizes = {name: max(one.speed.prompts for one in comparison.sets[name].values()) for name in names}
    return Sheet(
        f"ratios to {comparison.baseline} by set (prompts)",
        ["method", *(f"{name} ({sizes[name]})" for name in names)],
        [
            [named(method, one), *(_figure(comparison.sets[name][method].ratio, ".2f", "x") for name in names)]
            for method, one in comparison.all.items()
        ],
    )


def _accepted(comparison: Comparison, names: Sequence[str]) -> Sheet:
    """Tokens per target pass by set, over all prompts, and as the mean of the sets, in which each set counts alike."""
    return Sheet(
        "MAT by set",
        ["method", *names, "all prompts", "mean of sets"],
        [
            [
                named(method, one),
                *(_figure(comparison.sets[name][method].mat) for name in names),
                _figure(one.mat),
                _figure(one.mat_of_sets),
            ]
            for method, one in comparison.all.items()
            if one.mat is not None
        ],
    )


def _where_tested(summaries: Mapping[str, Summary]) -> Sheet:
    return _by_depth(
        summaries,
        "accepted by depth, where the parent was accepted and had children",
        "rate_where_tested",
        "tested",
        "with each share: rounds in which a child was accepted / in which the last accepted node had one",
    )


def _where_offered(summaries: Mapping[str, Summary]) -> Sheet:
    return _by_depth(
        summaries,
        "accepted by depth, of the rounds whose tree was that deep anywhere",
        "rate",
        "offered",
        "a policy that goes deep where the drafter is sure has chosen these rounds: compare methods by the table above",
    )


def _by_depth(summaries: Mapping[str, Summary], title: str, rate: str, below: str, caption: str) -> Sheet:
    deepest = max(len(summary.acceptance_by_depth or ()) for summary in summaries.values())
    shown = min(deepest, DEPTHS)
    rows = []
    for method, summary in summaries.items():
        known = (summary.acceptance_by_depth or ())[:shown]
        cells = [
            "-" if row[rate] is None else f"{100 * row[rate]:.0f}%\n{row['accepted']}/{row[below]}" for row in known
        ]
        rows.append([named(method, summary), *cells, *[""] * (shown - len(cells))])
    none = ["-: no round had such a node, or the run did not count them"] if any("-" in row for row in rows) else []
    empty = ["empty: no tree of the method was that deep"] if any("" in row for row in rows) else []
    more = f" (to depth {shown} of {deepest})" if deepest > shown else ""
    heads = ["method", *(str(depth) for depth in range(1, shown + 1))]
    return Sheet(title + more, heads, rows, caption="; ".join([caption, *none, *empty]))


def _beside(compared: SideBySide) -> Sheet:
    """Every method of every run; ratios are to the run's own baseline, measured in turns with it."""
    baseline = next(iter(compared.runs.values())).baseline
    rows = [
        [
            label,
            named(method, summary),
            str(summary.speed.prompts),
            _figure(summary.speed, ".1f"),
            _figure(summary.ratio, ".2f", "x"),
            _figure(summary.mat),
            "drawn" if summary.identical is None else f"{summary.identical}/{summary.compared}",
        ]
        for label, run in compared.runs.items()
        for method, summary in run.all.items()
    ]
    return Sheet(
        f"{len(compared.runs)} runs side by side; ratios to {baseline} of the same run",
        ["run", "method", "prompts", "tokens/s", "ratio", "MAT", "equal"],
        rows,
        names=2,
        caption=f"{BELOW}; {RATIO}; equal: outputs that are the same as with {PLAIN}",
    )


def _between(compared: SideBySide) -> Sheet:
    first = next(iter(compared.runs))
    return Sheet(
        f"the same method to {first}, prompt by prompt",
        ["run", "method", "prompts", "tokens/s", "ratio", "MAT"],
        [
            [
                pair.run,
                named(pair.method, compared.runs[pair.run].all[pair.method]),
                str(pair.prompts),
                _figure(pair.ratio, ".2f", "x"),
                _figure(pair.ratio_of_ratios, ".2f", "x"),
                _figure(pair.mat_ratio, ".2f", "x"),
            ]
            for pair in compared.pairs
        ],
        names=2,
        caption=f"{BELOW}; ratio: of the two runs' ratios, in which cancels what slowed method and baseline alike",
    )


def _differences(summaries: Mapping[str, Summary]) -> Iterator[tuple[str, str]]:
    """What differs from plain decoding; of a lossy method that is to be expected, of a peer it is to be found out."""
    for method, summary in summaries.items():
        name = named(method, summary)
        expected = summary.lossless in (False, MEASURED)
        style = "dim" if expected else "bold red"
        if summary.lossless == MEASURED and summary.compared:
            many = len(summary.differences)
            result = f"differs from {PLAIN} on {many} of" if many else f"is equal to {PLAIN} on all"
            yield f"{name} {result} {counted(summary.compared, 'output')}", "yellow" if many else "dim"
        for found in summary.differences[:DIFFERENCES]:
            gap = "" if found.logit_gap is None else f", where the two logits are {found.logit_gap:.2g} apart"
            yield (
                f"{name} differs from {PLAIN} on prompt {found.prompt} of {found.set} (turn {found.turn}, "
                f"repetition {found.repetition}) from token {found.first_difference} on{gap}",
                style,
            )
        if len(summary.differences) > DIFFERENCES:
            yield f"{name} differs in {len(summary.differences) - DIFFERENCES} more", style


def _figure(of: Interval | None, form: str = ".2f", unit: str = "") -> str:
    """A figure with its interval below it."""
    if of is None:
        return "-"
    return f"{of.median:{form}}{unit}" + ("" if of.low is None else f"\n{of.low:{form}}-{of.high:{form}}")


def _share(rate: float | None, accepted: int, of: int | None) -> str:
    return "-" if rate is None else f"{100 * rate:.0f}%\n{accepted}/{of}"


def _percent(share: float | None, form: str) -> str:
    return "-" if share is None else f"{100 * share:{form}}%"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}"
