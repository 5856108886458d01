"""Whether Triton can run: on GPUs, or, slowly, on the CPU."""

from __future__ import annotations

import os
import sysconfig
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from shutil import which

import torch

MOST_WIDE = 16384
"""Numbers of a row that one program holds in registers."""

TYPES = (torch.float32, torch.bfloat16, torch.float16)


def triton_cannot(device: torch.device, dtype: torch.dtype | None = None) -> str | None:
    """Why Triton's kernels cannot run on such tensors, as the end of a sentence, or None if they can.

    Args:
        device: where the tensors are.
        dtype: their type, for kernels that compute; None for those that only move numbers.
    """
    if find_spec("triton") is None:
        return "triton is not installed"
    try:
        from triton import knobs
    except ImportError:
        return f"triton {version('triton')} is too old; 3.4 or newer is needed"
    interpreted: bool = knobs.runtime.interpret
    if device.type == "cuda" and interpreted:
        return "TRITON_INTERPRET makes it run on the CPU, which cannot follow addresses in a GPU's memory"
    if device.type != "cuda" and not (device.type == "cpu" and interpreted):
        return f"it runs on GPUs, not on {device}; on the CPU only if TRITON_INTERPRET=1 is set before it is first used"
    missing = None if interpreted else missing_for_launches(os.environ.get("CC") or "cc")
    if missing is not None:
        return missing
    if dtype is not None and dtype not in TYPES:
        return f"it computes in float32, bfloat16 and float16, not in {dtype}"
    return None


@cache
def missing_for_launches(compiler: str) -> str | None:
    """What triton needs for its launches and does not find, as the end of a sentence; None if nothing is missing.

    It is looked for once, as each call of a kernel asks.

    Args:
        compiler: what is tried besides "gcc" and "clang".
    """
    if not any(map(which, [compiler, "gcc", "clang"])):
        return "triton needs a C compiler for its launches, and there is none"
    headers = _python_headers()
    if not (headers / "Python.h").exists():
        return f"triton needs Python.h for its launches, and {headers} has none; install python3-dev, or python3-devel"
    return None


def _python_headers() -> Path:
    """Where triton looks for Python.h."""
    scheme = sysconfig.get_default_scheme()
    return Path(sysconfig.get_paths("posix_prefix" if scheme == "posix_local" else scheme)["include"])


def takes_triton(
    operation: str,
    backend: str | None,
    device: torch.device,
    others: tuple[str, ...] = (),
    dtype: torch.dtype | None = None,
) -> bool:
    """Whether an operation that has a Triton kernel and a reference is to be done by the kernel.

    Args:
        operation: its name.
        backend: what was asked for; None takes triton for tensors on a GPU, if it can run.
        device: where the tensors are.
        others: further backends that it has, which are chosen elsewhere.
        dtype: as for `triton_cannot`.

    Raises:
        ValueError: if the backend asked for is unknown or cannot run; it is never replaced in silence.
    """
    known = ("triton", *others, "reference")
    if backend not in (None, *known):
        raise ValueError(f"no backend '{backend}' of {operation}; there are: {', '.join(known)}")
    if backend in ("reference", *others) or (backend is None and device.type != "cuda"):
        return False
    why = triton_cannot(device, dtype)
    if why is not None and backend == "triton":
        raise ValueError(f"backend 'triton' cannot be used here: {why}")
    return why is None


def check_width(operation: str, width: int) -> None:
    """Make sure that one program can hold a row.

    Raises:
        ValueError: if it has too many numbers.
    """
    if width > MOST_WIDE:
        raise ValueError(f"{operation} takes rows of up to {MOST_WIDE} numbers in triton, not {width}")
