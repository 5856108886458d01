"""Files that show who did what when."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from talon_core.basics.paths import check_file
from talon_core.cli.output import note

if TYPE_CHECKING:
    from talon_core.rounds import Round


def check_timeline(file: Path, option: str) -> None:
    """Refuse a file that a timeline cannot be written to, before anything else is done.

    Args:
        file: where it is to go; its ending says as what.
        option: the option that names it.

    Raises:
        ValueError: if a timeline has no such ending, it is in no folder that exists, or what draws it is not there.
    """
    from talon_core.report.lane_page import FORMS

    check_file(file, option)
    if _form(file) not in FORMS:
        raise ValueError(f"{option} is '{file}'; it must end in .html, .png or .svg")
    if _form(file) != "html":
        from talon_core.report.plotting import check_matplotlib

        check_matplotlib(option)


def _form(file: Path) -> str:
    return file.suffix.removeprefix(".").lower()


def write_timeline(file: Path, rounds: Sequence["Round"], title: str, method: str, middle: int | None = None) -> None:
    """Write the rounds of one text; say so where there are more than are drawn.

    Args:
        file: has passed `check_timeline`.
        rounds: in order.
        title: what stands above.
        method: what made them, in a few words.
        middle: how many from the middle of the text are written; None for all.
    """
    from talon_core.basics.paths import write_whole_bytes
    from talon_core.report.lane_page import timeline_file
    from talon_core.report.lanes import MOST_ROUNDS, timeline_of

    timeline = timeline_of(rounds)
    if middle is not None:
        timeline = timeline.middle(middle)
    write_whole_bytes(file, timeline_file(timeline, _form(file), title, method))
    if len(timeline.turns) > MOST_ROUNDS:
        note(f"'{file}' shows the first {MOST_ROUNDS} of {len(timeline.turns)} rounds")
