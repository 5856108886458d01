"""What `talon doctor` says of schedules that `talon tune` has kept: which are taken here, and why others are not."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from talon_core.defaults import IN_TURN
from talon_core.errors import one_line
from talon_core.plugins.chosen import WITH_MODEL, Chosen, kept_with
from talon_core.plugins.parts import usable
from talon_core.plugins.presets import KEPT, known_presets
from talon_core.plugins.registry import Registry

if TYPE_CHECKING:
    from talon_core.cli.session import Session


def kept_schedules(
    registry: Registry, session: "Session | None", model: Mapping[str, Any] | None
) -> list[dict[str, Any]]:
    """What "auto" stands for with each preset that a schedule was tried for, and with each that cannot be read.

    Args:
        registry: where names are looked up.
        session: a model that the presets are compared with; None without one.
        model: what the doctor has found out of it; None where it cannot be used.
    """
    found = []
    for name, file in known_presets().items():
        try:
            preset = KEPT.read(file)
        except (ValueError, OSError) as error:
            found.append({"preset": name, "schedule": None, "draft_on": None, "why": one_line(error)})
            continue
        if preset.schedule is None:
            continue
        chosen = kept_with(preset)
        if session is not None and model is not None:
            from talon_core.runtime.weights import weights_hash

            here = {**{key: model[key] for key in WITH_MODEL}, "device": str(session.model.device)}
            chosen = chosen.compared(here=here, weights=weights_hash(session.model))
        found.append({"preset": name, **told(chosen, registry)})
    return found


def told(chosen: Chosen, registry: Registry) -> dict[str, Any]:
    """What "auto" stands for, as plain data."""
    own, _ = usable(chosen, registry)
    return {"schedule": own.schedule, "draft_on": own.draft_on, "why": own.why}


def row_of(said: Mapping[str, Any]) -> str:
    """A line of it, for people."""
    named = said["schedule"]
    if named is None:
        return str(said["why"])
    where = "" if named == IN_TURN else f" on {said['draft_on']}"
    return f"{named}{where}: {said['why']}"
