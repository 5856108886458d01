"""Which attention backend and which accelerator a model is decoded with."""

import logging
from typing import TYPE_CHECKING, Any, TypeVar

from talon_core.attention import Accelerator, AttentionBackend
from talon_core.errors import PluginError, blaming, naming, of_the_machine, written
from talon_core.plugins.registry import Registry

if TYPE_CHECKING:
    from torch import device, dtype

LOGGER = logging.getLogger(__name__)

Backend = TypeVar("Backend", AttentionBackend, Accelerator)

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
        PluginError: if the one asked for fails at saying whether it can.
    """
    if isinstance(asked, AttentionBackend):
        return asked
    if asked is not None:
        own: AttentionBackend = _made_as_asked(registry, "attention backend", asked, device, dtype)
        return own
    names = registry.names("attention backend")
    ours = [name for name in ATTENTION_BACKENDS.get(device.type, ("sdpa", "reference")) if name in names]
    reasons = []
    for name in [*ours, *(name for name in names if name not in ours)]:
        if name == without:
            continue
        cls: type[AttentionBackend] = registry.get("attention backend", name).cls
        made = _made_if_it_can("attention backend", cls, device, dtype)
        if made is None:
            reasons.append(f"{name}: it failed")
            continue
        backend, why = made
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
        PluginError: if the one asked for fails at saying whether it can.
    """
    if asked is False:
        return None
    if asked is not True:
        accelerator: Accelerator = _made_as_asked(registry, "accelerator", str(asked), device, dtype)
        return accelerator
    for name in registry.names("accelerator"):
        cls: type[Accelerator] = registry.get("accelerator", name).cls
        made = _made_if_it_can("accelerator", cls, device, dtype)
        if made is not None and made[1] is None and made[0].automatic:
            return made[0]
    return None


def _made_as_asked(registry: Registry, kind: str, asked: str, device: "device", dtype: "dtype") -> Any:
    """What was asked for by name; raises as `choose_attention` and `choose_accelerator` do."""
    made, why = made_and_why_not(kind, registry.get(kind, asked).cls, device, dtype)
    if why is not None:
        raise ValueError(f"{kind} '{asked}' cannot be used here: {why}")
    return made


def made_and_why_not(kind: str, cls: type[Backend], device: "device", dtype: "dtype") -> tuple[Backend, str | None]:
    """A backend, and why it cannot run on such tensors.

    Raises:
        PluginError: if it fails at being made or at saying so; the message names it.
    """
    with blaming(kind, cls, "unavailable", but=of_the_machine):
        made = cls()
        why: Any = made.unavailable(device, dtype)
    if why is not None and not isinstance(why, str):
        raise PluginError(
            f"{naming(kind, cls)} returned {written(why)} from unavailable; it must return why it cannot run here, a "
            "text, or None if it can"
        )
    return made, why


def _made_if_it_can(
    kind: str, cls: type[Backend], device: "device", dtype: "dtype"
) -> tuple[Backend, str | None] | None:
    """As `_made`, of one that nobody has asked for: None if it fails, with a warning."""
    try:
        return made_and_why_not(kind, cls, device, dtype)
    except PluginError as error:
        LOGGER.warning("left out of the %ss to choose from: %s", kind, error)
        return None
