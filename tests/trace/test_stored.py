"""Files that are written part by part are those of safetensors, and their columns need not be in memory."""

import errno
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from talon_core.trace.stored import PART, TYPES, Stored, file_parts, mapped

METADATA = {"text": '{"set": "Fl\\u00fcsse \\"1\\"", "prompt": 0}\u20ac\n\\'}


def made(rows: int) -> dict[str, np.ndarray[Any, Any]]:
    rng = np.random.default_rng(0)
    kinds = [*TYPES.values(), *TYPES.values()]
    found = {f"{9 - number}.of": rng.integers(0, 2, (rows, 3)).astype(kind) for number, kind in enumerate(kinds)}
    return {**found, "one": np.array([5], dtype=np.int64), "turned": found["9.of"].T}


@pytest.mark.parametrize("rows", [0, 1, 7, 100])
def test_the_bytes_are_those_of_safetensors(rows: int, tmp_path: Path) -> None:
    columns = made(rows)
    whole = {name: np.ascontiguousarray(column) for name, column in columns.items()}
    data = b"".join(file_parts(columns, METADATA))
    assert data == save(whole, METADATA)
    (tmp_path / "file").write_bytes(data)
    for name, column in mapped(tmp_path / "file").items():
        assert np.array_equal(column, columns[name])


@pytest.mark.parametrize("rows", [0, 1, 3 * PART // 400])
def test_a_column_in_a_file_of_its_own_is_copied_part_by_part(rows: int, tmp_path: Path) -> None:
    kept = np.random.default_rng(0).random((rows, 100)).astype(np.float32)
    (tmp_path / "own").write_bytes(kept.tobytes())
    file = (tmp_path / "own").open("rb")
    parts = [*file_parts({"b": Stored(file, kept.dtype, kept.shape), "a": np.zeros(3)}, METADATA)]
    assert file.closed
    assert max(map(len, parts)) <= PART
    assert b"".join(parts) == save({"a": np.zeros(3), "b": kept}, METADATA)
    assert np.array_equal(load(b"".join(parts))["b"], kept)


def test_more_files_are_mapped_than_a_process_may_have_open_at_first(tmp_path: Path) -> None:
    resource = pytest.importorskip("resource")
    (tmp_path / "file").write_bytes(b"".join(file_parts({"a": np.arange(3)}, METADATA)))
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    least = max(map(int, os.listdir("/dev/fd"))) + 8
    if hard != resource.RLIM_INFINITY and hard < 2 * least + 64:
        pytest.skip(f"the system lets a process have {hard} files open")
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (least, hard))
        opened = [mapped(tmp_path / "file") for _ in range(least + 1)]
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > least
        assert all(each["a"].tolist() == [0, 1, 2] for each in opened)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_where_no_more_files_may_be_open_the_error_says_which_file_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"".join(file_parts({"a": np.arange(3)}, METADATA)))

    def full(*given: Any, **more: Any) -> Any:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr("talon_core.trace.stored.mmap.mmap", full)
    monkeypatch.setattr("talon_core.trace.stored._more_may_be_open", lambda: False)
    with pytest.raises(OSError, match=f"Too many open files.*{tmp_path / 'file'}"):
        mapped(tmp_path / "file")
