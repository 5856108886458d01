"""A picture of what was tried: the speed-up against each option, and over the two that matter most."""

import io
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import fmean, pvariance
from typing import Any

from talon_core.basics.extras import library
from talon_core.basics.paths import check_file, write_whole_bytes
from talon_core.searching import Among
from talon_core.tune.run import Tuned
from talon_core.tune.search import Trial
from talon_core.tune.space import Dimension

ENDINGS = (".png", ".svg")
GROUPS = 5
"""Into so many equal groups trials are put by an option's value, to see how much it matters."""


def check_picture(file: Path) -> None:
    """Refuse what cannot become a picture, before anything is searched.

    Raises:
        ValueError: if its ending is another one, it cannot be written, or matplotlib is not there.
    """
    check_file(file, "--picture")
    if file.suffix.lower() not in ENDINGS:
        raise ValueError(f"--picture is '{file}'; it must end in {' or '.join(ENDINGS)}")
    _matplotlib()


def matters(dimension: Dimension, trials: Sequence[Trial]) -> float:
    """How much of the speed-ups' variance an option explains by itself, from 0 to 1.

    Trials are put into groups by its value, those without a place along its axis left out; it is the variance between
    the groups' means, each counted as often as it has trials. With few trials that is too much, as chance explains
    some; it serves to put options in an order.
    """
    each = [(_place(dimension, trial.options), trial.speed_up or 0.0) for trial in trials if trial.counts]
    known = [(place, speed) for place, speed in each if place is not None]
    speeds = [speed for _, speed in known]
    if len(known) < 2 or not pvariance(speeds):
        return 0.0
    if isinstance(dimension.values, Among):
        groups = [[speed for place, speed in known if place == own] for own in {place for place, _ in known}]
    else:
        rising = [speed for _, speed in sorted(known)]
        ends = [len(rising) * number // GROUPS for number in range(GROUPS + 1)]
        groups = [rising[low:high] for low, high in pairwise(ends) if high > low]
    middle = fmean(speeds)
    between = sum(len(group) * (fmean(group) - middle) ** 2 for group in groups) / len(speeds)
    return between / pvariance(speeds)


def draw(tuned: Tuned, file: Path) -> None:
    """Draw all trials of the search on all texts; `file` is there as a whole or not at all.

    Args:
        tuned: what was searched, and what came of it.
        file: it ends in `.png` or `.svg`.

    Raises:
        ValueError: as `check_picture` says.
        OSError: if it cannot be written.
    """
    check_picture(file)
    matplotlib = _matplotlib()
    from matplotlib.figure import Figure

    order = sorted(tuned.dimensions, key=lambda one: -matters(one, tuned.trials))
    panels = len(order) + (len(order) > 1)
    columns = min(3, panels)
    rows = -(-panels // columns)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()  # nothing of the user's own style
        matplotlib.rcParams.update({"svg.hashsalt": "talon", "svg.fonttype": "path", "font.size": 9})
        figure = Figure(figsize=(4.2 * columns, 3.4 * rows), layout="constrained")
        axes = [figure.add_subplot(rows, columns, number + 1) for number in range(panels)]
        for axis, one in zip(axes, order, strict=False):
            _against(axis, one, tuned)
        if len(order) > 1:
            _map(figure, axes[-1], order[0], order[1], tuned)
        known = dict(zip(*reversed(axes[0].get_legend_handles_labels()), strict=True))
        figure.legend(known.values(), known.keys(), loc="outside lower center", ncols=len(known), frameon=False)
        figure.suptitle(f"{tuned.space.policy}: speed-up over plain decoding, predicted, {tuned.texts} texts")
        data = io.BytesIO()
        svg = file.suffix.lower() == ".svg"
        figure.savefig(data, format=file.suffix.lower()[1:], dpi=150, metadata={"Date": None} if svg else None)
    write_whole_bytes(file, data.getvalue())


def _matplotlib() -> Any:
    return library("matplotlib", "plots", "--picture")


def _place(one: Dimension, options: Any) -> float | None:
    """Where a value stands along its axis; None if it is none of the searched ones' kind."""
    text = options[one.option]
    if isinstance(one.values, Among):
        return float(one.values.values.index(text)) if text in one.values.values else None
    try:
        found = float(text)
    except ValueError:
        return None
    return None if one.values.log and found <= 0 else found


def _scaled(one: Dimension, axis: Any, which: str) -> None:
    """Make an axis, "x" or "y", as the option's values are."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    own = getattr(axis, f"{which}axis")
    if isinstance(one.values, Among):
        own.set_ticks(range(len(one.values.values)), labels=one.values.values)
    elif one.values.log:
        getattr(axis, f"set_{which}scale")("log")
        own.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        own.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        own.set_minor_locator(NullLocator())


def _marked(tuned: Tuned) -> list[tuple[str, Trial, str, str]]:
    """What stands out: as it is without a search, and the best."""
    return [("without a search", tuned.trials[0], "s", "tab:orange"), ("best", tuned.best, "*", "tab:red")]


def _against(axis: Any, one: Dimension, tuned: Tuned) -> None:
    """The speed-up against one option."""
    for counts, look in ((True, {"c": "tab:blue", "alpha": 0.6}), (False, {"c": "tab:gray", "marker": "x"})):
        points = [
            (place, trial.speed_up)
            for trial in tuned.trials
            if trial.counts is counts and trial.speed_up is not None
            for place in [_place(one, trial.options)]
            if place is not None
        ]
        if points:
            label = "a trial" if counts else "not answered in full"
            axis.scatter(*zip(*points, strict=True), s=18, label=label, **look)
    for label, trial, marker, color in _marked(tuned):
        place = _place(one, trial.options)
        if place is not None and trial.speed_up is not None:
            axis.scatter([place], [trial.speed_up], s=110, marker=marker, c=color, edgecolors="black", label=label)
    axis.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    _scaled(one, axis, "x")
    axis.set_xlabel(one.option)
    axis.set_ylabel("speed-up")


def _map(figure: Any, axis: Any, across: Dimension, up: Dimension, tuned: Tuned) -> None:
    """The speed-up over two options: what was tried, and nothing between."""
    points = [
        (*places, trial.speed_up)
        for trial in tuned.trials
        if trial.counts
        for places in [(_place(across, trial.options), _place(up, trial.options))]
        if None not in places
    ]
    if points:
        xs, ys, speeds = zip(*points, strict=True)
        shown = axis.scatter(xs, ys, c=speeds, s=60, cmap="viridis", edgecolors="none")
        figure.colorbar(shown, ax=axis, label="speed-up")
    for _, trial, marker, color in _marked(tuned):
        x, y = _place(across, trial.options), _place(up, trial.options)
        if x is not None and y is not None:
            axis.scatter([x], [y], s=110, marker=marker, facecolors="none", edgecolors=color, linewidths=1.5)
    _scaled(across, axis, "x")
    _scaled(up, axis, "y")
    axis.set_xlabel(across.option)
    axis.set_ylabel(up.option)
