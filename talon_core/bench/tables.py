"""A comparison as tables for people, at most 120 columns wide."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from talon_core.bench.bootstrap import Interval
from talon_core.bench.compare import Comparison, Summary
from talon_core.bench.methods import PLAIN
from talon_core.certify.standing import CLAIMED

SETS_PER_TABLE = 6
DEPTHS = 8
INTERVAL = len("0.00-0.00")
DIFFERENCES = 3
"""How many of a method's differences are told one by one."""


def tables(comparison: Comparison) -> Iterator[RenderableType]:
    """Over all prompts, by set where there are several, by depth where something was drafted, and what differs."""
    yield _overall(comparison)
    if comparison.baseline != PLAIN and comparison.all[comparison.baseline].mat_ratio is not None:
        yield _mat_ratios(comparison)
    if len(comparison.sets) > 1:
        names = list(comparison.sets)
        for start in range(0, len(names), SETS_PER_TABLE):
            yield _ratios(comparison, names[start : start + SETS_PER_TABLE])
            yield _accepted(comparison, names[start : start + SETS_PER_TABLE])
    if any(summary.acceptance_by_depth for summary in comparison.all.values()):
        yield _by_depth(comparison.all)
    yield from _differences(comparison.all)


def _table(title: str, *columns: str, figure: int = 4) -> Table:
    """A table whose first column are the methods; names are broken where they are long, figures are not.

    Args:
        title: above it.
        columns: the other columns' heads.
        figure: characters of the longest figure.
    """
    table = Table(title=title, title_justify="left", title_style="bold")
    table.add_column("method", overflow="fold", min_width=8)
    for column in columns:
        longest = max(len(word) for word in column.split())
        table.add_column(column, justify="right", overflow="fold", min_width=max(figure, min(INTERVAL, longest)))
    return table


def _overall(comparison: Comparison) -> Table:
    prompts = max(_prompts(summary) for summary in comparison.all.values())
    title = f"{_counted(prompts, 'prompt')} of {_counted(len(comparison.sets), 'set')}; ratios to {comparison.baseline}"
    table = _table(title, "tokens/s", "ratio", "95 % bootstrap", "MAT", "drafts per round", "outside target", "equal")
    for method in comparison.methods:
        summary = comparison.all[method]
        table.add_row(
            _named(method, summary),
            f"{summary.tokens_per_second:.1f}",
            _ratio(summary.ratio),
            _ends(summary.ratio),
            _number(summary.mean_accepted_tokens),
            _number(summary.draft_passes_per_round),
            "-" if summary.outside_target is None else f"{100 * summary.outside_target:.1f}%",
            "drawn" if summary.identical is None else f"{summary.identical}/{summary.compared}",
            style="dim" if method == comparison.baseline else "",
        )
    return table


def _mat_ratios(comparison: Comparison) -> Table:
    """Tokens for each target pass, to the baseline's, with the bonus token (MAT) and without."""
    title = f"tokens per target pass, to {comparison.baseline}"
    table = _table(title, "MAT ratio", "95 % bootstrap", "accepted ratio", "95 % bootstrap", figure=INTERVAL)
    for method in comparison.methods:
        summary = comparison.all[method]
        if summary.mat_ratio is not None:
            cells = [
                text for ratio in (summary.mat_ratio, summary.accepted_ratio) for text in (_ratio(ratio), _ends(ratio))
            ]
            table.add_row(_named(method, summary), *cells)
    return table


def _ratios(comparison: Comparison, names: Sequence[str]) -> Table:
    """Ratios and their intervals, by set."""
    heads = [f"{name} ({max(_prompts(one) for one in comparison.sets[name].values())})" for name in names]
    table = _table(f"ratios to {comparison.baseline} by set (prompts)", *heads, figure=INTERVAL)
    for method in comparison.methods:
        ratios = [comparison.sets[name][method].ratio for name in names]
        cells = (f"{_ratio(ratio)}\n{_ends(ratio)}".removesuffix("\n-") for ratio in ratios)
        table.add_row(_named(method, comparison.all[method]), *cells)
    return table


def _accepted(comparison: Comparison, names: Sequence[str]) -> Table:
    """Tokens per target pass by set, over all prompts, and as the mean of the sets, in which each set counts alike."""
    table = _table("MAT by set", *names, "all prompts", "mean of sets")
    for method in comparison.methods:
        over_all = comparison.all[method]
        if over_all.mean_accepted_tokens is not None:
            of_sets = [comparison.sets[name][method].mean_accepted_tokens for name in names]
            values = [*of_sets, over_all.mean_accepted_tokens, over_all.mean_of_sets]
            table.add_row(_named(method, over_all), *map(_number, values))
    return table


def _by_depth(summaries: Mapping[str, Summary]) -> Table:
    deepest = max(len(summary.acceptance_by_depth or ()) for summary in summaries.values())
    shown = min(deepest, DEPTHS)
    more = f" (to depth {shown} of {deepest})" if deepest > shown else ""
    title = f"accepted by depth{more}"
    table = _table(title, *(str(depth) for depth in range(1, shown + 1)))
    for method, summary in summaries.items():
        if summary.acceptance_by_depth:
            rates = [f"{100 * row['rate']:.0f}%" for row in summary.acceptance_by_depth[:shown]]
            table.add_row(_named(method, summary), *rates, *[""] * (shown - len(rates)))
    return table


def _differences(summaries: Mapping[str, Summary]) -> Iterator[Text]:
    """What differs from plain decoding; of a lossy method that is to be expected."""
    for method, summary in summaries.items():
        name, style = _named(method, summary), "bold red" if summary.lossless else "dim"
        for found in summary.differences[:DIFFERENCES]:
            gap = "" if found.logit_gap is None else f", where the two logits are {found.logit_gap:.2g} apart"
            yield Text(
                f"{name} differs from {PLAIN} on prompt {found.prompt} of {found.set} (turn {found.turn}, "
                f"repetition {found.repetition}) from token {found.first_difference} on{gap}",
                style=style,
            )
        if len(summary.differences) > DIFFERENCES:
            yield Text(f"{name} differs in {len(summary.differences) - DIFFERENCES} more", style=style)


def _named(method: str, summary: Summary) -> str:
    if summary.lossless == CLAIMED:
        return f"{method} (claimed)"
    return method if summary.lossless else f"{method} (lossy)"


def _prompts(summary: Summary) -> int:
    return 0 if summary.ratio is None else summary.ratio.prompts


def _ratio(ratio: Interval | None) -> str:
    return "-" if ratio is None else f"{ratio.median:.2f}x"


def _ends(ratio: Interval | None) -> str:
    return "-" if ratio is None or ratio.low is None else f"{ratio.low:.2f}-{ratio.high:.2f}"


def _number(value: Any) -> str:
    return "-" if value is None else f"{value:.2f}"


def _counted(number: int, one: str) -> str:
    return f"{number} {one}{'' if number == 1 else 's'}"
