"""The CPU kernels written in C: compiled at first use, kept in the user's cache, never required.

`load()` gives them, or None where there is no compiler or `TALON_NATIVE=0`; `unavailable()` then says why, and the
logger `talon_core.kernels` has warned of it, once.
"""

from __future__ import annotations

import ctypes
import logging
import threading
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from talon_kernels.native.build import BuildError, build_library

__all__ = ["BACKENDS", "Library", "chosen", "load", "switch_off", "unavailable"]

ABI = 20
"""Counted up, here and in `linear.c`, when a C function's arguments change."""

NO_SUCH_ROW, NO_TREE = 2, 4
"""What C answers, as in `parts.h`."""

_log = logging.getLogger("talon_core.kernels")

BACKENDS = ("native", "reference")
"""What runs an operation that has C kernels beside its plain definition."""

_POINTER = ctypes.c_void_p
_INT = ctypes.c_int64
_FLOAT = ctypes.c_float


class Library:
    """The loaded C functions. Pointers go in as integers (`tensor.data_ptr()`); nothing is checked behind this line.

    Attributes:
        path: the file it was loaded from.
        lanes: float32 values in one vector register; the least head size `tree_attention` takes.
    """

    def __init__(self, path: str) -> None:
        """Load the file.

        Raises:
            OSError: if it is no shared library, or one of other kernels.
        """
        self.path = path
        library = ctypes.CDLL(path)
        try:
            abi = library.talon_abi
            abi.restype, abi.argtypes = _INT, []
            if abi() != ABI:
                raise OSError(f"{path} has ABI {abi()}, not {ABI}")
            lanes = library.talon_lanes
            lanes.restype, lanes.argtypes = _INT, []
            self.lanes: int = lanes()
            self.linear = library.talon_linear
            self.linear.restype, self.linear.argtypes = _INT, [_POINTER] * 4 + [_INT] * 5
            self.linear.errcheck = _has_memory
            self.gated_mlp = library.talon_gated_mlp
            self.gated_mlp.restype, self.gated_mlp.argtypes = _INT, [_POINTER] * 9 + [_INT] * 5 + [_POINTER, _INT]
            self.gated_mlp.errcheck = _has_memory
            self.widen = library.talon_widen
            self.widen.restype, self.widen.argtypes = None, [_POINTER] * 3 + [_INT] * 4
            self.walk = library.talon_walk
            self.walk.restype, self.walk.argtypes = _INT, [_POINTER] + [_INT] + [_POINTER] * 3 + [_INT] * 2
            self.walk.errcheck = _walked
            self.walk_on = library.talon_walk_on
            self.walk_on.restype = _INT
            self.walk_on.argtypes = [*self.walk.argtypes, _INT, *[_POINTER] * 4, _INT, _POINTER, _INT]
            self.walk_on.argtypes += [*[_POINTER] * 2, _INT, *[_POINTER] * 3]
            self.walk_on.errcheck = _walked
            self.walk_chains = library.talon_walk_chains
            self.walk_chains.restype, self.walk_chains.argtypes = _INT, [_POINTER]
            self.walk_chains.errcheck = _walked
            self.chain_sizes = library.talon_chain_sizes
            self.chain_sizes.restype, self.chain_sizes.argtypes = None, [_POINTER]
            self.screen = library.talon_screen
            self.screen.restype, self.screen.argtypes = _INT, [_POINTER] + [_INT] * 3 + [_POINTER] * 3 + [_INT]
            self.screen.errcheck = _has_memory
            self.screen_width = library.talon_screen_width
            self.screen_width.restype, self.screen_width.argtypes = _INT, [_INT]
            self.likeliest = library.talon_likeliest
            self.likeliest.restype = _INT
            self.likeliest.argtypes = [_POINTER] * 7 + [_INT] * 5
            self.likeliest.errcheck = _has_memory
            self.best_tokens = library.talon_best_tokens
            self.best_tokens.restype, self.best_tokens.argtypes = None, [_POINTER] * 2 + [_INT] * 4
            self.draw_tokens = library.talon_draw_tokens
            self.draw_tokens.restype = _INT
            self.draw_tokens.argtypes = [_POINTER] + [_INT] * 2 + [_POINTER] * 3 + [_INT]
            self.draw_tokens.errcheck = _has_memory
            self.greedy_walk = library.talon_greedy_walk
            self.greedy_walk.restype = None
            self.greedy_walk.argtypes = [_POINTER] * 4 + [_INT] + [_POINTER] + [_INT] * 2 + [_POINTER]
            self.step_sizes = library.talon_step_sizes
            self.step_sizes.restype, self.step_sizes.argtypes = None, [_POINTER]
            self.sum = library.talon_sum
            self.sum.restype, self.sum.argtypes = _FLOAT, [_POINTER] + [_INT] * 2
            self.multiply = library.talon_multiply
            self.multiply.restype, self.multiply.argtypes = _INT, [_INT] * 2 + [_POINTER]
            self.move_rows = library.talon_move_rows
            self.move_rows.restype, self.move_rows.argtypes = None, [_POINTER] * 2 + [_INT] * 3 + [_POINTER, _INT]
            self.checksums = library.talon_checksums
            self.checksums.restype, self.checksums.argtypes = None, [_POINTER] * 2 + [_INT] * 2 + [_POINTER]
            self.plan = library.talon_plan
            self.plan.restype, self.plan.argtypes = _INT, [_INT] * 5
            self.planned = library.talon_planned
            self.planned.restype, self.planned.argtypes = None, [_INT] * 2 + [_POINTER]
            self.gated_unit = library.talon_gated_unit
            self.gated_unit.restype, self.gated_unit.argtypes = None, [_POINTER] * 3 + [_INT] * 3
            self.rms_norm = library.talon_rms_norm
            self.rms_norm.restype = None
            self.rms_norm.argtypes = [_POINTER] * 3 + [_INT] * 2 + [_FLOAT] * 2 + [_INT]
            self.same_numbers = library.talon_same_numbers
            self.same_numbers.restype, self.same_numbers.argtypes = _INT, [_POINTER] * 2 + [_INT] * 2
            self.tree_attention = library.talon_tree_attention
            self.tree_attention.restype = _INT
            self.tree_attention.argtypes = [_POINTER] * 7 + [_INT] * 4 + [_FLOAT] * 2 + [_INT] * 2
            self.tree_attention.errcheck = _walked
        except AttributeError as error:
            raise OSError(f"{path} lacks a kernel: {error}") from error


def _has_memory(failed: Any, *_: Any) -> Any:
    """Raise where a kernel could not have memory of its own."""
    if failed:
        raise MemoryError("there is no memory left for what a pass of the network finds on the way")
    return failed


def _walked(failed: Any, *_: Any) -> Any:
    """As `_has_memory`; a LookupError for an index of no row, a ValueError for a parent behind its child."""
    if failed & NO_TREE:
        raise ValueError("parents of a tree do not stand before their children")
    if failed & NO_SUCH_ROW:
        raise LookupError("a number of the pass names a row that its table does not have")
    return _has_memory(failed)


class _Loader:
    """Builds once per process, whatever the number of threads that ask."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.off: str | None = None

    @cached_property
    def _outcome(self) -> Library | str:
        try:
            library = build_library(Library)
        except BuildError as error:
            _log.warning(
                "the native kernels are not used, which makes decoding on a CPU several times slower: %s", error
            )
            return str(error)
        from talon_kernels.native.tuning import apply_plans

        apply_plans(library)
        return library

    def outcome(self) -> Library | str:
        if self.off is not None:
            return self.off
        with self._lock:
            return self._outcome


_LOADER = _Loader()


def load() -> Library | None:
    """The C kernels, built now if no cache has them (a few seconds, once per machine); None if they cannot be had."""
    outcome = _LOADER.outcome()
    return outcome if isinstance(outcome, Library) else None


def unavailable() -> str | None:
    """Why `load()` gives None, as the end of a sentence; None if it gives the kernels."""
    outcome = _LOADER.outcome()
    return outcome if isinstance(outcome, str) else None


def chosen(operation: str, backend: str | None) -> Library | None:
    """What an operation takes that has a native implementation beside its reference; None for the reference.

    Args:
        operation: its name, for errors.
        backend: a key of `BACKENDS`; None takes native if the kernels can be had.

    Raises:
        ValueError: for another backend, or one that was asked for and cannot run.
    """
    if backend not in (None, *BACKENDS):
        raise ValueError(f"no backend '{backend}' of {operation}; there are: {', '.join(BACKENDS)}")
    library = load() if backend != "reference" else None
    if library is None and backend == "native":
        raise ValueError(f"backend 'native' cannot be used here: {unavailable()}")
    return library


def on_the_cpu(operation: str, backend: str | None, x: Tensor) -> bool:
    """Whether the native kernels may be asked about a tensor: all other devices have other backends.

    Raises:
        ValueError: if they were asked for on another device, or a tensor on the CPU is not float32.
    """
    if x.device.type != "cpu":
        if backend == "native":
            raise ValueError(f"backend 'native' cannot be used here: it runs on the CPU, not on {x.device}")
        return False
    if x.dtype is not torch.float32:
        raise ValueError(f"{operation} takes float32 on the CPU, got {x.dtype}")
    return True


class switch_off:
    """A context in which `load()` gives None, to see or to test what is done without the C kernels."""

    def __init__(self, reason: str = "the native kernels are switched off") -> None:
        self.reason = reason

    def __enter__(self) -> None:
        self._before = _LOADER.off
        _LOADER.off = self.reason

    def __exit__(self, *_: object) -> None:
        _LOADER.off = self._before
