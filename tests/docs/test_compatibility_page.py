"""What the page on compatibility says of versions, keys and formats is so."""

import re
import tomllib
from pathlib import Path

import numpy as np

from talon_core import Request, TableTarget
from talon_core.bench.results import FORMAT
from talon_core.cli.generate import as_object
from talon_core.decoding.decoder import Decoder
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import load_registry
from talon_strategies import Match

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "compatibility.md").read_text()


def section(heading: str) -> str:
    return re.split(r"^## ", PAGE.split(f"\n## {heading}\n")[1], flags=re.MULTILINE)[0]


def test_the_keys_of_generate_are_on_the_page_and_no_others():
    decoder = Decoder(TableTarget(np.log([[0.25, 0.75], [0.5, 0.5]])), Match())
    (result,) = decoder.run_all([Request(ids=np.array([0]), max_new_tokens=2)])
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \|", section("JSON"), re.MULTILINE)
    printed = as_object("m", resolve(Parts(), load_registry()), result)
    assert [key for row in rows for key in re.findall(r"`(\w+)`", row)] == list(printed)


def test_the_formats_on_the_page_are_those_that_are_written():
    assert re.findall(r"`format` in `manifest.json`, now (\d+)", section("Files")) == [str(FORMAT)]


def test_the_versions_on_the_page_are_those_that_are_required_and_pinned():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project, ours = settings["project"], [one for one in settings["dependency-groups"]["dev"] if isinstance(one, str)]
    wanted = [*project["dependencies"], *project["optional-dependencies"]["testing"], *ours]
    least = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(wanted), re.MULTILINE))
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    rows = re.findall(r"^\| `(\w+)`[^|]* \| ([\d.]+) \| ([\d.]+) \|$", section("Supported versions"), re.MULTILINE)
    assert [name for name, _, _ in rows] == ["torch", "transformers", "triton", "numpy", "hypothesis"]
    assert all((low, tested) == (least[name], pinned[name]) for name, low, tested in rows)
    assert f"| Python | {project['requires-python'].removeprefix('>=')} |" in PAGE
