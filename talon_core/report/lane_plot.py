"""Who did what when, drawn by matplotlib."""

from collections.abc import Sequence
from typing import Any

from talon_core.report.colours import LIGHT
from talon_core.report.lanes import Timeline, Turn
from talon_core.report.plotting import bar, new_figure, plain

WORD = 0.075
"""Of a row: how long a round is at least that what came of it is written beside its number."""


def plotted(timeline: Timeline, title: str) -> Any:
    """A timeline as a figure of matplotlib: bands as on the page."""
    bands = timeline.bands()
    figure, grid = new_figure(7.2, 0.9 + len(bands) * (0.5 + 0.17 * len(timeline.lanes)), len(bands))
    told = set[str]()
    for axes, band in zip(grid[:, 0], bands, strict=True):
        draw_band(axes, timeline, band, told)
    grid[-1][0].set_xlabel("milliseconds after the first round of a row began")
    figure.suptitle(plain(title), fontsize=9, x=0.01, ha="left")
    figure.legend(loc="outside lower left", ncols=7, frameon=False, fontsize=7)
    return figure


def draw_band(axes: Any, timeline: Timeline, band: Sequence[Turn], told: set[str]) -> None:
    """Draw rounds beside each other.

    Args:
        axes: of matplotlib.
        timeline: says what lanes there are, and how wide a band is.
        band: the rounds.
        told: parts that are in the legend already; those that are drawn here join them.
    """
    begin, lanes = band[0].start, timeline.lanes
    axes.set_yticks([-number for number in range(len(lanes))], [*lanes], fontsize=7)
    axes.tick_params(axis="x", labelsize=7)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", visible=False)
    axes.set(xlim=(0, timeline.width), ylim=(-len(lanes) + 0.4, 1.4))
    for turn in band:
        axes.axvline(turn.start - begin, color=LIGHT.faint, linewidth=0.6)
        said = f" {turn.number} {turn.came if turn.end - turn.start > WORD * timeline.width else turn.came[:1]}"
        axes.text(turn.start - begin, 0.6, said, fontsize=6, va="bottom", clip_on=True)
        for number, own in enumerate(lanes.values()):
            for one in (each for each in turn.stretches if each.part in own):
                label = None if one.part in told else one.part
                bar(axes, -number, one.start - begin, one.end - begin, one.part, label)
                told.add(one.part)
