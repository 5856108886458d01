"""The schedule that "auto" stands for: what was found for the policy on this machine, or none."""

from collections.abc import Mapping
from typing import Any

import attrs

from talon_core.basics.processors import of_earlier
from talon_core.defaults import AUTO, DEFAULT_PLACE, IN_TURN
from talon_core.errors import one_line
from talon_core.plugins.presets import KEPT, Preset
from talon_core.plugins.registry import Registry
from talon_core.plugins.specs import parse_spec

COMPARED = ("cpu", "gpu", "threads")
"""What of a machine is known before there is a model, as `describe_machine` calls it."""

WITH_MODEL = ("device", "dtype", "weight_bits", "attention", "accelerator")
"""What else decides what passes take, as a profile's machine calls it; without a number of bits it is not known."""

HOW = "talon tune --schedule simulates others on this machine"

NOTHING: Mapping[str, Any] = {}


@attrs.frozen
class Chosen:
    """What "auto" stands for.

    Attributes:
        schedule: a spec.
        draft_on: where it drafts.
        why: the reason, in a sentence.
        preset: whose schedule it is; None where it drafts and verifies in turn.
        dropped: whether a preset has another schedule, which does not fit here.
        asked: whether where it drafts was asked for, whatever the preset says.
    """

    schedule: str
    draft_on: str
    why: str
    preset: Preset | None = None
    dropped: bool = False
    asked: bool = False

    def on(self, place: str) -> "Chosen":
        """The same where somebody has asked for the place; what drafts and verifies in turn has none."""
        if self.preset is None:
            return self
        why = f"{self.why}; it drafts on {place}, which was asked for"
        return attrs.evolve(self, draft_on=place, why=why, asked=True)

    def in_turn(self, why: str) -> "Chosen":
        """What drafts and verifies in turn in its place.

        Args:
            why: what does not fit, as the end of a sentence.
        """
        found = ""
        if self.preset is not None and self.preset.schedule is not None:
            found = f"preset '{self.preset.name}' has {self.schedule} on {self.preset.schedule['draft_on']}, "
        found += f"{self.draft_on} was asked for, " if self.asked else ""
        return Chosen(IN_TURN, DEFAULT_PLACE, f"{found}{why}; {HOW}", dropped=True)

    def compared(
        self, drafter: object = AUTO, here: Mapping[str, Any] = NOTHING, weights: str | None = None
    ) -> "Chosen":
        """It, if that was simulated for what decodes now; else what drafts and verifies in turn, and why.

        Args:
            drafter: as it is written; "auto" as long as it waits for a model.
            here: what is known of this machine, by the names of `COMPARED` and `WITH_MODEL`.
            weights: the model's `weights_hash`; None as long as there is none.
        """
        if self.preset is None or self.preset.profile is None:
            return self
        profile = self.preset.profile
        if drafter not in (AUTO, profile["drafter"]):
            return self.in_turn(f"found with the drafter {profile['drafter']}")
        differing = _differences(profile["machine"], here)
        if differing:
            return self.in_turn(f"found on a machine whose {differing}")
        models = [(profile["model"], "name"), *((trace, "model") for trace in self.preset.traces)]
        other = [one.get(name) for one, name in models if one.get("weights_sha256") not in (None, weights)]
        if weights is not None and other:
            return self.in_turn(f"found for a model of other weights, {one_line(other[0])}")
        return self


def chosen_schedule(policy: object, drafter: object, registry: Registry) -> Chosen:
    """The schedule that a policy is decoded with by default.

    It is the one that `talon tune` has kept with the policy's preset, if this is the machine and the drafter that it
    was simulated for; whether this is the model, too, `Chosen.compared` tells. Anything else drafts and verifies in
    turn.

    Args:
        policy: as it was asked for.
        drafter: likewise; "auto" may turn out to be another one than the preset's.
        registry: where policies are looked up.

    Raises:
        ValueError: if the preset's file is none; the sentence names it.
        OSError: if it cannot be read.
    """
    preset = _preset(policy, registry)
    return _in_turn(f"no schedule was tried with this policy; {HOW}") if preset is None else kept_with(preset, drafter)


def kept_with(preset: Preset, drafter: object = AUTO) -> Chosen:
    """The schedule of a preset on this machine; arguments as for `chosen_schedule`."""
    told = preset.schedule
    if told is None or preset.profile is None:
        return _in_turn(f"preset '{preset.name}' was found without trying schedules; {HOW}")
    said = f"preset '{preset.name}': {told['said']}"
    if told["schedule"] == IN_TURN:
        return _in_turn(said)
    from talon_core.runtime.machine import describe_machine  # which loads torch

    return Chosen(told["schedule"], told["draft_on"], said, preset).compared(drafter, describe_machine())


def _in_turn(why: str) -> Chosen:
    return Chosen(IN_TURN, DEFAULT_PLACE, why)


def _preset(policy: object, registry: Registry) -> Preset | None:
    """The preset that a policy's spec names; None where it names none."""
    if not isinstance(policy, str):
        return None
    name, _ = parse_spec(policy)
    file = None if name in registry.names("tree policy") else KEPT.file_of(name)
    return None if file is None else KEPT.read(file)


def _differences(machine: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """In what this machine is another one, as far as both are told, as the end of a sentence; empty if it is not."""
    both = [name for name in (*COMPARED, *WITH_MODEL) if name in machine and name in here]
    if None in (machine.get("weight_bits"), here.get("weight_bits")):
        both = [name for name in both if name != "weight_bits"]
    shown = [(name, _shown(machine[name]), _shown(here[name])) for name in both]
    return ", ".join(
        f"{name} is {then}{of_earlier(then, now)} and not {now}" for name, then, now in shown if then != now
    )


def _shown(value: Any) -> str:
    """Of a GPU its name, without the driver and the clock; of CUDA devices not which one it is."""
    if isinstance(value, list):
        return ", ".join(str(each).partition(",")[0] for each in value) or "none"
    said = "none" if value is None else one_line(str(value))
    return "cuda" if said.startswith("cuda:") else said
