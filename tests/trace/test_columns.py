"""The columns of a text stay on the disk until they are looked at, so that a trace may be larger than the memory."""

import json
import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest
from safetensors.numpy import load, save

from talon_core.plugins.registry import load_registry
from talon_core.trace.columns import COLUMNS, SUM
from talon_core.trace.folder import Trace, write_manifest
from talon_core.trace.methods import parse_method
from talon_core.trace.run import replayed
from talon_core.trace.sums import row_sums

SMALL = {"width": 8, "nodes": 4, "depth": 3}
WIDER = 200_000
"""Candidates of each row of the text that does not fit into the memory."""
METHOD = "chain:length=2"


def test_columns_lie_in_the_file_and_not_in_the_memory(tiny: Any, recorded: Callable[..., Trace]) -> None:
    for text in recorded(tiny, **SMALL):
        assert text.rows is not None
        assert text.along is not None
        columns = [*attrs.asdict(text.rows, recurse=False).values(), *attrs.astuple(text.along, recurse=False)]
        assert len(columns) == len([*COLUMNS, "sums", "ranks", "reach", "shallow"])
        for column in columns:
            held: Any = column
            while isinstance(held, np.ndarray):
                assert not held.flags.owndata
                held = held.base
            assert isinstance(held.obj if isinstance(held, memoryview) else held, mmap.mmap)


def widen(file: Path) -> int:
    """Give each row of a text many more candidates; those are holes in the file. Returns how large that is.

    Its other columns are as before, but for the checksums of its rows; of all of them together it has none then.
    """
    data = file.read_bytes()
    told = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])["__metadata__"]
    columns = load(data)
    told = {"text": json.dumps({**json.loads(told["text"]), SUM: None})}
    offered = {name: columns.pop(name) for name in ("tokens", "logp")}
    for row in range(len(columns["sums"])):  # one by one, as together they are what does not fit
        each = (np.pad(column[row], (0, WIDER - column.shape[1]))[None] for column in offered.values())
        columns["sums"][row : row + 1] = row_sums(*each)
    rest = save(columns)
    length = int.from_bytes(rest[:8], "little")
    header, end, places = json.loads(rest[8 : 8 + length]), 0, {}
    for name, column in sorted(offered.items()):  # the wider numbers first: NumPy copies all of what is not aligned
        shape, places[name] = (len(column), WIDER), end
        end += len(column) * WIDER * column.itemsize
        kind = {"uint16": "U16", "float32": "F32"}[column.dtype.name]
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [places[name], end]}
    for name in columns:
        header[name]["data_offsets"] = [end + offset for offset in header[name]["data_offsets"]]
    text = json.dumps({"__metadata__": told, **header}).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as opened:
        opened.write(len(text).to_bytes(8, "little") + text)
        opened.seek(end, os.SEEK_CUR)
        opened.write(rest[8 + length :])
    for name, column in offered.items():
        own = np.memmap(file, column.dtype, "r+", 8 + len(text) + places[name], (len(column), WIDER))
        own[:, : column.shape[1]] = column
    return end


REPLAY = """
import re, resource, sys
from pathlib import Path
import numpy as np
from talon_core.plugins.registry import load_registry
from talon_core.trace.folder import read_trace
from talon_core.trace.methods import parse_method
from talon_core.trace.run import replayed

trace = read_trace(Path(sys.argv[1]))
registry = load_registry()
taken = 1024 * int(re.search(r"VmData:\\s*(\\d+)", Path("/proc/self/status").read_text())[1])
resource.setrlimit(resource.RLIMIT_DATA, (taken + int(sys.argv[2]),) * 2)
(one,) = replayed(trace, [parse_method(sys.argv[3], trace, registry)], jobs=1).tried
(text,) = trace
try:
    np.array(text.rows.logp)
except MemoryError:
    print(one.totals)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="memory that files are mapped into counts elsewhere")
def test_a_text_that_does_not_fit_into_the_memory_is_replayed(
    tiny: Any, recorded: Callable[..., Trace], tmp_path: Path
) -> None:
    trace = recorded(tiny, **SMALL)
    own = Trace(tmp_path, trace.manifest)
    (tmp_path / "texts").mkdir()
    first = trace.texts()[0]
    own.file(*first).write_bytes(trace.file(*first).read_bytes())
    write_manifest(own)
    (known,) = replayed(own, [parse_method(METHOD, own, load_registry())], jobs=1).tried
    size = widen(own.file(*first))
    assert size > 4e8
    command = [sys.executable, "-c", REPLAY, str(tmp_path), str(size // 3), METHOD]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == (f"{known.totals}\n", 0), done.stderr
