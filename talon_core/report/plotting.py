"""What the figures that matplotlib draws have in common: how they look, and how they become files."""

import io
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from talon_core.basics.extras import library
from talon_core.report.colours import LIGHT
from talon_core.report.svg import NO_TEXT

STYLE: dict[str, Any] = {
    "svg.hashsalt": "talon",  # names within the file, which would be random
    "svg.fonttype": "path",  # looks the same where the font is not there
    "font.family": "DejaVu Sans",  # travels with matplotlib
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": LIGHT.faint,
    "axes.grid": True,
    "grid.color": LIGHT.rule,
    "grid.linewidth": 0.7,
    "axes.axisbelow": True,
    "figure.constrained_layout.use": True,
    "savefig.dpi": 160,
    "text.usetex": False,
}
PARTS = {
    "prefill": (LIGHT.page, "...."),
    "draft": (LIGHT.drafter, ""),
    "policy": (LIGHT.page, "////"),
    "prepare": (LIGHT.page, "\\\\\\\\"),
    "wait": (LIGHT.page, ""),
    "verify": (LIGHT.faint, ""),
    "accept": (LIGHT.page, "\\\\\\\\"),
    "commit": (LIGHT.page, "----"),
    "other": (LIGHT.page, ""),
}
"""How parts of the time are filled."""
EDGES = {"policy": LIGHT.drafter, "prepare": LIGHT.drafter, "wait": LIGHT.ink}
"""The colours of edges and hatches that are others than the rest."""


def check_matplotlib(wanted_by: str = "--figures") -> None:
    """See that matplotlib is there.

    Args:
        wanted_by: the option that needs it.

    Raises:
        ValueError: if it is not; the sentence says how to get it.
    """
    library("matplotlib", "plots", wanted_by)


def as_file(figure: Any, form: str) -> bytes:
    """A figure of matplotlib as what a file of this form holds."""
    file = io.BytesIO()
    nothing: dict[str, Any] = {"Date": None} if form == "svg" else {"Software": None}
    figure.savefig(file, format=form, bbox_inches="tight", metadata=nothing)
    data = file.getvalue()
    return data.decode().translate(NO_TEXT).encode() if form == "svg" else data


@contextmanager
def styled() -> Iterator[None]:
    """Figures that are drawn inside look like a report's."""
    import matplotlib

    with (
        warnings.catch_warnings(),
        matplotlib.rc_context(),
    ):  # nothing of the user's own style, and nothing of ours for others
        warnings.simplefilter("ignore", UserWarning)  # letters that the font lacks are drawn as boxes
        matplotlib.rcdefaults()
        settings: Any = matplotlib.rcParams
        settings.update(STYLE)
        yield


def new_figure(width: float, height: float, rows: int = 1, columns: int = 1, **options: Any) -> tuple[Any, Any]:
    """A figure and its axes; without pyplot, which would choose a window system and keep every figure."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height))
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def plain(text: str) -> str:
    """A name in which matplotlib reads no formula."""
    return text.replace("$", r"\$")


def bar(axes: Any, at: float, start: float, end: float, part: str, label: str | None) -> None:
    """A part's time as a bar at this height."""
    colour, hatch = PARTS[part]
    edge = EDGES.get(part, LIGHT.faint)
    axes.barh(at, end - start, 0.62, start, color=colour, hatch=hatch, edgecolor=edge, linewidth=0.5, label=label)
