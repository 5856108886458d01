"""Who did what when, as SVG: bands of rounds, to one scale."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from talon_core.report.lanes import Timeline, Turn
from talon_core.report.svg import box, element, line, picture, under, words
from talon_core.report.svg_figures import WIDTH, Axis

NAMES = 62
"""Pixels for the names of lanes at the left."""
LANE = 15
HEAD = 20
"""Above the lanes: what the rounds are called."""
FOOT = 24
ROOM_FOR_NUMBER, ROOM_FOR_WORD = 18, 52
"""Pixels of a round at which its number, and what came of it, can be written."""


def bands(timeline: Timeline, label: str) -> str:
    """The rounds, some of them beside each other and the others below.

    Args:
        timeline: the rounds.
        label: what a screen reader says of the picture.
    """
    lanes, axis, y, parts = timeline.lanes, Axis(0, timeline.width, NAMES, WIDTH - 6), 0.0, list[str]()
    for band in timeline.bands():
        parts += _band(band, lanes, axis, y)
        y += HEAD + LANE * len(lanes) + FOOT
    return picture(WIDTH, y, label, parts)


def _band(band: Sequence[Turn], lanes: Mapping[str, tuple[str, ...]], axis: Axis, y: float) -> Iterator[str]:
    begin, top, bottom = band[0].start, y + HEAD, y + HEAD + LANE * len(lanes)
    for number, name in enumerate(lanes):
        middle = top + (number + 0.5) * LANE
        yield words(NAMES - 8, middle, name, "tiny", "end")
        yield line(axis.start, middle, axis.end, middle, "grid")
    for turn in band:
        x, end = axis(turn.start - begin), axis(turn.end - begin)
        yield line(x, y + 4, x, bottom, "unit")
        yield _head(turn, x, end - x, y + 10)
        for number, own in enumerate(lanes.values()):
            for one in (each for each in turn.stretches if each.part in own):
                start, wide = axis(one.start - begin), axis(one.end - begin) - axis(one.start - begin)
                told = f"round {turn.number}, {one.name}: {one.end - one.start:.2f} ms"
                at = top + number * LANE + 2
                yield box(start, at, max(wide - 0.6, 0.5), LANE - 4, f"part {one.part}", told)
    for value in axis.ticks(8):
        yield line(axis(value), bottom, axis(value), bottom + 3, "tick")
        yield under(axis(value), bottom + 10, f"{value:g}", WIDTH, "tiny", 10)
    yield words(NAMES - 8, bottom + 10, "ms", "tiny", "end")


def _head(turn: Turn, x: float, wide: float, y: float) -> str:
    """A round's number and what came of it: a full mark for a hit, a hollow one for a miss, nothing for neither."""
    told = f"round {turn.number}: {_came(turn)}{turn.nodes} nodes verified, {turn.tokens} tokens"
    mark = "lane-hit" if turn.hit else "lane-miss"
    found = (
        element("circle", element("title", escape(told)), cx=x + 7, cy=y, r=3.6, class_=mark)
        if turn.hit is not None
        else ""
    )
    said = f"{turn.number}" if wide >= ROOM_FOR_NUMBER else ""
    if turn.came and wide >= ROOM_FOR_WORD:
        said += f" {turn.came}"
    return found + (words(x + (13 if found else 4), y, said, "tiny") if said else "")


def _came(turn: Turn) -> str:
    return f"{turn.came}, " if turn.came else ""
