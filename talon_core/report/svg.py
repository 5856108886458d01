"""A few shapes as SVG text. Everything that is written is escaped; colours are classes, which the page defines."""

import math
from collections.abc import Sequence
from html import escape

from talon_core.report.colours import number_of, shape_of

NO_TEXT = {code: "\ufffd" for code in (*range(32), 127) if chr(code) not in "\t\n"}
"""Control characters, which HTML and XML do not have; a prompt or a name may."""


def element(name: str, inner: str = "", /, **attributes: float | str | None) -> str:
    """An element with escaped attributes; `inner` is SVG already. A trailing `_` of a name is dropped, `_` is `-`."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(_short(value), quote=True)}"'
        for key, value in attributes.items()
        if value is not None
    )
    return f"<{name}{written}>{inner}</{name}>" if inner else f"<{name}{written}/>"


def _short(value: float | str) -> str:
    return value if isinstance(value, str) else f"{round(value, 2):g}"


def picture(width: float, height: float, label: str, inner: Sequence[str], extra: str = "") -> str:
    """A whole figure; a screen reader reads its label, and the table below it."""
    return element(
        "svg",
        "".join(inner),
        role="img",
        aria_label=label,
        viewBox=f"0 0 {width:g} {height:g}",
        width=width,
        height=height,
        class_=f"figure {extra}".strip(),
    )


def shortened(text: str, most: int) -> str:
    """A name without its middle, if it is long: those of methods often differ in their ends."""
    if len(text) <= most:
        return text
    tail = (most - 1) // 2
    return text[: most - 1 - tail] + "…" + text[len(text) - tail :]


def words(x: float, y: float, text: str, class_: str = "", anchor: str | None = None, most: int | None = None) -> str:
    """A line of text, its baseline a little below `y`; of what is longer than `most` characters, the ends are there."""
    cut = text if most is None else shortened(text, most)
    title = element("title", escape(text)) if cut != text else ""
    return element("text", title + escape(cut), x=x, y=y + 4, class_=class_ or None, text_anchor=anchor)


def reach(text: str, size: float = 12) -> float:
    """Pixels that a text takes at most, in the widest of the usual fonts, and in bold."""
    return 0.7 * size * len(text)


def under(x: float, y: float, text: str, width: float, class_: str = "faint number", size: float = 12) -> str:
    """A text centred at `x`, as below an axis; beside an edge of a figure it is moved in until it is whole."""
    half = reach(text, size) / 2
    return words(min(max(x, half), width - half), y, text, class_, "middle")


def line(x1: float, y1: float, x2: float, y2: float, class_: str) -> str:
    """A straight line."""
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=class_)


def box(x: float, y: float, width: float, height: float, class_: str, title: str = "", **more: float | str) -> str:
    """A rectangle, with what is told of it where somebody points at it."""
    inner = element("title", escape(title)) if title else ""
    return element("rect", inner, x=x, y=y, width=max(width, 0.0), height=height, class_=class_, **more)


def polyline(points: Sequence[tuple[float, float]], class_: str) -> str:
    """A line through points."""
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), class_=class_)


def mark(place: int, x: float, y: float, size: float = 4.5, hollow: bool = False, title: str = "") -> str:
    """A method's mark: its shape in its colour."""
    class_ = f"m{number_of(place)} mark{' hollow' if hollow else ''}"
    inner = element("title", escape(title)) if title else ""
    shape = shape_of(place)
    if shape == "circle":
        return element("circle", inner, cx=x, cy=y, r=size, class_=class_)
    if shape == "square":
        side = 1.8 * size
        return element("rect", inner, x=x - side / 2, y=y - side / 2, width=side, height=side, class_=class_)
    outlines = {
        "diamond": ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)),
        "triangle": ((0, -1.3), (1.25, 0.95), (-1.25, 0.95)),
        "cross": (
            *((-0.4, -1.2), (0.4, -1.2), (0.4, -0.4), (1.2, -0.4), (1.2, 0.4), (0.4, 0.4)),
            *((0.4, 1.2), (-0.4, 1.2), (-0.4, 0.4), (-1.2, 0.4), (-1.2, -0.4), (-0.4, -0.4)),
        ),
    }
    corners = " ".join(f"{x + size * dx:.2f},{y + size * dy:.2f}" for dx, dy in outlines[shape])
    return element("polygon", inner, points=corners, class_=class_)


def ticks(low: float, high: float, wanted: int = 6) -> list[float]:
    """Round numbers between two, about so many, at equal distances."""
    if not high > low:
        return [low]
    rough = (high - low) / wanted
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first = math.ceil(low / step - 1e-9) * step
    found = []
    while first <= high + step * 1e-9:
        found.append(round(first, 10))
        first += step
    return found
