"""The figures of a report drawn by matplotlib, for papers and slides: PNG and SVG, the same bytes each time."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from talon_core.bench.methods import PLAIN
from talon_core.report import figures as of
from talon_core.report.colours import LIGHT, number_of, shape_of
from talon_core.report.figures import ALL, Estimate, Report, called
from talon_core.report.lane_plot import draw_band
from talon_core.report.plotting import as_file, bar, check_matplotlib, new_figure, plain, styled
from talon_core.report.svg import shortened, ticks
from talon_core.report.svg_figures import DEEPEST, FEW, rows_of

MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle": "^", "cross": "P"}
LONG = 44
"""Characters of a label of which two do not fit beside each other."""


def pictures_of(report: Report, forms: Sequence[str]) -> dict[str, bytes]:
    """Every figure that the report has, as files.

    Args:
        report: the report.
        forms: `png`, `svg`, or both.

    Returns:
        What each file holds, by its name.

    Raises:
        ValueError: if matplotlib is not there.
    """
    check_matplotlib()
    found = {}
    with styled():
        for name, draw in DRAWN.items():
            if name in report.missing:
                continue
            figure = draw(report)
            for form in forms:
                found[f"{name}.{form}"] = as_file(figure, form)
    return found


def _look(report: Report, method: str) -> dict[str, Any]:
    place = report.shown(method).place
    return {"color": LIGHT.methods[number_of(place)], "marker": MARKERS[shape_of(place)]}


def _label(report: Report, method: str, most: int = 72) -> str:
    return plain(shortened(report.shown(method).label, most))


def _key(figure: Any, axes: Any) -> None:
    """A legend below."""
    handles, labels = axes.get_legend_handles_labels()
    columns = 1 if max(map(len, labels), default=0) > LONG else 2
    figure.legend(handles, labels, loc="outside lower left", ncols=columns, frameon=False, fontsize=8)


def _estimates(report: Report, shown: Sequence[Estimate], unit: str, what: str) -> Any:
    groups = [group for group in report.groups if any(one.set == group for one in shown)]
    figure, grid = new_figure(6.8, 1.6 + 0.24 * (len(shown) + len(groups)))
    axes, at, told, places = grid[0][0], 0.0, set[str](), list[tuple[float, str]]()
    for group in groups:
        at -= 1
        axes.text(
            0, at, plain(called(group)), transform=axes.get_yaxis_transform(), weight="bold", ha="right", va="center"
        )
        for one in (each for each in shown if each.set == group):
            at -= 1
            interval, look = one.interval, _look(report, one.method)
            label = _label(report, one.method) if one.method not in told else None
            told.add(one.method)
            if interval.low is not None and interval.high is not None:
                axes.plot([interval.low, interval.high], [at, at], color=look["color"], linewidth=2)
            axes.plot([interval.median], [at], linestyle="", markersize=6, label=label, **look)
            ends = "" if interval.low is None else f" ({interval.low:.2f} to {interval.high:.2f})"
            places.append((at, f"{interval.median:.2f}{unit}{ends}"))
        at -= 0.4
    axes.set_ylim(at, -0.4)  # where no marks are, there are names
    axes.axvline(1, color=LIGHT.faint, linewidth=1)
    axes.set_yticks([place for place, _ in places], [said for _, said in places], fontsize=8)
    axes.yaxis.tick_right()
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="y", visible=False)
    axes.spines["left"].set_visible(False)
    axes.set_xlabel(what)
    _key(figure, axes)
    return figure


def _speed(report: Report) -> Any:
    to = "plain decoding" if report.baseline == PLAIN else _label(report, report.baseline)
    return _estimates(report, report.speed, "x", f"tokens per second, to {to}")


def _mat(report: Report) -> Any:
    return _estimates(report, report.mat, "", "tokens for a target pass (MAT)")


def _depths(report: Report) -> Any:
    figure, grid = new_figure(6.8, 3.4)
    axes = grid[0][0]
    for method, rows in report.depths.items():
        known = [(row.depth, 100 * row.share, row.tested) for row in rows[:DEEPEST] if row.share is not None]
        look = _look(report, method)
        axes.plot([at for at, _, _ in known], [share for _, share, _ in known], label=_label(report, method), **look)
        few = [(at, share) for at, share, tested in known if (tested or 0) < FEW]
        axes.plot(*_across(few), linestyle="", markerfacecolor=LIGHT.page, **look)
    axes.set_ylim(0, 103)
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.set(xlabel="depth", ylabel="accepted of tested, %")
    _key(figure, axes)
    return figure


def _across(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    return [x for x, _ in points], [y for _, y in points]


def _heat() -> Any:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("talon", [LIGHT.page, LIGHT.heat])


def _ranks(report: Report) -> Any:
    most = max(len(row) for found in report.ranks.values() for row in found.tested)
    figure, grid = new_figure(6.8, 0.8 + len(report.ranks) * (0.9 + 0.24 * most), len(report.ranks))
    for axes, (method, found) in zip(grid[:, 0], report.ranks.items(), strict=True):
        deepest = min(DEEPEST, len(found.tested))
        cells = [[float("nan")] * deepest for _ in range(most)]
        for depth in range(deepest):
            for rank, (tested, accepted) in enumerate(zip(found.tested[depth], found.accepted[depth], strict=True)):
                if tested:
                    cells[rank][depth] = 100 * accepted / tested
                    axes.text(depth, rank, f"{cells[rank][depth]:.0f}", ha="center", va="center", fontsize=8)
        axes.imshow(cells, cmap=_heat(), vmin=0, vmax=200, aspect="auto")  # half the colour: figures stay legible
        axes.set_xticks(range(deepest), [str(depth + 1) for depth in range(deepest)])
        axes.set_yticks(range(most), [str(rank + 1) for rank in range(most)])
        axes.grid(visible=False)
        axes.set_title(_label(report, method), loc="left", fontsize=9, weight="bold")
        axes.set_ylabel("rank")
    grid[-1][0].set_xlabel("depth; shares of accepted children in %")
    return figure


def _shapes(report: Report) -> Any:
    methods = [one.name for one in report.methods if any(shape.method == one.name for shape in report.shapes)]
    groups, rows = report.groups, rows_of(report.shapes)
    deepest = min(DEEPEST, max(len(shape.widths) for shape in report.shapes))
    size = (2.2 + 1.5 * len(groups), 0.8 + len(methods) * (1.1 + 0.13 * len(rows)))
    figure, grid = new_figure(*size, len(methods), len(groups), sharex=True, sharey=True)
    for line, method in zip(grid, methods, strict=True):
        for axes, group in zip(line, groups, strict=True):
            shape = next((one for one in report.shapes if (one.method, one.set) == (method, group)), None)
            cells = [[0.0] * deepest for _ in rows]
            for depth, counts in enumerate(shape.widths[:deepest] if shape is not None else ()):
                for number, (low, high) in enumerate(rows):
                    assert shape is not None
                    count = sum(own for width, own in counts.items() if low <= width <= high)
                    cells[number][depth] = count / shape.rounds
            axes.imshow(cells, cmap=_heat(), vmin=0, vmax=1, aspect="auto", origin="lower")
            axes.set_xticks(range(0, deepest, 2), [str(depth + 1) for depth in range(0, deepest, 2)])
            axes.set_yticks(range(len(rows)), [str(low) for low, _ in rows])
            axes.grid(visible=False)
            axes.set_title(plain(called(group)), fontsize=8)
        line[0].set_ylabel(f"{_label(report, method, 24)}\nwidth", fontsize=8)
    figure.supxlabel("depth", fontsize=9)
    return figure


def _bars(report: Report, methods: Sequence[str], height: float) -> tuple[Any, Any]:
    figure, grid = new_figure(6.8, height)
    axes = grid[0][0]
    axes.set_yticks([-number for number in range(len(methods))], [_label(report, method, 32) for method in methods])
    axes.grid(axis="y", visible=False)
    axes.tick_params(axis="y", length=0)
    return figure, axes


def _time(report: Report) -> Any:
    figure, axes = _bars(report, [one.method for one in report.time], 1.6 + 0.36 * len(report.time))
    for number, one in enumerate(report.time):
        at = 0.0
        for part, milliseconds in one.milliseconds.items():
            bar(axes, -number, at, at + milliseconds, part, None if number else part)
            at += milliseconds
        axes.text(at, -number, f"  {one.total:.1f}", va="center")
    axes.set_xlabel("milliseconds for a token")
    figure.legend(loc="outside lower left", ncols=7, frameon=False, fontsize=8)
    return figure


def _timeline(report: Report) -> Any:
    figure, axes = _bars(report, [one.method for one in report.timeline], 1.6 + 0.36 * len(report.timeline))
    told = set[str]()
    for number, one in enumerate(report.timeline):
        for stretch in one.typical:
            label = None if stretch.part in told else stretch.part
            bar(axes, -number, stretch.start, stretch.end, stretch.part, label)
            told.add(stretch.part)
    axes.set_xlabel("milliseconds after the round began")
    figure.legend(loc="outside lower left", ncols=7, frameon=False, fontsize=8)
    return figure


def _lanes(report: Report) -> Any:
    rows = [(method, timeline, band) for method, timeline in report.lanes.items() for band in timeline.bands()]
    height = sum(0.62 + 0.17 * len(timeline.lanes) for _, timeline, _ in rows)
    figure, grid = new_figure(7.2, 0.9 + height, len(rows))
    named, told = set[str](), set[str]()
    for axes, (method, timeline, band) in zip(grid[:, 0], rows, strict=True):
        draw_band(axes, timeline, band, told)
        if method not in named:
            axes.set_title(_label(report, method), loc="left", fontsize=8, weight="bold")
        named.add(method)
    grid[-1][0].set_xlabel("milliseconds after the first round of a row began")
    figure.legend(loc="outside lower left", ncols=7, frameon=False, fontsize=8)
    return figure


def _efficiency(report: Report) -> Any:
    assert report.efficiency is not None
    figure, grid = new_figure(6.8, 4.4)
    axes = grid[0][0]
    for point in report.efficiency.points:
        look = _look(report, point.method)
        if point.set == ALL:
            axes.plot(point.delta, point.tau, linestyle="", markersize=9, label=_label(report, point.method), **look)
        else:
            axes.plot(point.delta, point.tau, linestyle="", markersize=5, markerfacecolor=LIGHT.page, **look)
    if report.oracle is not None:
        label = plain(f"oracle, {report.oracle.drafter}")
        axes.plot(*_across(report.oracle.line), color=LIGHT.ink, label=label)
    axes.set(xlabel="delta: draft passes for a target pass", ylabel="tau: tokens for a target pass")
    axes.set_xlim(left=-0.2)
    axes.set_ylim(bottom=0.9)
    if report.efficiency.cost is not None:
        _speeds(axes, report.efficiency.cost)
    _key(figure, axes)
    return figure


def _speeds(axes: Any, cost: float) -> None:
    """Lines of equal modelled speed, as on the page."""
    right, top = axes.get_xlim()[1], axes.get_ylim()[1]
    for speed in ticks(1, top, 6):
        end = min(right, (top / speed - 1) / cost) if cost else right
        axes.plot([0, end], [speed, speed * (1 + cost * end)], color=LIGHT.faint, linewidth=0.6, zorder=1)
        place = {"xytext": (2, 2), "textcoords": "offset points"}
        axes.annotate(f"{speed:g}x", (end, speed * (1 + cost * end)), fontsize=7, color=LIGHT.faint, **place)
    axes.set(xlim=(axes.get_xlim()[0], right), ylim=(axes.get_ylim()[0], top))


def _oracle(report: Report) -> Any:
    assert report.oracle is not None
    figure, grid = new_figure(6.8, 3.8)
    axes, oracle = grid[0][0], report.oracle
    nodes = [each.nodes for each in oracle.budgets]
    axes.plot(nodes, [each.in_hindsight for each in oracle.budgets], color=LIGHT.ink, label="in hindsight")
    axes.plot(
        nodes, [each.by_the_laws for each in oracle.budgets], color=LIGHT.ink, linestyle="--", label="by the laws"
    )
    for point in report.efficiency.points if report.efficiency is not None else ():
        if point.set == ALL and point.method in oracle.methods:
            label = _label(report, point.method)
            axes.plot(point.nodes, point.tau, linestyle="", markersize=8, label=label, **_look(report, point.method))
    axes.set_xscale("log", base=2)
    axes.set_xticks(nodes[::2], [str(each) for each in nodes[::2]])
    axes.set(xlabel="nodes of a tree, the root included", ylabel="tokens for a target pass")
    _key(figure, axes)
    return figure


DRAWN: Mapping[str, Callable[[Report], Any]] = {
    of.SPEED: _speed,
    of.MAT: _mat,
    of.DEPTHS: _depths,
    of.RANKS: _ranks,
    of.SHAPES: _shapes,
    of.TIME: _time,
    of.TIMELINE: _timeline,
    of.LANES: _lanes,
    of.EFFICIENCY: _efficiency,
    of.ORACLE: _oracle,
}
"""What draws each figure, by its name, which is also its file's."""
