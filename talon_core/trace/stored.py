"""Columns in a safetensors file, which is read and written without holding in memory what is large."""

import errno
import json
import math
import mmap
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import IO, Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.basics.paths import about
from talon_core.tree_arrays import IntArray

TYPES = {"BOOL": "?", "U16": "<u2", "I32": "<i4", "F32": "<f4", "F64": "<f8", "I64": "<i8"}
"""Numbers as a safetensors file names them, and as NumPy does; in a file those that stand last here come first."""

PART = 2**20
"""Bytes that are copied at once."""


@attrs.frozen(eq=False)
class Stored:
    """A column that lies in a file of its own, and in no memory.

    Attributes:
        file: holds its numbers and nothing else, row by row. It is closed when they have been copied, so that a
            temporary one takes no more room then.
        dtype: of its numbers.
        shape: `(rows, width)`.
    """

    file: IO[bytes]
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


def file_parts(columns: Mapping[str, NDArray[Any] | Stored], metadata: Mapping[str, str]) -> Iterator[bytes]:
    """A file of some columns, part by part: the same bytes as those of `safetensors.numpy.save`.

    It begins with eight bytes, the length of a header in JSON that says where each column is behind it.

    Args:
        columns: by name.
        metadata: words that the header holds besides.
    """
    known = {np.dtype(kind): (place, name) for place, (name, kind) in enumerate(TYPES.items())}
    names, end = sorted(columns, key=lambda name: (-known[columns[name].dtype][0], name)), 0
    header: dict[str, Any] = {"__metadata__": metadata}
    for name in names:
        column = columns[name]
        begin, end = end, end + math.prod(column.shape) * column.dtype.itemsize
        kind = known[column.dtype][1]
        header[name] = {"dtype": kind, "shape": [*column.shape], "data_offsets": [begin, end]}
    text = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    yield len(text).to_bytes(8, "little") + text
    for name in names:
        yield from _parts(columns[name])


def _parts(column: NDArray[Any] | Stored) -> Iterator[bytes]:
    if isinstance(column, np.ndarray):
        yield np.ascontiguousarray(column).tobytes()
        return
    with column.file as opened:
        opened.seek(0)
        while part := opened.read(PART):
            yield part


def mapped(file: Path) -> dict[str, NDArray[Any]]:
    """The columns of a safetensors file, which stay on disk until they are looked at.

    Args:
        file: one that safetensors opens; `file_parts` tells its form.
    """
    try:
        data = _opened(file)
    except OSError as error:  # each file that is mapped counts as an open one
        if error.errno != errno.EMFILE or not _more_may_be_open():
            raise
        data = _opened(file)
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    found: dict[str, NDArray[Any]] = {}
    for name, told in header.items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in told["data_offsets"])
            kind = np.dtype(TYPES[told["dtype"]])
            found[name] = np.frombuffer(data, kind, (end - start) // kind.itemsize, start).reshape(told["shape"])
    return found


GAP = 16
"""Parts that are left out between two may be as long as so many, for these to be read as one: a read takes as long."""


def parts_of(file: Path, column: NDArray[Any], firsts: IntArray, count: int) -> NDArray[Any]:
    """Some numbers of a column, read from its file: to map a page that nobody has looked at takes longer.

    Args:
        file: that was mapped.
        column: of it.
        firsts: the first number of each part, as an index into the flattened column, shape `(parts,)`.
        count: of each part; behind the column's end there are zeros.

    Returns:
        Shape `(parts, count)`.
    """
    found, size = np.zeros((len(firsts), count), column.dtype), column.dtype.itemsize
    begin = _address(column) - _address(np.frombuffer(_map_of(column), np.uint8))
    behind = np.diff(firsts)
    (ends,) = ((behind <= 0) | (behind > GAP * count) | (behind % count > 0)).nonzero()
    if not file.exists():  # what is mapped stays there
        flat = column.reshape(-1)
        for part, first in zip(found, firsts.tolist(), strict=True):
            part[: column.size - first] = flat[first : first + count]
        return found
    with file.open("rb", buffering=0) as opened, about(file):
        if 2 * len(ends) > len(firsts):  # most stand alone
            for part, first in zip(found, firsts.tolist(), strict=True):
                _read(opened, part[: column.size - first], begin + first * size)
            return found
        begins, ends = np.append(0, ends + 1), np.append(ends, len(firsts) - 1)
        spans = firsts[ends] + count - firsts[begins] if len(firsts) else ends
        room = np.zeros(spans.max(initial=0), column.dtype)  # new memory of that size takes longer than to read
        for one, last, span in zip(begins.tolist(), ends.tolist(), spans.tolist(), strict=True):
            if span > 0:
                first = firsts.item(one)
                own = room[:span]
                own[column.size - first :] = 0
                _read(opened, own[: column.size - first], begin + first * size)
                found[one : last + 1] = own.reshape(-1, count).take((firsts[one : last + 1] - first) // count, axis=0)
    return found


def _read(opened: FileIO, into: NDArray[Any], place: int) -> None:
    if hasattr(os, "preadv"):  # not on Windows
        os.preadv(opened.fileno(), [into.data], place)
    else:
        opened.seek(place)
        opened.readinto(into.data)


def _map_of(column: NDArray[Any]) -> Any:
    base: Any = column
    while isinstance(base, np.ndarray):
        base = base.base
    return base.obj if isinstance(base, memoryview) else base


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


def _opened(file: Path) -> mmap.mmap:
    with file.open("rb") as opened, about(file):
        return mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)


def _more_may_be_open() -> bool:
    """Let this process have as many files open as the system lets it; whether these are more than before."""
    try:
        import resource
    except ImportError:  # not on Windows
        return False
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(ValueError, OSError):  # of a system that has a limit besides
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] != soft
