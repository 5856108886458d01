"""The sections of a page: what each figure is called, how it is to be read, and the same as tables."""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

import attrs

from talon_core.bench.bootstrap import Interval
from talon_core.bench.methods import PLAIN
from talon_core.bench.sheets import Sheet
from talon_core.report import figures as of
from talon_core.report import svg_figures, svg_lanes
from talon_core.report.figures import ALL, Estimate, Oracle, Report, Shown, called
from talon_core.report.lanes import CAPTION, HEADS, LANED
from talon_core.report.timing import OF_TEXTS
from talon_core.rounds import PARTS


@attrs.frozen
class Picture:
    """A picture of a section.

    Attributes:
        svg: it.
        title: what stands above it; empty for none.
        method: whose it is, for its mark in the title.
    """

    svg: str
    title: str = ""
    method: Shown | None = None


@attrs.frozen
class Section:
    """A part of the page: a heading, what it says, pictures, and the same in tables.

    Attributes:
        name: as in `FIGURES`.
        title: the heading.
        lead: what is seen, in plain words.
        caption: how to read it.
        pictures: one, or several small ones.
        tables: the same as numbers.
        key: methods whose marks are explained below the pictures.
        parts: names of parts of the time, where these are to be explained.
        missing: why there is nothing, in a sentence; empty where there is.
    """

    name: str
    title: str
    lead: str
    caption: str = ""
    pictures: Sequence[Picture] = ()
    tables: Sequence[Sheet] = ()
    key: Sequence[Shown] = ()
    parts: Sequence[str] = ()
    missing: str = ""


def sections(report: Report) -> Iterator[Section]:
    """All of them, in order; those without data say why."""
    made: Mapping[str, tuple[str, str, Callable[[Report, Section], Section]]] = {
        of.SPEED: ("Speed", "How many times as many tokens per second as the baseline.", _speed),
        of.MAT: ("Tokens per pass", "How many tokens one pass of the target brings.", _mat),
        of.DEPTHS: ("Acceptance by depth", "How often the target agrees, the deeper the guess.", _depths),
        of.RANKS: ("Acceptance by rank", "Whether it is the drafter's best guess that is right.", _ranks),
        of.SHAPES: ("Tree shapes", "How deep and how wide each policy drafts.", _shapes),
        of.TIME: ("Where the time goes", "What a token costs, and which part of the work takes it.", _time),
        of.TIMELINE: ("A round, to scale", "What happens one after the other in a typical round.", _timeline),
        of.LANES: ("Who works when", "Some rounds after each other, from the middle of a text.", _lanes),
        of.EFFICIENCY: ("Tokens against draft passes", "What the draft passes bring.", _efficiency),
        of.ORACLE: ("What is left to win", "How far the policies are from the best trees of this drafter.", _oracle),
    }
    for name, (title, lead, make) in made.items():
        section = Section(name, title, lead)
        if name in report.missing:
            yield attrs.evolve(section, missing=report.missing[name])
        else:
            yield make(report, section)


def _speed(report: Report, section: Section) -> Section:
    to = "plain decoding" if report.baseline == PLAIN else report.shown(report.baseline).label
    said = f"tokens per second, to those of {to}"
    svg = svg_figures.estimates(report, report.speed, "x", f"Dot plot: {said}, by set and method")
    return attrs.evolve(
        section,
        caption=f"Each mark is the median over prompts of {said}, prompt by prompt; the line through it is the 95 % "
        "interval of the bootstrap over prompts. Right of the upright line a method is faster.",
        pictures=[Picture(svg)],
        tables=[
            _estimated(report, "Speed ratios", report.speed, "x"),
            _estimated(report, "Tokens per second", report.tokens_per_second, ""),
        ],
    )


def _mat(report: Report, section: Section) -> Section:
    svg = svg_figures.estimates(report, report.mat, "", "Dot plot: new tokens per target pass, by set and method")
    return attrs.evolve(
        section,
        caption="All new tokens by all passes of the target (MAT, tau), the bonus token of each pass counted, with the "
        "95 % interval of the bootstrap over prompts. Plain decoding has 1.",
        pictures=[Picture(svg)],
        tables=[_estimated(report, "Tokens per target pass", report.mat, "")],
    )


def _estimated(report: Report, title: str, shown: Sequence[Estimate], unit: str) -> Sheet:
    rows = [
        [
            *(called(one.set), report.shown(one.method).label, f"{one.interval.median:.2f}{unit}"),
            *(_ends(one.interval), str(one.interval.prompts)),
        ]
        for one in shown
    ]
    return Sheet(title, ["set", "method", "figure", "95 % interval", "prompts"], rows, names=2)


def _ends(interval: Interval) -> str:
    return "-" if interval.low is None or interval.high is None else f"{interval.low:.2f} to {interval.high:.2f}"


def _depths(report: Report, section: Section) -> Section:
    rows = [
        [
            *(report.shown(method).label, str(row.depth), _percent(row.share)),
            *(str(row.accepted), _number(row.tested), str(row.parents)),
        ]
        for method, shares in report.depths.items()
        for row in shares
    ]
    heads = ["method", "depth", "share", "accepted", "tested", "parent accepted"]
    none = " In the table - says that there was no such round, or that the run did not count them."
    return attrs.evolve(
        section,
        caption="Of the rounds whose last accepted node had children, the share in which one of them was accepted. "
        "Hollow marks are of fewer than ten rounds. A policy that goes deep only where the drafter is sure has chosen "
        "its rounds, so look at the counts as well." + (none if any("-" in row for row in rows) else ""),
        pictures=[Picture(svg_figures.depths(report))],
        tables=[Sheet("Acceptance by depth, in rounds", heads, rows)],
        key=_keys(report, report.depths),
    )


def _ranks(report: Report, section: Section) -> Section:
    rows = [
        [
            *(report.shown(method).label, str(depth), str(rank)),
            *(f"{100 * accepted / tested:.0f}%", str(accepted), str(tested)),
        ]
        for method, found in report.ranks.items()
        for depth, (all_tested, all_accepted) in enumerate(zip(found.tested, found.accepted, strict=True), start=1)
        for rank, (tested, accepted) in enumerate(zip(all_tested, all_accepted, strict=True), start=1)
        if tested
    ]
    return attrs.evolve(
        section,
        caption="Children of a node in the order of the drafter's probability: how often the first, the second and so "
        "on was the accepted one, of the times that the last accepted node had one. Figures in italics are of fewer "
        "than ten times.",
        pictures=[
            Picture(svg_figures.ranks(report.shown(method), found), report.shown(method).label, report.shown(method))
            for method, found in report.ranks.items()
        ],
        tables=[
            Sheet("Acceptance by depth and rank", ["method", "depth", "rank", "share", "accepted", "tested"], rows)
        ],
    )


def _shapes(report: Report, section: Section) -> Section:
    rows = svg_figures.rows_of(report.shapes)
    deepest = min(svg_figures.DEEPEST, max(len(shape.widths) for shape in report.shapes))
    found = [
        Picture(
            svg_figures.tree_shapes(shape, report.shown(shape.method), rows, deepest, len(report.groups)),
            f"{called(shape.set)}: {shape.nodes:.1f} nodes",
            report.shown(shape.method),
        )
        for one in report.methods
        for shape in report.shapes
        if shape.method == one.name
    ]
    told = [
        [
            *(called(shape.set), report.shown(shape.method).label, str(depth)),
            *(f"{100 * shape.reached(depth):.0f}%", f"{shape.mean_width(depth):.2f}", str(shape.rounds)),
        ]
        for shape in report.shapes
        for depth in range(1, len(shape.widths) + 1)
    ]
    heads = ["set", "method", "depth", "trees that deep", "mean width there", "rounds"]
    return attrs.evolve(
        section,
        caption="Across: depth. Upwards: nodes at that depth. The stronger a field, the more rounds had a tree like "
        "that; a column that is pale altogether is reached seldom.",
        pictures=found,
        tables=[Sheet("Tree shapes", heads, told, names=2)],
    )


def _time(report: Report, section: Section) -> Section:
    rows = [
        [report.shown(one.method).label, *(f"{one.milliseconds[part]:.2f}" for part in OF_TEXTS), f"{one.total:.2f}"]
        for one in report.time
    ]
    return attrs.evolve(
        section,
        caption="All the time of all prompts by all new tokens. Draft: the drafter. Policy: the policy, and the checks "
        "of its answers. Verify: passes of the target. Accept: the acceptance rule. Commit: caches and bookkeeping. "
        "Prefill: the reading of the prompt. Other: the loop itself.",
        pictures=[Picture(svg_figures.time_per_token(report))],
        tables=[Sheet("Milliseconds for a token", ["method", *OF_TEXTS, "all"], rows)],
        parts=OF_TEXTS,
    )


def _timeline(report: Report, section: Section) -> Section:
    rows = [
        [
            *(report.shown(one.method).label, *(f"{one.milliseconds[part]:.2f}" for part in PARTS)),
            *(f"{one.total:.2f}", str(one.rounds)),
        ]
        for one in report.timeline
    ]
    return attrs.evolve(
        section,
        caption="Of each method the round whose parts took nearest to the medians over all its rounds. Each layer of "
        "the draft is a pass of the drafter; behind the target's pass the drafter reads what was accepted.",
        pictures=[Picture(svg_figures.timeline(report))],
        tables=[Sheet("Medians over rounds, milliseconds", ["method", *PARTS, "round", "rounds"], rows)],
        parts=PARTS,
    )


def _lanes(report: Report, section: Section) -> Section:
    found = []
    for method, timeline in report.lanes.items():
        shown = report.shown(method)
        label = f"Timeline of {len(timeline.turns)} rounds of {shown.label}, in lanes: {', '.join(timeline.lanes)}"
        found.append((timeline, Picture(svg_lanes.bands(timeline, label), shown.label, shown)))
    rows = [[report.shown(method).label, *row] for method, timeline in report.lanes.items() for row in timeline.rows()]
    parts = {part for timeline, _ in found for part in timeline.parts}
    return attrs.evolve(
        section,
        caption=CAPTION,
        pictures=[picture for _, picture in found],
        tables=[Sheet("Rounds, in milliseconds", ["method", *HEADS], rows)],
        parts=[part for part in LANED if part in parts],
    )


def _efficiency(report: Report, section: Section) -> Section:
    assert report.efficiency is not None
    found = report.efficiency
    rows = [
        [called(one.set), report.shown(one.method).label, f"{one.delta:.2f}", f"{one.tau:.2f}", f"{one.nodes:.1f}"]
        for one in found.points
    ]
    tables = [Sheet("Tokens and draft passes", ["set", "method", "delta", "tau", "nodes"], rows, names=2)]
    contours = (
        f" Grey lines join points of equal speed over plain decoding if a draft pass takes {found.cost:.2f} of a pass "
        "of the target and everything else nothing: tau / (1 + c * delta). What many nodes cost is not in it."
        if found.cost is not None
        else ""
    )
    over = f" The oracle's line is left out, as it would be too low: {report.no_oracle}." if report.no_oracle else ""
    if report.oracle is not None:
        over = (
            f" The oracle's line is what somebody gets who knows the text, with the drafter {report.oracle.drafter}: "
            f"at each price of a draft pass the best chains, {_over(report, report.oracle)}"
        )
        line = [[f"{delta:.3f}", f"{tau:.3f}"] for delta, tau in report.oracle.line]
        tables.append(Sheet(f"The oracle's line ({report.oracle.drafter})", ["delta", "tau"], line))
    return attrs.evolve(
        section,
        caption="Filled marks are of all prompts, hollow ones of single sets. Up and to the left is better. Methods "
        "that draft while the target verifies are left out: what they prepare takes passes that are not counted."
        + contours
        + over,
        pictures=[Picture(svg_figures.efficiency(report, found, report.oracle))],
        tables=tables,
        key=_keys(report, {point.method for point in found.points}),
    )


def _over(report: Report, oracle: Oracle) -> str:
    """Over which prompts the line is, and whether filled marks may lie above it."""
    prompts = sum(report.sets.values())
    if oracle.texts < prompts:
        return f"over {oracle.texts} of {prompts} prompts; filled marks are of all, and so may lie above it."
    if not oracle.same_texts:
        return "over all prompts; filled marks are of other texts than the trace's, too, and so may lie above it."
    return "over all prompts. No filled mark of this drafter lies above it."


def _oracle(report: Report, section: Section) -> Section:
    assert report.oracle is not None
    oracle = report.oracle
    points = {
        one.method: (one.nodes, one.tau)
        for one in (report.efficiency.points if report.efficiency is not None else ())
        if one.set == ALL and one.method in oracle.methods
    }
    rows = [[str(each.nodes), f"{each.in_hindsight:.2f}", f"{each.by_the_laws:.2f}"] for each in oracle.budgets]
    whose = "" if points else f" No method of this run drafts with {oracle.drafter}, so none is marked."
    return attrs.evolve(
        section,
        caption=f"With the drafter {oracle.drafter}, over {oracle.texts} prompts. In hindsight: by somebody who knows "
        "the text. By the laws: with the nodes that the drafter takes to be the likeliest. What a method lacks of the "
        "lower line is its policy's; what lies between the lines is the drafter's. Marks: methods at the mean number "
        f"of nodes.{whose}",
        pictures=[Picture(svg_figures.oracle_by_nodes(report, oracle, points))],
        tables=[Sheet("The best trees", ["nodes", "in hindsight", "by the laws"], rows)],
        key=_keys(report, points),
    )


def _keys(report: Report, names: Collection[str]) -> list[Shown]:
    return [one for one in report.methods if one.name in names]


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f}%"


def _number(value: int | None) -> str:
    return "-" if value is None else str(value)
