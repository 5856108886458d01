"""The deployment page names every environment variable that the code reads, and none of TALON's that it does not."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "deployment.md").read_text()
PACKAGES = [ROOT / "talon_core", ROOT / "strategies", ROOT / "drafters", ROOT / "kernels"]
OURS = re.compile(r"TALON_[A-Z0-9_]+")


def in_the_tables() -> set[str]:
    rows = re.findall(r"^\| ((?:`[A-Z_]+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([A-Z_]+)`", row)}


def read_by(source: str) -> Iterator[str]:
    """The environment variables that code asks for by name, and every text that is the name of one of TALON's."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and OURS.fullmatch(node.value):
            yield node.value
        asked = None
        if isinstance(node, ast.Call) and re.search(r"environ\.(get|pop|setdefault)$|getenv$", ast.unparse(node.func)):
            asked = node.args[0]
        elif isinstance(node, ast.Subscript) and ast.unparse(node.value).endswith("environ"):
            asked = node.slice
        if isinstance(asked, ast.Constant) and isinstance(asked.value, str):
            yield asked.value


@cache
def read() -> set[str]:
    return {name for folder in PACKAGES for file in folder.rglob("*.py") for name in read_by(file.read_text())}


def test_reading_a_variable_is_seen_however_it_is_written():
    for code in (
        'os.environ.get("TALON_X", "1")',
        'environ["TALON_X"]',
        'os.getenv("TALON_X")',
        'if "TALON_X" in os.environ: pass',
        'NAME = "TALON_X"',
    ):
        assert set(read_by(code)) == {"TALON_X"}
    assert set(read_by('os.environ.get("CC")')) == {"CC"}
    assert set(read_by('raise ValueError("set TALON_X to a folder")')) == set()


def test_every_variable_that_the_code_reads_is_on_the_page():
    assert read() - in_the_tables() == set()


def test_the_page_names_no_variable_of_talons_that_the_code_does_not_read():
    assert set(OURS.findall(PAGE)) == {name for name in read() if OURS.fullmatch(name)}
