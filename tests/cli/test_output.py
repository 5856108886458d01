"""What commands write for people."""

import pytest
from rich.table import Table

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
