"""Which attention backend and which accelerator a model is decoded with."""

from typing import TYPE_CHECKING

from talon_core.attention import Accelerator, AttentionBackend
from talon_core.registry import Registry

if TYPE_CHECKING:
    from torch import device, dtype

ATTENTION_BACKENDS = {"cpu": ("native", "sdpa", "reference"), "cuda": ("triton", "sdpa", "reference")}
"""By kind of device the backends in the order in which they are tried when none is asked for, before all others."""


def choose_attention(
    registry: Registry,
    asked: "str | AttentionBackend | None",
    device: "device",
    dtype: "dtype",
    without: str | None = None,
) -> AttentionBackend:
    """The attention backend that was asked for, or else the first that can run, except the one named `without`.

    Raises:
        LookupError: if the one asked for is unknown, or none can run; the sentence says why not.
        ValueError: if the one asked for cannot run; it is never replaced in silence.
    """
    if isinstance(asked, AttentionBackend):
        return asked
    if asked is not None:
        backend: AttentionBackend = registry.get("attention backend", asked).cls()
        why = backend.unavailable(device, dtype)
        if why is not None:
            raise ValueError(f"attention backend '{asked}' cannot be used here: {why}")
        return backend
    names = registry.names("attention backend")
    ours = [name for name in ATTENTION_BACKENDS.get(device.type, ("sdpa", "reference")) if name in names]
    reasons = []
    for name in [*ours, *(name for name in names if name not in ours)]:
        if name == without:
            continue
        backend = registry.get("attention backend", name).cls()
        why = backend.unavailable(device, dtype)
        if why is None:
            return backend
        reasons.append(f"{name}: {why}")
    raise LookupError(
        f"no attention backend can run in {dtype} on {device} ({'; '.join(reasons) or 'none is registered'})"
        f"{registry.failed}"
    )


def choose_accelerator(registry: Registry, asked: bool | str, device: "device", dtype: "dtype") -> Accelerator | None:
    """The accelerator that was asked for by name, or the first automatic one that can run on such a model, or None.

    Raises:
        LookupError: if the one asked for is unknown.
        ValueError: if the one asked for cannot run.
    """
    if asked is False:
        return None
    for name in registry.names("accelerator") if asked is True else [asked]:
        accelerator: Accelerator = registry.get("accelerator", name).cls()
        why = accelerator.unavailable(device, dtype)
        if why is None and (accelerator.automatic or asked is not True):
            return accelerator
        if asked is not True:
            raise ValueError(f"accelerator '{name}' cannot be used here: {why}")
    return None
