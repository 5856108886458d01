"""What commands write for people."""

import pytest
from rich.table import Table

from talon_core.cli import progress as cli_progress
from talon_core.cli.output import stderr, stdout, wide_stdout

SPEC = "bandit:of=chain[length=2]+talon[bold]"


@pytest.mark.parametrize("console", [stdout, wide_stdout, stderr])
def test_brackets_are_text_and_no_markup(console, capsys):
    table = Table("method", title=SPEC)
    table.add_row(SPEC)
    console().print(table)
    console().print(SPEC)
    written = "".join(capsys.readouterr())
    assert written.count(SPEC) == 3


def test_where_stderr_is_no_terminal_the_progress_is_a_line_with_the_time_that_is_left(capsys, monkeypatch):
    times = iter([0.0, 60.0, 120.0])
    monkeypatch.setattr(cli_progress.time, "monotonic", lambda: next(times))
    with cli_progress.progress("measuring", "prompts") as report:
        for done in (0, 1, 2):
            report(done, 2)
    assert capsys.readouterr().err.splitlines() == ["talon: 1 of 2 prompts, 1 min left", "talon: 2 of 2 prompts"]
