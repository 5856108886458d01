"""What reports are painted with, on light pages and on dark ones.

Methods are told apart by colour and by the shape of their marks. The colours have a contrast of at least 4.5 to the
page, so that they can be text, and differ for people who do not see red, green or blue; `tests/report` computes both.
"""

from collections.abc import Mapping, Sequence

import attrs


@attrs.frozen
class Scheme:
    """One of the two.

    Attributes:
        page: what is behind everything.
        panel: what is behind figures' controls and code.
        ink: of text.
        faint: of what is said beside.
        rule: of lines that only separate.
        accent: of links, the focus and headings' marks.
        drafter: of the drafter's time.
        heat: of the fullest cell of a heat map; `HEAT` of it lies over the page.
        methods: by `Shown.place`; the first is plain decoding's.
    """

    page: str
    panel: str
    ink: str
    faint: str
    rule: str
    accent: str
    drafter: str
    heat: str
    methods: Sequence[str]


LIGHT = Scheme(
    page="#ffffff",
    panel="#f6f5f1",
    ink="#1c1f23",
    faint="#5d636b",
    rule="#d9d7d0",
    accent="#0b5a50",
    drafter="#b3246a",
    heat="#0b5a50",
    methods=("#696e75", "#076bdd", "#922500", "#0b5a50", "#8526a0", "#8e6806", "#1d1f5c"),
)
DARK = Scheme(
    page="#14171c",
    panel="#1c2026",
    ink="#e9eaec",
    faint="#a5abb3",
    rule="#3a4048",
    accent="#47e6a5",
    drafter="#ff7fb4",
    heat="#2fae80",
    methods=("#8f959d", "#5099ff", "#f0883e", "#47e6a5", "#c0aedd", "#ecde39", "#c2e4ff"),
)
SCHEMES: Mapping[str, Scheme] = {"light": LIGHT, "dark": DARK}

HEAT = 0.5
"""How much of its colour the fullest cell of a heat map has: the number in it stays legible."""
SHAPES = ("circle", "square", "diamond", "triangle", "cross")
"""Marks of the methods; there are fewer than colours, so that both together come again late."""


def number_of(place: int) -> int:
    """The colour of a method: plain decoding's is its own, the others go round."""
    return 0 if place == 0 else 1 + (place - 1) % (len(LIGHT.methods) - 1)


def shape_of(place: int) -> str:
    """The mark of a method."""
    return SHAPES[place % len(SHAPES)]


def channels(colour: str) -> tuple[float, float, float]:
    """Linear red, green and blue in [0, 1] of a colour written `#rrggbb`."""

    def linear(value: int) -> float:
        share = value / 255
        return share / 12.92 if share <= 0.04045 else float(((share + 0.055) / 1.055) ** 2.4)

    red, green, blue = (linear(int(colour[at : at + 2], 16)) for at in (1, 3, 5))
    return red, green, blue


def contrast(one: str, other: str) -> float:
    """The contrast of two colours by the Web Content Accessibility Guidelines (WCAG) 2, from 1 to 21."""

    def luminance(colour: str) -> float:
        return sum(part * share for part, share in zip(channels(colour), (0.2126, 0.7152, 0.0722), strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def blended(over: str, share: float, under: str) -> str:
    """What is seen where a colour lies over another one with this opacity."""
    parts = [round(share * int(over[at : at + 2], 16) + (1 - share) * int(under[at : at + 2], 16)) for at in (1, 3, 5)]
    return "#" + "".join(f"{part:02x}" for part in parts)
