"""The figures of a report as SVG."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise

import attrs

from talon_core.report.colours import HEAT, number_of
from talon_core.report.figures import (
    ALL,
    Efficiency,
    Estimate,
    Oracle,
    RankShares,
    Report,
    Shown,
    TimePerToken,
    TreeShapes,
    called,
)
from talon_core.report.svg import box, element, line, mark, picture, polyline, reach, ticks, under, words

WIDTH = 680
LABELS = 190
"""Pixels for the names of methods at the left."""
ROW = 19
LONGEST = 25
"""Characters of a method's name at the left."""
DEEPEST = 12
"""Depths that are drawn; the tables have all."""
WIDTHS = ((1, 1), (2, 2), (3, 3), (4, 4), (5, 6), (7, 9), (10, 14), (15, 24), (25, 49), (50, 10**9))
"""Numbers of nodes in a layer that are one row of a heat map."""
FEW = 10
"""Fewer rounds than this are drawn hollow: their share says little."""


@attrs.frozen
class Axis:
    """Values to pixels.

    Attributes:
        low: the least value.
        high: the largest.
        start: where the least is.
        end: where the largest is.
    """

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)

    def ticks(self, wanted: int = 6) -> list[float]:
        """Round values along it."""
        return ticks(self.low, self.high, wanted)


def estimates(report: Report, shown: Sequence[Estimate], unit: str, what: str) -> str:
    """A mark with its interval for each method, set by set, and the figures beside it."""
    values = [1.0]
    for one in shown:
        values += [one.interval.median, *(end for end in (one.interval.low, one.interval.high) if end is not None)]
    low, high = min(values), max(values)
    margin = 0.04 * (high - low or 1)
    ends = WIDTH - max((reach(_ends(one)) for one in shown), default=0)
    medians = max((reach(_median(one, unit)) for one in shown), default=0)
    axis = Axis(low - margin, high + margin, LABELS + 12, ends - 8 - medians)
    y, parts, rows = 12.0, list[str](), list[str]()
    for group in report.groups:
        own = [one for one in shown if one.set == group]
        if not own:
            continue
        size = sum(report.sets.values()) if group is None else report.sets[group]
        rows.append(words(0, y, f"{called(group)} ({size})", "strong"))
        for one in own:
            y += ROW
            rows += _estimate(report.shown(one.method), one, axis, y)
            rows.append(words(ends - 8, y, _median(one, unit), "strong number", "end"))
            rows.append(words(ends, y, _ends(one), "faint number"))
        y += 1.6 * ROW
    bottom = y - 0.6 * ROW
    for value in axis.ticks():
        parts.append(line(axis(value), 4, axis(value), bottom, "unit" if value == 1 else "grid"))
        parts.append(words(axis(value), bottom + 12, f"{value:g}{unit}", "faint", "middle"))
    return picture(WIDTH, bottom + 22, what, [*parts, *rows])


def _median(one: Estimate, unit: str) -> str:
    return f"{one.interval.median:.2f}{unit}"


def _ends(one: Estimate) -> str:
    found = one.interval
    return "" if found.low is None or found.high is None else f"{found.low:.2f} to {found.high:.2f}"


def _estimate(method: Shown, one: Estimate, axis: Axis, y: float) -> Iterator[str]:
    found = one.interval
    yield mark(method.place, 6, y)
    yield words(18, y, method.label, "", most=LONGEST)
    if found.low is not None and found.high is not None:
        yield line(axis(found.low), y, axis(found.high), y, f"m{number_of(method.place)} whisker")
    yield mark(method.place, axis(found.median), y)


def depths(report: Report) -> str:
    """Shares of accepted rounds by depth, a line for each method."""
    deepest = min(DEEPEST, max(len(rows) for rows in report.depths.values()))
    x = Axis(1, max(deepest, 2), 54, WIDTH - 24)
    y = Axis(0, 1, 220, 14)
    parts = [*_grid(x, y, [*range(1, deepest + 1)], lambda value: f"{100 * value:.0f}%", "depth")]
    for method, rows in report.depths.items():
        place = report.shown(method).place
        known = [(row, row.share) for row in rows[:deepest] if row.share is not None]
        parts.append(polyline([(x(row.depth), y(share)) for row, share in known], f"m{number_of(place)} curve"))
        for row, share in known:
            told = f"{report.shown(method).label}, depth {row.depth}: {row.accepted} of {row.tested}"
            parts.append(mark(place, x(row.depth), y(share), 4.5, (row.tested or 0) < FEW, told))
    label = "Lines: how often a tested node was accepted, by depth, for each method"
    return picture(WIDTH, 262, label, parts)


def _grid(
    x: Axis, y: Axis, at: Sequence[float], form: Callable[[float], str], below: str, beside: str = ""
) -> Iterator[str]:
    for value in y.ticks(5):
        yield line(x.start, y(value), x.end, y(value), "grid")
        yield words(x.start - 8, y(value), form(value), "faint number", "end")
    for value in at:
        yield under(x(value), y.start + 14, f"{value:g}", WIDTH)
    yield words((x.start + x.end) / 2, y.start + 32, below, "faint", "middle")
    if beside:
        yield words(x.start - 30, y.end - 14, beside, "faint")


def ranks(method: Shown, found: RankShares) -> str:
    """A heat map: how often a child of each rank was the accepted one, by depth."""
    wide, high, left, top = 44, 23, 62, 20
    deepest = min(DEEPEST, len(found.tested))
    most = max(len(row) for row in found.tested[:deepest])
    parts = [words(left - 12, 6, "depth", "faint", "end")]
    for depth in range(1, deepest + 1):
        parts.append(words(left + (depth - 0.5) * wide, 6, f"{depth}", "faint", "middle"))
    for rank in range(1, most + 1):
        y = top + (rank - 1) * high
        parts.append(words(left - 12, y + high / 2, _ordinal(rank), "faint", "end"))
        for depth in range(1, deepest + 1):
            tested = found.tested[depth - 1]
            if rank > len(tested) or not tested[rank - 1]:
                continue
            accepted = found.accepted[depth - 1][rank - 1]
            share = accepted / tested[rank - 1]
            x = left + (depth - 1) * wide
            told = f"depth {depth}, {_ordinal(rank)}: {accepted} of {tested[rank - 1]}"
            parts.append(box(x + 1, y + 1, wide - 2, high - 2, "cell", told, fill_opacity=HEAT * share))
            few = " few" if tested[rank - 1] < FEW else ""
            parts.append(words(x + wide / 2, y + high / 2, f"{100 * share:.0f}%", f"number{few}", "middle"))
    label = f"Heat map: how often the child of each rank was accepted with {method.label}, by depth"
    return picture(left + deepest * wide + 4, top + most * high + 6, label, parts)


def _ordinal(rank: int) -> str:
    return f"{rank}{ {1: 'st', 2: 'nd', 3: 'rd'}.get(rank if rank < 20 else rank % 10, 'th') }"


def rows_of(shapes: Sequence[TreeShapes]) -> list[tuple[int, int]]:
    """The rows that heat maps of these trees have, so that they can be compared."""
    most = max(max(counts) for shape in shapes for counts in shape.widths)
    return [(low, high) for low, high in WIDTHS if low <= most]


def tree_shapes(
    shape: TreeShapes, method: Shown, rows: Sequence[tuple[int, int]], deepest: int, beside: int = 1
) -> str:
    """A heat map: in which share of the rounds the tree had so many nodes at each depth.

    Args:
        shape: the trees.
        method: whose they are.
        rows: from `rows_of`.
        deepest: depths that are drawn.
        beside: how many of these maps there are; up to four fit beside each other.
    """
    said = [f"{low}" if low == top else f"{low}+" if top > 10**6 else f"{low}-{top}" for low, top in rows]
    high, left = 15, 7 + max(reach(each, 10) for each in said)
    across = (WIDTH - 2 - 16 * (min(beside, 4) - 1)) / min(beside, 4)
    wide = min(19, int((across - left - 4) / deepest))
    bottom = len(rows) * high + 4
    parts = []
    for number, each in enumerate(said):
        parts.append(words(left - 7, bottom - (number + 0.5) * high, each, "tiny", "end"))
    for depth in range(1, deepest + 1):
        x = left + (depth - 1) * wide
        if depth == 1 or depth % 2 == 0:
            parts.append(words(x + wide / 2, bottom + 9, str(depth), "tiny", "middle"))
        counts = shape.widths[depth - 1] if depth <= len(shape.widths) else {}
        for number, (low, top) in enumerate(rows):
            count = sum(own for width, own in counts.items() if low <= width <= top)
            y = bottom - (number + 1) * high
            told = f"depth {depth}, {low} to {min(top, 999)} nodes: {count} of {shape.rounds} rounds" if count else ""
            share = count / shape.rounds
            parts.append(box(x + 0.5, y + 0.5, wide - 1, high - 1, "ground", ""))
            if count:
                opacity = max(0.06, share)
                parts.append(box(x + 0.5, y + 0.5, wide - 1, high - 1, "full", told, fill_opacity=opacity))
    label = f"Heat map: nodes at each depth of the trees of {method.label} on {called(shape.set)}"
    return picture(left + deepest * wide + 4, bottom + 18, label, parts, "small")


def time_per_token(report: Report) -> str:
    """A bar for each method: milliseconds for a token, by part."""
    beside = 8 + max(reach(_total(one)) for one in report.time)
    axis = Axis(0, max(one.total for one in report.time) * 1.02, LABELS + 12, WIDTH - beside)
    y, parts = 14.0, list[str]()
    for one in report.time:
        method, at = report.shown(one.method), 0.0
        parts += [mark(method.place, 6, y), words(18, y, method.label, "", most=LONGEST)]
        for part, milliseconds in one.milliseconds.items():
            start, end = axis(at), axis(at + milliseconds)
            told = f"{part}: {milliseconds:.2f} ms"
            parts.append(box(start, y - 9, max(end - start - 1, 0.4), 18, f"part {part}", told))
            at += milliseconds
        parts.append(words(axis(at) + 8, y, _total(one), "strong number"))
        y += 30
    for value in axis.ticks():
        parts.append(under(axis(value), y, f"{value:g}", WIDTH))
    parts.append(words((axis.start + axis.end) / 2, y + 18, "milliseconds for a token", "faint", "middle"))
    return picture(WIDTH, y + 30, "Bars: milliseconds for a token by part, for each method", parts)


def _total(one: TimePerToken) -> str:
    return f"{one.total:.1f} ms"


def timeline(report: Report) -> str:
    """A typical round of each method, to one scale."""
    last = max(stretch.end for one in report.timeline for stretch in one.typical)
    axis = Axis(0, last * 1.02, 8, WIDTH - 8)
    y, parts = 8.0, list[str]()
    for one in report.timeline:
        method = report.shown(one.method)
        end = max(stretch.end for stretch in one.typical)
        tokens = f"{one.tokens} token{'' if one.tokens == 1 else 's'}"
        said = f"{one.nodes} node{'' if one.nodes == 1 else 's'} verified, {tokens} in {end:.1f} ms"
        parts += [mark(method.place, 14, y), words(26, y, method.label, "strong", most=50)]
        parts.append(words(WIDTH - 8, y, said, "faint number", "end"))
        parts.append(line(axis(0), y + 26, axis(last), y + 26, "grid"))
        for stretch in one.typical:
            start, width = axis(stretch.start), axis(stretch.end) - axis(stretch.start)
            told = f"{stretch.name}: {stretch.end - stretch.start:.2f} ms"
            parts.append(box(start, y + 15, max(width - 0.8, 0.5), 22, f"part {stretch.part}", told))
        y += 62
    for value in axis.ticks(8):
        parts.append(line(axis(value), y - 14, axis(value), y - 9, "tick"))
        parts.append(under(axis(value), y, f"{value:g}", WIDTH))
    parts.append(words(WIDTH / 2, y + 18, "milliseconds after the round began", "faint", "middle"))
    return picture(WIDTH, y + 30, "Timelines: a typical round of each method, drawn to one scale", parts)


def efficiency(report: Report, found: Efficiency, oracle: Oracle | None) -> str:
    """Tokens against draft passes for each target pass, with what the drafter allows."""
    over = list(oracle.line) if oracle is not None else []
    most_delta = max([1.0, *(point.delta for point in found.points), *(delta for delta, _ in over)])
    most_tau = max([2.0, *(point.tau for point in found.points), *(tau for _, tau in over)])
    x, y = Axis(0, most_delta * 1.12, 54, WIDTH - 40), Axis(1, most_tau * 1.06, 330, 40)
    parts = [*_grid(x, y, x.ticks(8), lambda value: f"{value:g}", "delta: draft passes for a target pass")]
    parts.append(words(x.start - 46, 8, "tau: tokens for a target pass", "faint"))
    if found.cost is not None:
        parts += _speeds(x, y, found.cost)
    if over:
        parts.append(polyline([(x(delta), y(tau)) for delta, tau in over], "oracle"))
        parts.append(words(x(over[-1][0]), y(over[-1][1]) - 12, "oracle", "strong", "end"))
    for point in (each for each in found.points if each.set != ALL):
        told = f"{report.shown(point.method).label} on {point.set}: {point.tau:.2f} tokens, {point.delta:.2f} drafts"
        parts.append(mark(report.shown(point.method).place, x(point.delta), y(point.tau), 3.2, True, told))
    for point in (each for each in found.points if each.set == ALL):
        told = f"{report.shown(point.method).label}: {point.tau:.2f} tokens, {point.delta:.2f} draft passes"
        parts.append(mark(report.shown(point.method).place, x(point.delta), y(point.tau), 6.5, False, told))
    return picture(WIDTH, 372, "Scatter plot: tokens for a target pass against draft passes", parts)


def _speeds(x: Axis, y: Axis, cost: float) -> Iterator[str]:
    """Lines of equal modelled speed, tau / (1 + cost * delta); each is labelled where it leaves the figure."""
    for speed in ticks(1, y.high, 6):
        if speed < 1:
            continue
        end = min(x.high, (y.high / speed - 1) / cost) if cost else x.high
        if end <= 0:
            continue
        tau = speed * (1 + cost * end)
        yield line(x(0), y(speed), x(end), y(tau), "contour")
        top = end < x.high
        yield words(x(end) + (3 if not top else 0), y(tau) - (7 if top else 0), f"{speed:g}x", "tiny")


def oracle_by_nodes(report: Report, oracle: Oracle, points: Mapping[str, tuple[float, float]]) -> str:
    """Tokens for a target pass by the number of nodes: the best trees, and the run's methods."""
    sizes = [each.nodes for each in oracle.budgets]
    x = Axis(0, len(sizes) - 1, 54, WIDTH - 110)
    most = max([*(each.in_hindsight for each in oracle.budgets), *(tau for _, tau in points.values())])
    y = Axis(1, most * 1.06, 240, 22)
    parts = [
        *(words(x(number), y.start + 14, str(size), "faint number", "middle") for number, size in enumerate(sizes)),
        *_grid(x, y, [], lambda value: f"{value:g}", "nodes of a tree, the root included"),
        words(x.start - 46, 6, "tokens for a target pass", "faint"),
    ]
    for name, label in (("in_hindsight", "in hindsight"), ("by_the_laws", "by the laws")):
        values = [getattr(each, name) for each in oracle.budgets]
        kind = "oracle" if name == "in_hindsight" else "oracle laws"
        parts.append(polyline([(x(number), y(value)) for number, value in enumerate(values)], kind))
        parts.append(words(x.end + 8, y(values[-1]), label, "strong"))
    for method, (nodes, tau) in points.items():
        told = f"{report.shown(method).label}: {nodes:.1f} nodes, {tau:.2f} tokens"
        parts.append(mark(report.shown(method).place, x(_between(sizes, nodes)), y(tau), 6, False, told))
    return picture(WIDTH, 282, "Lines: tokens for a target pass with the best trees, by number of nodes", parts)


def _between(sizes: Sequence[int], nodes: float) -> float:
    """Where a number of nodes is between the sizes, counted from the first."""
    for number, (low, high) in enumerate(pairwise(sizes)):
        if nodes <= high:
            return number + max(0.0, (nodes - low) / (high - low))
    return len(sizes) - 1


def swatch(part: str) -> str:
    """A part of the time as it is painted, for a legend."""
    inner = box(0.5, 2.5, 17, 11, f"part {part}")
    return element("svg", inner, class_="swatch", width=18, height=16, viewBox="0 0 18 16", aria_hidden="true")


def key(method: Shown) -> str:
    """A method's mark, for a legend."""
    inner = mark(method.place, 8, 8, 5)
    return element("svg", inner, class_="swatch", width=16, height=16, viewBox="0 0 16 16", aria_hidden="true")
