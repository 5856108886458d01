"""How much memory there is, for those who ask before they take it."""

import os
from collections.abc import Iterator
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
