"""Copies in bfloat16 of float32 weights whose numbers all are bfloat16 numbers, and whether weights have changed."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from talon_core.tree import IntArray
from talon_kernels.native import Library
from talon_kernels.same_numbers.native import same_numbers_native

SAMPLED = 64
"""Numbers of a weight that are looked at before all of it is."""


_CHANGES = [0]


def changes() -> int:
    """How often a copy was made anew in this process: who keeps addresses of copies looks here."""
    return _CHANGES[0]


class Narrow:
    """A bfloat16 copy of a float32 weight whose numbers all are bfloat16 numbers: half the bytes, the same result.

    Most published weights are bfloat16, and stay so when they are loaded as float32.

    Args:
        library: compares the two.
        weight: the parameter.
    """

    def __init__(self, library: Library, weight: Tensor) -> None:
        self._library = library
        self._weight = weight
        self._of = _identity(weight)
        self._copy = _narrowed(library, weight.detach())

    def refresh(self) -> bool:
        """Compare all numbers of the copy with the weight's, and make it anew where one differs.

        PyTorch does not count what is written through `weight.data`, so no less is enough.

        Returns:
            Whether one did.
        """
        weight, now = self._weight.detach(), _identity(self._weight)
        if now == self._of and (self._copy is None or same_numbers_native(self._library, self._copy, weight)):
            return False  # a weight without a copy is read as it is
        self._of = now
        self._copy = _narrowed(self._library, weight)
        _CHANGES[0] += 1
        return True

    @property
    def compares(self) -> bool:
        """Whether there is a copy, so that every number is compared."""
        return self._copy is not None

    def of(self, weight: Tensor) -> Tensor:
        """The copy, if there is one and it is this weight's; otherwise the weight."""
        if self._copy is None or weight is not self._weight or _identity(weight) != self._of:
            return weight
        return self._copy


class Checked:
    """Tells whether the bytes of some tensors are others than before.

    Args:
        library: adds them up.
        tensors: each once; those that are not contiguous on the CPU are left out, as long as they are not.
    """

    def __init__(self, library: Library, tensors: Iterable[Tensor]) -> None:
        self._library = library
        self._tensors = {id(tensor): tensor for tensor in tensors}
        self._of = self._sums()

    def __contains__(self, tensor: Tensor) -> bool:
        return id(tensor) in self._tensors and _is_read(tensor)

    def refresh(self) -> int:
        """How many of them have changed since the last time."""
        now = self._sums()
        changed = int((now != self._of).any(axis=0).sum())
        self._of = now
        _CHANGES[0] += changed
        return changed

    def _sums(self) -> IntArray:
        """Their addresses, their bytes and the sums of these, shape `(3, tensors)`, int64."""
        found = [(one.data_ptr(), one.nbytes) if _is_read(one) else (0, 0) for one in self._tensors.values()]
        now = np.empty((3, len(found)), dtype=np.int64)
        now[:2] = np.array(found, dtype=np.int64).reshape(-1, 2).T
        at, size, sums = (now.ctypes.data + row * now.strides[0] for row in range(3))
        self._library.checksums(at, size, len(found), torch.get_num_threads(), sums)
        return now


def _is_read(tensor: Tensor) -> bool:
    return tensor.is_cpu and tensor.is_contiguous()


def _identity(weight: Tensor) -> tuple[int, int]:
    """Changes where PyTorch notices that the weight does."""
    return weight.data_ptr(), weight._version


def _narrowed(library: Library, weight: Tensor) -> Tensor | None:
    """A bfloat16 copy of a weight that holds the same numbers, or None; most others show by a sample already."""
    if weight.dtype is not torch.float32 or not weight.is_cpu or not weight.is_contiguous():
        return None
    flat = weight.reshape(-1)
    sample = flat[:: max(1, len(flat) // SAMPLED)]
    if not torch.equal(sample.to(torch.bfloat16).float(), sample):
        return None
    copy = weight.to(torch.bfloat16)
    return copy if same_numbers_native(library, copy, weight) else None
