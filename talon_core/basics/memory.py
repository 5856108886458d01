"""How much memory there is, for those who ask before they take it."""

import ctypes
import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")


def host_memory() -> int | None:
    """Bytes of memory that this process may take at most: the machine's, or its container's; None if nobody tells."""
    try:
        machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None
    return min([machine, *_limits()])


def device_memory(device: "torch.device") -> int | None:
    """Bytes of memory of a device, taken or free; None if nobody tells.

    Args:
        device: a GPU, or what shares the memory of the host.
    """
    import torch

    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return host_memory() if device.type in ("cpu", "mps") else None


MMAP_THRESHOLD, TRIM_THRESHOLD = -3, -1
"""Options of `mallopt`, as glibc numbers them."""

LARGEST = 32 << 20
"""Bytes of the largest piece for which glibc may be told not to ask the system."""

KEPT = 256 << 20


@cache
def keep_freed_memory() -> bool:
    """Let this process keep up to 256 MB that it frees, for what it needs next.

    For whoever works on arrays of a whole vocabulary and little else: glibc gives their memory back to the system,
    which hands it out again page by page, and that takes longer than the numbers. A process of the user's own is left
    alone.

    Returns:
        Whether it does; False where the C library is another one.
    """
    try:
        own = ctypes.CDLL(None)
        own.gnu_get_libc_version  # noqa: B018 - what others have of these names may do something else
        return bool(own.mallopt(MMAP_THRESHOLD, LARGEST) and own.mallopt(TRIM_THRESHOLD, KEPT))
    except (OSError, AttributeError, TypeError):
        return False


def _limits() -> Iterator[int]:
    """What the control groups of this process allow, each within the one above it."""
    try:
        groups = [line.split(":", 2) for line in OWN_GROUPS.read_text(encoding="utf-8").splitlines()]
    except OSError:
        return
    for _, controllers, path in (group for group in groups if len(group) == 3):
        if controllers and "memory" not in controllers.split(","):
            continue
        root, name = (GROUPS / "memory", "memory.limit_in_bytes") if controllers else (GROUPS, "memory.max")
        own = PurePosixPath(path.lstrip("/"))
        for group in (own, *own.parents):
            limit = _read(root / group / name)
            if limit is not None:
                yield limit


def _read(file: Path) -> int | None:
    try:
        told = file.read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    return int(told) if told.isdigit() and int(told) else None  # "max" where there is no limit
