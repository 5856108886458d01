"""What a GGUF file says of its tensors, read without the vocabulary, which takes other readers seconds."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.errors import first_line, written
from talon_core.models.errors import UnreadableFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
FORMS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""How numbers of the metadata are stored, as `struct` writes it, by GGUF's number of their type."""

MOST_NESTED = 8
"""Arrays in arrays; nobody is known to write even two."""

LONGEST_NAME = 255
"""Characters of a key or of a tensor's name; ggml itself takes 63 of the latter."""

ALIGNMENT = 32
"""Of tensors in the file, where it does not say another."""


@attrs.frozen
class GgufTensor:
    """Where a tensor is in a file.

    Attributes:
        name: GGUF's.
        kind: ggml's number of the kind of its numbers or blocks.
        shape: of its numbers, the last dimension being the one of rows.
        offset: of its first byte.
        bytes_of_a_row: likewise.
    """

    name: str
    kind: int
    shape: tuple[int, ...]
    offset: int
    bytes_of_a_row: int

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """Of its bytes."""
        return (*self.shape[:-1], self.bytes_of_a_row)

    @property
    def end(self) -> int:
        """The byte behind its last."""
        return self.offset + prod(self.stored_shape)

    def read(self, path: Path) -> NDArray[np.uint8]:
        """Its bytes, shape `stored_shape`."""
        count = prod(self.stored_shape)
        data = np.fromfile(path, dtype=np.uint8, count=count, offset=self.offset)
        if len(data) != count:
            raise UnreadableFile(f"the GGUF file ends in the middle of its tensor {self.name}; fetch it again")
        return data.reshape(self.stored_shape)


@attrs.frozen
class GgufHeader:
    """What a file has.

    Attributes:
        architecture: as GGUF calls it.
        tensors: in the order of the file.
        values: the numbers of the metadata that are in no array, by their keys.
        lengths: of the arrays of the metadata, likewise.
    """

    architecture: str
    tensors: tuple[GgufTensor, ...]
    values: Mapping[str, Any]
    lengths: Mapping[str, int]

    @classmethod
    def read(cls, path: Path) -> GgufHeader:
        """Read what a file says.

        Raises:
            UnreadableFile: if it is no GGUF file, is not whole, or has tensors of a kind that ggml does not have here,
                or in places where they cannot be.
            OSError: if it cannot be opened.
        """
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise UnreadableFile("it does not begin as a GGUF file does; give another file")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                try:
                    return _Reading(data).header()
                except (struct.error, UnicodeDecodeError, KeyError, OverflowError) as error:
                    raise UnreadableFile(
                        f"the GGUF file of {len(data)} bytes is cut short or damaged: what it has cannot be read "
                        f"({first_line(error)}); fetch it again"
                    ) from error


class _Reading:
    """Goes through a header from its start."""

    def __init__(self, data: mmap.mmap) -> None:
        self._data = data
        self._at = len(MAGIC)
        self._values: dict[str, Any] = {}
        self._lengths: dict[str, int] = {}

    def header(self) -> GgufHeader:
        (version,) = self._numbers("<I")
        _check_version(version)
        tensors, values = self._numbers("<QQ")
        architecture = ""
        for _ in range(values):
            key, (kind,) = self._name("a key of its metadata"), self._numbers("<I")
            if key == "general.architecture" and kind == STRING:
                architecture = self._name(key)
            elif kind in FORMS:
                (self._values[key],) = self._numbers(f"<{FORMS[kind]}")
            else:
                self._pass(key, kind)
        table = [self._entry() for _ in range(tensors)]
        if not architecture or not table:
            raise UnreadableFile("the GGUF file names no architecture, or has no weights; give another file")
        alignment = self._values.get("general.alignment", ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise UnreadableFile(
                f"its metadata says general.alignment {alignment}; it must be a power of two, such as {ALIGNMENT}"
            )
        start = -(-self._at // alignment) * alignment
        found = tuple(self._tensor(start, alignment, *entry) for entry in table)
        _check_places(found)
        return GgufHeader(architecture, found, self._values, self._lengths)

    def _numbers(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def _name(self, what: str) -> str:
        """A string that sentences may quote."""
        (length,) = self._numbers("<Q")
        name = str(self._numbers(f"<{length}s")[0], "utf-8")
        if len(name) > LONGEST_NAME or not name.isprintable():
            raise UnreadableFile(
                f"the GGUF file of {len(self._data)} bytes is damaged: {what} is {written(name)}; it must have at most "
                f"{LONGEST_NAME} characters, all of them printable; fetch it again"
            )
        return name

    def _pass(self, key: str, kind: int, depth: int = 0) -> None:
        """Pass over a string or an array, which is in as many others."""
        if kind == STRING:
            (length,) = self._numbers("<Q")
            self._at += length
            return
        if kind != ARRAY:
            raise KeyError(f"its metadata '{key}' is of the type {kind}, which GGUF does not have")
        if depth == MOST_NESTED:
            raise UnreadableFile(
                f"its metadata '{key}' has arrays in arrays more than {MOST_NESTED} deep; give another file"
            )
        each, count = self._numbers("<IQ")
        if not depth:
            self._lengths[key] = count
        if each in FORMS:
            self._at += struct.calcsize(FORMS[each]) * count
            return
        for _ in range(count):
            self._pass(key, each, depth + 1)

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, (dimensions,) = self._name("the name of a tensor"), self._numbers("<I")
        shape = self._numbers(f"<{dimensions}Q")[::-1]
        return name, shape, *self._numbers("<IQ")

    def _tensor(
        self, start: int, alignment: int, name: str, shape: tuple[int, ...], kind: int, offset: int
    ) -> GgufTensor:
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        try:
            numbers, count = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except ValueError:
            raise UnreadableFile(
                f"its tensor {name} is of ggml's kind {kind}, which the package gguf does not know; update that, or "
                "give a file in another format"
            ) from None
        if not shape or shape[-1] % numbers:
            raise UnreadableFile(f"its tensor {name} of shape {shape} has no rows of whole blocks; give another file")
        if 0 in shape:
            raise UnreadableFile(f"its tensor {name} of shape {shape} has no numbers; give another file")
        if offset % alignment:
            raise UnreadableFile(
                f"its tensor {name} is at offset {offset}, which is no multiple of the file's alignment, {alignment}; "
                "fetch it again"
            )
        found = GgufTensor(name, kind, shape, start + offset, shape[-1] // numbers * count)
        if found.end > len(self._data):
            raise UnreadableFile(
                f"the GGUF file of {len(self._data)} bytes is cut short or damaged: its tensor {name} ends at byte "
                f"{found.end}; fetch it again"
            )
        return found


def _check_version(version: int) -> None:
    if version in VERSIONS:
        return
    backwards = int.from_bytes(version.to_bytes(4, "little"), "big")
    if backwards in VERSIONS:
        raise UnreadableFile(
            f"it is a GGUF file in big-endian order (its version reads {version}, which is {backwards} backwards); "
            "give one in little-endian order, such as gguf-convert-endian makes of it"
        )
    raise UnreadableFile(f"it is of GGUF's version {version}, where {VERSIONS[0]} or {VERSIONS[1]} can be read")


def _check_places(tensors: tuple[GgufTensor, ...]) -> None:
    seen: set[str] = set()
    for tensor in tensors:
        if tensor.name in seen:
            raise UnreadableFile(f"it has two tensors of the name {tensor.name}; give another file")
        seen.add(tensor.name)
    for one, other in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
        if one.end > other.offset:
            raise UnreadableFile(
                f"its tensors {one.name} and {other.name} overlap: one ends at byte {one.end}, and the other begins at "
                f"byte {other.offset}; fetch it again"
            )
