"""Tensors behind which nothing may be read."""

import ctypes
import mmap

import numpy as np
import torch


def before_the_end(tensor):
    """A copy of a tensor, which ends where a page begins that may not be read: whoever goes past it dies."""
    page = mmap.PAGESIZE
    size = -(-tensor.nbytes // page) * page
    room = np.frombuffer(mmap.mmap(-1, size + page), dtype=np.uint8)
    assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(room.ctypes.data + size), ctypes.c_size_t(page), 0) == 0
    copy = torch.from_numpy(room[size - tensor.nbytes : size]).view(tensor.dtype).view(tensor.shape)
    return copy.copy_(tensor)
