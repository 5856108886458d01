"""What a GGUF file says of its tensors, read without the vocabulary, which takes other readers seconds."""

from __future__ import annotations

import mmap
import struct
from math import prod
from pathlib import Path
from typing import Any

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.errors import first_line
from talon_core.models.errors import UnreadableFile

MAGIC = b"GGUF"
VERSIONS = (2, 3)
STRING, ARRAY = 8, 9
SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of the values of the metadata, by GGUF's number of their type."""

UINT32 = 4
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
    """

    architecture: str
    tensors: tuple[GgufTensor, ...]

    @classmethod
    def read(cls, path: Path) -> GgufHeader:
        """Read what a file says.

        Raises:
            UnreadableFile: if it is no GGUF file, is not whole, or has tensors of a kind that ggml does not have here.
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

    def header(self) -> GgufHeader:
        version, tensors, values = self._numbers("<IQQ")
        if version not in VERSIONS:
            raise UnreadableFile(f"it is of GGUF's version {version}, where {VERSIONS[0]} or {VERSIONS[1]} can be read")
        architecture, alignment = "", ALIGNMENT
        for _ in range(values):
            key, (kind,) = self._string(), self._numbers("<I")
            if key == "general.architecture" and kind == STRING:
                architecture = self._string()
            elif key == "general.alignment" and kind == UINT32:
                (alignment,) = self._numbers("<I")
            else:
                self._pass(kind)
        table = [self._entry() for _ in range(tensors)]
        if not architecture or not table or alignment < 1:
            raise UnreadableFile("the GGUF file names no architecture, or has no weights; give another file")
        start = -(-self._at // alignment) * alignment
        return GgufHeader(architecture, tuple(self._tensor(start, *entry) for entry in table))

    def _numbers(self, form: str) -> tuple[Any, ...]:
        found = struct.unpack_from(form, self._data, self._at)
        self._at += struct.calcsize(form)
        return found

    def _string(self) -> str:
        (length,) = self._numbers("<Q")
        return str(self._numbers(f"<{length}s")[0], "utf-8")

    def _pass(self, kind: int) -> None:
        """Pass over a value."""
        if kind == STRING:
            (length,) = self._numbers("<Q")
            self._at += length
        elif kind == ARRAY:
            each, count = self._numbers("<IQ")
            if each in SIZES:
                self._at += SIZES[each] * count
                return
            for _ in range(count):
                self._pass(each)
        else:
            self._at += SIZES[kind]

    def _entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name, (dimensions,) = self._string(), self._numbers("<I")
        shape = self._numbers(f"<{dimensions}Q")[::-1]
        return name, shape, *self._numbers("<IQ")

    def _tensor(self, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int) -> GgufTensor:
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
        found = GgufTensor(name, kind, shape, start + offset, shape[-1] // numbers * count)
        end = found.offset + prod(found.stored_shape)
        if end > len(self._data):
            raise UnreadableFile(
                f"the GGUF file of {len(self._data)} bytes is cut short or damaged: its tensor {name} ends at byte "
                f"{end}; fetch it again"
            )
        return found
