"""Which attention backend and which accelerator a model is decoded with."""

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from talon_core.attention import Accelerator, AttentionBackend, DeviceBackend
from talon_core.errors import PluginError, blaming, is_whole, naming, of_the_machine, written
from talon_core.plugins.registry import Registry

if TYPE_CHECKING:
    from torch import device, dtype

LOGGER = logging.getLogger(__name__)

Backend = TypeVar("Backend", AttentionBackend, Accelerator)

KIND = "attention backend"


def attention_backends(
    registry: Registry, asked: "str | AttentionBackend | None", device: "device", dtype: "dtype"
) -> Iterator[AttentionBackend]:
    """The attention backend that was asked for, and no other; or else those that can run, the first to try first.

    Each is made when it is wanted.

    Raises:
        LookupError: if the one asked for is unknown, or none can run; the sentence says why not.
        ValueError: if the one asked for cannot run; it is never replaced in silence.
        PluginError: if the one asked for fails at saying whether it can.
    """
    if asked is not None:
        yield (
            _usable(asked, device, dtype)
            if isinstance(asked, AttentionBackend)
            else _as_asked(registry, KIND, asked, device, dtype)
        )
        return
    reasons = []
    found = False
    for name, cls in _in_order(registry, KIND, device):
        made = _made_if_it_can(KIND, cls, device, dtype)
        if made is None:  # which was warned of
            reasons.append(f"{name}: it failed")
            continue
        backend, why = made
        if why is None:
            found = True
            yield backend
            continue
        reasons.append(f"{name}: {why}")
        if issubclass(cls, DeviceBackend) and device.type == "cuda":
            slower = "passes over trees may be slower, and not recorded as CUDA graphs"
            LOGGER.warning("attention backend '%s' cannot be used on %s, so %s: %s", name, device, slower, why)
    if not found:
        raise LookupError(
            f"no attention backend can run in {dtype} on {device} ({'; '.join(reasons) or 'none is registered'})"
            f"{registry.failed}"
        )


def choose_attention(
    registry: Registry, asked: "str | AttentionBackend | None", device: "device", dtype: "dtype"
) -> AttentionBackend:
    """The first of `attention_backends`; raises as that does."""
    return next(attention_backends(registry, asked, device, dtype))


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
        accelerator: Accelerator = _as_asked(registry, "accelerator", str(asked), device, dtype)
        return accelerator
    for _, cls in _in_order(registry, "accelerator", device):
        made: tuple[Accelerator, str | None] | None = _made_if_it_can("accelerator", cls, device, dtype)
        if made is not None and made[1] is None and made[0].automatic:
            return made[0]
    return None


def _in_order(registry: Registry, kind: str, device: "device") -> list[tuple[str, Any]]:
    """The names and classes of a kind of backends as they are tried: the highest priority first, then by name.

    One that fails at saying its priority is left out, with a warning: nobody has asked for it.
    """
    priorities: dict[str, int] = {}
    for name in registry.names(kind):
        try:
            priorities[name] = checked_priority(kind, registry.get(kind, name).cls, device)
        except PluginError as error:
            LOGGER.warning("left out of the %ss to choose from: %s", kind, error)
    return [
        (name, registry.get(kind, name).cls) for name in sorted(priorities, key=lambda name: (-priorities[name], name))
    ]


def checked_priority(kind: str, cls: type[Backend], device: "device") -> int:
    """How early a backend is tried on a device.

    Raises:
        PluginError: if it fails at saying so, or what it says is no number; the message names it.
    """
    with blaming(kind, cls, "priority", but=of_the_machine):
        priority: Any = cls.priority(device)
    if not is_whole(priority):
        raise PluginError(
            f"{naming(kind, cls)} says that its priority is {written(priority)}; it must be a whole number"
        )
    return int(priority)


def _usable(given: AttentionBackend, device: "device", dtype: "dtype") -> AttentionBackend:
    """An attention backend that was given as an object; raises as `attention_backends` does."""
    why = _why_not(KIND, given, given, device, dtype)
    if why is not None:
        raise ValueError(f"{naming(KIND, given)} cannot be used here: {why}")
    return given


def _as_asked(registry: Registry, kind: str, asked: str, device: "device", dtype: "dtype") -> Any:
    """What was asked for by name; raises as `attention_backends` and `choose_accelerator` do."""
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
    return made, _why_not(kind, cls, made, device, dtype)


def _why_not(kind: str, named: object, made: Backend, device: "device", dtype: "dtype") -> str | None:
    """Why a backend cannot run on such tensors; errors name `named`."""
    with blaming(kind, named, "unavailable", but=of_the_machine):
        why: Any = made.unavailable(device, dtype)
    if why is not None and not isinstance(why, str):
        raise PluginError(
            f"{naming(kind, named)} returned {written(why)} from unavailable; it must return why it cannot run here, a "
            "text, or None if it can"
        )
    return why


def _made_if_it_can(
    kind: str, cls: type[Backend], device: "device", dtype: "dtype"
) -> tuple[Backend, str | None] | None:
    """As `made_and_why_not`, of one that nobody has asked for: None if it fails, with a warning."""
    try:
        return made_and_why_not(kind, cls, device, dtype)
    except PluginError as error:
        LOGGER.warning("left out of the %ss to choose from: %s", kind, error)
        return None
