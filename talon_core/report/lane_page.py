"""A timeline as a file: one HTML page, or a picture."""

from talon_core.bench.sheets import Sheet
from talon_core.report.lane_plot import plotted
from talon_core.report.lanes import CAPTION, HEADS, MOST_ROUNDS, Timeline
from talon_core.report.page import rendered
from talon_core.report.plotting import as_file, check_matplotlib, styled
from talon_core.report.svg_lanes import bands

FORMS = ("html", "png", "svg")
"""What a timeline can be written as."""


def page_of_lanes(timeline: Timeline, title: str, method: str = "", most: int = MOST_ROUNDS) -> str:
    """A timeline as a page that loads nothing from elsewhere.

    Args:
        timeline: the rounds.
        title: the page's heading.
        method: what stands above it.
        most: rounds that are drawn, at least 1; the table has all.
    """
    drawn = timeline.first(most)
    return rendered(
        "lane_page.html",
        title=title,
        method=method,
        said=timeline.said,
        svg=bands(drawn, f"Timeline of {len(drawn.turns)} rounds in lanes: {', '.join(drawn.lanes)}"),
        parts=drawn.parts,
        drawn=len(drawn.turns),
        left=len(timeline.turns) - len(drawn.turns),
        caption=CAPTION,
        sheet=Sheet("Rounds, in milliseconds", [*HEADS], timeline.rows()),
    )


def timeline_file(timeline: Timeline, form: str, title: str, method: str = "", most: int = MOST_ROUNDS) -> bytes:
    """A timeline as what a file of some form holds; the same rounds give the same bytes.

    Args:
        timeline: the rounds.
        form: one of `FORMS`; png and svg are drawn by matplotlib.
        title: what stands above.
        method: likewise.
        most: rounds that are drawn, at least 1.

    Raises:
        ValueError: for another form; or if matplotlib is needed and not there.
    """
    if form not in FORMS:
        raise ValueError(f"the form is '{form}'; it must be one of {', '.join(FORMS)}")
    if form == "html":
        return page_of_lanes(timeline, title, method, most).encode()
    check_matplotlib()
    with styled():
        return as_file(plotted(timeline.first(most), ", ".join(filter(None, [title, method]))), form)
