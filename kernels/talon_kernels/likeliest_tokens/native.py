"""The most likely tokens in C, and what their weights are screened with."""

from __future__ import annotations

import math

import attrs
import numpy as np
import torch
from torch import Tensor

from talon_kernels.native import Library
from talon_kernels.stored import Stored, address_of, kind_of, shape_of


@attrs.frozen(eq=False)
class Screen:
    """A weight of shape `(out, in)` in 8 bits a number, with bounds of what is lacking; `screen.c` reads it.

    Attributes:
        codes: shape `(out, width)`, int8, of at least `in` columns.
        columns: what a row's codes are times, the bound of what they lack and of a sum's rounding, by the norm of the
            input, and their norm, shape `(out, 3)`, float32.
        limits: the largest norm of a row of the weight, and the largest of those bounds, shape `(2,)`, float64.
    """

    codes: Tensor
    columns: Tensor
    limits: Tensor

    @classmethod
    def of(cls, library: Library, weight: Stored) -> Screen | None:
        """The screen of a weight on the CPU, contiguous; None where one of its numbers is not finite.

        Raises:
            MemoryError: if there is none left for it.
        """
        return cls.at(library, address_of(weight), *shape_of(weight), kind_of(weight))

    @classmethod
    def at(cls, library: Library, address: int, out: int, inputs: int, kind: int) -> Screen | None:
        """`of` a weight at an address, whose type is GGUF's number `kind`."""
        # PyTorch says in an error of its own that there is no memory
        codes = torch.from_numpy(np.empty((out, library.screen_width(inputs)), dtype=np.int8))
        columns, limits = torch.empty((out, 3), dtype=torch.float32), torch.empty(2, dtype=torch.float64)
        made = codes.data_ptr(), columns.data_ptr(), limits.data_ptr()
        library.screen(address, out, inputs, kind, *made, torch.get_num_threads())
        return cls(codes, columns, limits) if math.isfinite(limits[0]) else None


def likeliest_tokens_native(library: Library, x: Tensor, weight: Stored, screen: Screen) -> Tensor:
    """Shapes as in `likeliest_tokens`; all contiguous on the CPU."""
    (rows, inputs), (out, _) = x.shape, shape_of(weight)
    scores, found = x.new_empty((rows, out)), torch.empty(rows, dtype=torch.int64)
    library.likeliest(
        x.data_ptr(),
        address_of(weight),
        screen.codes.data_ptr(),
        screen.columns.data_ptr(),
        screen.limits.data_ptr(),
        scores.data_ptr(),
        found.data_ptr(),
        rows,
        out,
        inputs,
        kind_of(weight),
        torch.get_num_threads(),
    )
    return found
