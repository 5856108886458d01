"""The notebook that tries TALON on a lent GPU: nobody runs it here, but what it calls is there."""

import json
import re
from pathlib import Path

import pytest

from talon_kernels.compiling import TARGETS

ROOT = Path(__file__).parents[2]
NOTEBOOK = json.loads((ROOT / "docs/gpu.ipynb").read_text(encoding="utf-8"))
CELLS = NOTEBOOK["cells"]


def text_of(cell):
    return "".join(cell["source"])


CODE = [text_of(cell) for cell in CELLS if cell["cell_type"] == "code"]


def test_it_is_a_notebook_and_stores_no_outputs():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["metadata"]["kernelspec"]["language"]) == (4, "python")
    assert {cell["cell_type"] for cell in CELLS} == {"code", "markdown"}
    assert len({cell["id"] for cell in CELLS}) == len(CELLS)
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in CELLS if "outputs" in cell)
    assert sum("outputs" in cell for cell in CELLS) == len(CODE)


def test_it_makes_what_can_be_made():
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    called = re.findall(r"^!make (\S+)", "\n".join(CODE), re.MULTILINE)
    assert called == ["gpu"]
    assert {*called} <= targets


@pytest.mark.parametrize("code", CODE)
def test_its_python_compiles(code):
    python = "\n".join(line for line in code.splitlines() if not line.startswith(("!", "%")))
    compile(python, "gpu.ipynb", "exec")


def test_it_names_the_cards_that_are_compiled_for_and_shows_the_file_that_is_written():
    named = {int(found) for found in re.findall(r"sm_(\d+)", "".join(map(text_of, CELLS)))}
    assert named == {target.arch for target in TARGETS if target.backend == "cuda"}
    script = (ROOT / "tests/gpu_check.py").read_text(encoding="utf-8")
    for name in re.findall(r'Path\("([^"]+)"\)|download\("([^"]+)"\)', "\n".join(CODE)):
        assert f'"{"".join(name)}"' in script
    for key in re.findall(r"""(?:report|step)\[["'](\w+)["']\]""", "\n".join(CODE)):
        assert f'"{key}"' in script or f"    {key}: " in script
