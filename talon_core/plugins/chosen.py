"""The schedule where none is named: what was found for the policy on this machine, or none."""

from collections.abc import Mapping
from typing import Any

import attrs

from talon_core.defaults import AUTO, DEFAULT_PLACE, DEFAULT_SCHEDULE
from talon_core.errors import one_line
from talon_core.plugins.presets import KEPT, Preset
from talon_core.plugins.registry import Registry
from talon_core.plugins.specs import parse_spec

COMPARED = ("cpu", "gpu", "threads")
"""What of a machine decides whether drafting while the target verifies pays there, as `describe_machine` calls it."""

HOW = "talon tune --schedule simulates others on this machine"


@attrs.frozen
class Chosen:
    """What "auto" stands for.

    Attributes:
        schedule: a spec.
        draft_on: where it drafts.
        why: the reason, in a sentence.
        drafter: with which drafter that was found; None where any will do.
    """

    schedule: str
    draft_on: str
    why: str
    drafter: str | None = None


def chosen_schedule(policy: object, drafter: object, registry: Registry) -> Chosen:
    """The schedule that a policy is decoded with where none is named.

    It is the one that `talon tune` has kept with the policy's preset, if this is the machine and the drafter that it
    was simulated for. Anything else drafts and verifies in turn.

    Args:
        policy: as it was asked for.
        drafter: likewise; "auto" may turn out to be another one than the preset's.
        registry: where policies are looked up.
    """
    preset = _preset(policy, registry)
    if preset is None:
        return _in_turn(f"no schedule was tried with this policy; {HOW}")
    told, profile = preset.schedule, preset.profile
    if told is None or profile is None:
        return _in_turn(f"preset '{preset.name}' was found without trying schedules; {HOW}")
    if told["schedule"] == DEFAULT_SCHEDULE:
        return _in_turn(f"preset '{preset.name}': {told['said']}")
    found = f"preset '{preset.name}' has {told['schedule']} on {told['draft_on']}"
    if drafter not in (AUTO, profile["drafter"]):
        return _in_turn(f"{found}, found with the drafter {profile['drafter']}; {HOW}")
    differing = _differences(profile["machine"])
    if differing:
        return _in_turn(f"{found}, found on a machine whose {differing}; {HOW}")
    said = f"preset '{preset.name}': {told['said']}"
    return Chosen(told["schedule"], told["draft_on"], said, profile["drafter"])


def _in_turn(why: str) -> Chosen:
    return Chosen(DEFAULT_SCHEDULE, DEFAULT_PLACE, why)


def _preset(policy: object, registry: Registry) -> Preset | None:
    """The preset that a policy's spec names; None where it names none."""
    if not isinstance(policy, str):
        return None
    name, _ = parse_spec(policy)
    file = None if name in registry.names("tree policy") else KEPT.file_of(name)
    return None if file is None else KEPT.read(file)


def _differences(machine: Mapping[str, Any]) -> str:
    """In what this machine is another one, as the end of a sentence; empty if it is not."""
    from talon_core.runtime.machine import describe_machine  # which loads torch

    here = describe_machine()
    found = [
        f"{name} is {_shown(machine.get(name))} and not {_shown(here[name])}"
        for name in COMPARED
        if _shown(machine.get(name)) != _shown(here[name])
    ]
    return ", ".join(found)


def _shown(value: Any) -> str:
    """Of a GPU its name, without the driver and the clock."""
    if isinstance(value, list):
        return ", ".join(str(each).partition(",")[0] for each in value) or "none"
    return one_line(str(value))
