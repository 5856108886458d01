"""What a decoder is made of besides its target: what is asked for, and the objects that it is resolved to."""

import logging
from collections.abc import Sequence
from typing import Any, cast

import attrs

from talon_core.attention import AttentionBackend
from talon_core.defaults import (
    AUTO,
    DEFAULT_DRAFTER,
    DEFAULT_PLACE,
    DEFAULT_POLICY,
    DEFAULT_RULE,
    DEFAULT_SCHEDULE,
    IN_TURN,
    MEASURING_POLICY,
    NONE,
)
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.engine.ahead.opening import check_drafting
from talon_core.engine.ahead.place import check_usable, check_uses, parse_place
from talon_core.engine.checked_drafter import checked_for_model, checked_rank
from talon_core.engine.checked_policy import checked_budget
from talon_core.errors import PluginError, made_of, naming, one_line, written
from talon_core.plugins.chosen import Chosen, chosen_schedule
from talon_core.plugins.fitting import check_rule, rule_for
from talon_core.plugins.presets import KEPT, spelled_out
from talon_core.plugins.registry import KINDS, Registry, making_parts
from talon_core.plugins.specs import build, parse_spec
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule
from talon_core.schedule import Schedule

LOGGER = logging.getLogger(__name__)


@attrs.frozen
class Parts:
    """What is asked for, as `talon_core.load` takes it and tells of it: spec strings, or objects."""

    drafter: str | DrafterSpec = DEFAULT_DRAFTER
    policy: str | TreePolicy | None = DEFAULT_POLICY
    rule: str | AcceptanceRule = DEFAULT_RULE
    attention: str | AttentionBackend | None = None
    accelerate: bool | str = True
    graphs: bool = True
    lossy: bool = False
    schedule: str | Schedule | None = DEFAULT_SCHEDULE
    draft_on: str = AUTO


@attrs.frozen
class Resolved:
    """What was asked for, made: each part once. Who decodes takes the objects from here, and looks nothing up again.

    Two are equal if the same was asked for.

    Attributes:
        parts: what was asked for, with the names that "auto" stands for as far as they are known, and the spec that a
            preset stands for.
        registry: where names are looked up; backends are chosen from it once the model's device is known.
        policy: the tree policy; None decodes without drafting.
        rule: the acceptance rule.
        drafter: the drafter's options; None without a policy, and as long as "auto" waits for a model.
        schedule: what is prepared while the target verifies; None drafts and verifies in turn.
        chosen: what "auto" stands for as the schedule; None where another one was named.
        found_on: the kind of device that the default preset was found on, where it was asked for as it is and suits no
            other: a model on another kind gets `MEASURING_POLICY`; None where the policy is the same for all models.
    """

    parts: Parts
    registry: Registry = attrs.field(eq=False, repr=False)
    policy: TreePolicy | None = attrs.field(eq=False)
    rule: AcceptanceRule = attrs.field(eq=False)
    drafter: DrafterSpec | None = attrs.field(eq=False)
    schedule: Schedule | None = attrs.field(default=None, eq=False)
    chosen: Chosen | None = attrs.field(default=None, eq=False)
    found_on: str | None = None

    @property
    def waits(self) -> bool:
        """Whether the drafter is still to be chosen for a model."""
        return self.policy is not None and self.drafter is None

    def check_place(self) -> None:
        """Refuse a place that this machine has not, before a model is loaded.

        A place that nobody has asked for, that of a schedule that "auto" stands for, is not looked at: where it cannot
        be used, drafting and verifying take turns.

        Raises:
            ValueError: if cores or a GPU are asked for that are not there, or a GPU for a drafter that uses none.
        """
        if self.schedule is None or (self.chosen is not None and not self.chosen.asked):
            return
        place = parse_place(self.parts.draft_on)
        check_usable(place)
        if self.drafter is not None:
            check_uses(place, naming("drafter", self.drafter), self.drafter.reads_texts)

    def for_model(self, model: Any) -> "Resolved":
        """The same with the drafter that "auto" stands for, and the default policy of the model's kind of device.

        Itself where nothing is to be chosen.

        Args:
            model: a transformers causal LM.

        Raises:
            LookupError: if no drafter is ready for it, or `MEASURING_POLICY` is to be taken and is not registered.
            ValueError: if the drafter does not fit it, or the rule does not fit `MEASURING_POLICY`.
            PluginError: if the drafter fails at saying what it is for this model.
        """
        if self.found_on is not None:
            return self._on(model.device.type).for_model(model)
        if self.waits:
            name = choose_drafter(self.registry, model)
            own = self if self.chosen is None else self.found_with(self.chosen.compared(name))
            drafter = built(self.registry, "drafter", name)
            return attrs.evolve(own, parts=attrs.evolve(own.parts, drafter=name), drafter=drafter).for_model(model)
        if self.drafter is None:
            return self
        with making_parts(self.registry):
            drafter = checked_for_model(self.drafter, model)
        return self if drafter is self.drafter else attrs.evolve(self, drafter=drafter)

    def _on(self, kind: str) -> "Resolved":
        """The same with the default policy for models on a kind of device, such as "cuda"."""
        if kind == self.found_on:
            return attrs.evolve(self, found_on=None)
        LOGGER.info(
            "tree policy '%s' is taken by default: the preset '%s' was found with a model on %s, and this one is on %s",
            *(MEASURING_POLICY, DEFAULT_POLICY, self.found_on, kind),
        )
        spec, policy = _made_policy(self.registry, MEASURING_POLICY)
        check_rule(self.rule, policy, self.parts.lossy)
        return attrs.evolve(self, parts=attrs.evolve(self.parts, policy=spec), policy=policy, found_on=None)

    def found_with(self, chosen: Chosen) -> "Resolved":
        """The same with what "auto" stands for as more is known; without a schedule where that does not fit.

        Raises:
            ValueError: if it does not, and a place was asked for where it is to draft.
        """
        if not chosen.dropped:
            return attrs.evolve(self, chosen=chosen)
        if self.chosen is not None and self.chosen.asked:
            check_place(self.parts.draft_on, None, chosen.why)
        parts = attrs.evolve(self.parts, schedule=IN_TURN, draft_on=DEFAULT_PLACE)
        return attrs.evolve(self, parts=parts, schedule=None, chosen=chosen)


def resolve(parts: Parts, registry: Registry) -> Resolved:
    """Look every spec up, make each part once, and check what goes with what; that takes no model.

    Args:
        parts: what is asked for.
        registry: where names are looked up.

    Raises:
        LookupError: for an unknown name, or a policy whose default rule is not registered.
        ValueError: for a bad option, a rule that does not fit the policy or is lossy where that is not allowed, or a
            schedule without a policy.
    """
    for option, kinds in (("graphs", bool), ("lossy", bool), ("accelerate", bool | str)):
        if not isinstance(getattr(parts, option), kinds):
            what = "True or False" if kinds is bool else "True, False or the name of an accelerator"
            raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
                f"{option} is {written(getattr(parts, option))}; it must be {what}"
            )
    chosen, schedule = None, None
    if parts.schedule == AUTO:
        chosen = chosen_schedule(parts.policy, parts.drafter, registry)
        chosen, schedule = usable(chosen if parts.draft_on == AUTO else chosen.on(parts.draft_on), registry)
        parts = attrs.evolve(parts, schedule=chosen.schedule)
    if parts.draft_on == AUTO:
        parts = attrs.evolve(parts, draft_on=DEFAULT_PLACE if chosen is None else chosen.draft_on)
    found_on = _found_on(registry) if parts.policy == DEFAULT_POLICY else None
    nothing = parts.policy in (NONE, None)
    spec, policy = (parts.policy, None) if nothing else _made_policy(registry, parts.policy, [NONE])
    parts = attrs.evolve(parts, policy=spec)
    drafter = _made_drafter(registry, parts.drafter, policy)
    _check_known(registry, "rule", parts.rule, [AUTO])
    name = rule_for(registry, policy) if parts.rule == AUTO else parts.rule
    rule: AcceptanceRule = built(registry, "rule", name)
    check_rule(rule, policy, parts.lossy)
    if isinstance(parts.attention, str):
        registry.get("attention backend", parts.attention)
    elif parts.attention is not None:
        built(registry, "attention backend", parts.attention)
    if isinstance(parts.accelerate, str):
        registry.get("accelerator", parts.accelerate)
    if chosen is None and parts.schedule != IN_TURN:
        _check_known(registry, "schedule", parts.schedule, [AUTO])
        schedule = made_schedule(registry, parts.schedule)
    if schedule is not None:
        check_drafting(parts.schedule, policy, parts.drafter)
    check_place(parts.draft_on, schedule, "" if chosen is None else chosen.why)
    return Resolved(attrs.evolve(parts, rule=name), registry, policy, rule, drafter, schedule, chosen, found_on)


def _check_known(registry: Registry, kind: str, asked: object, besides: Sequence[str]) -> None:
    """Refuse a name that there is not, where words may be asked for that are none: the sentence lists these as well."""
    name = parse_spec(asked)[0] if isinstance(asked, str) else None
    if name is not None and name not in (*besides, *registry.names(kind)):
        raise LookupError(registry.unknown(kind, name, besides=besides))


def _found_on(registry: Registry) -> str | None:
    """The kind of device that the default preset was found on, where it suits no other.

    None where nobody knows, its name is a policy's, or it is `MEASURING_POLICY`, which suits any.
    """
    file = None if DEFAULT_POLICY in registry.names("tree policy") else KEPT.file_of(DEFAULT_POLICY)
    preset = None if file is None else KEPT.read(file)
    if preset is None or preset.profile is None or preset.policy == MEASURING_POLICY:
        return None
    device = preset.profile["machine"].get("device")
    return None if device is None else str(device).partition(":")[0]


def usable(chosen: Chosen, registry: Registry) -> tuple[Chosen, Schedule | None]:
    """What "auto" stands for, made, if it can be: a file that keeps it may be older than what is registered.

    A place that was asked for is not looked at: `Resolved.check_place` refuses one that is not there.
    """
    try:
        schedule = made_schedule(registry, chosen.schedule)
        check_place(chosen.draft_on, schedule)
        if not chosen.asked:
            check_usable(parse_place(chosen.draft_on))
    except (LookupError, ValueError, PluginError) as error:
        return chosen.in_turn(f"which cannot be used: {one_line(error)}"), None
    return chosen, schedule


def made_schedule(registry: Registry, asked: str | Schedule | None) -> Schedule | None:
    """The schedule that is asked for; None for one that prepares nothing.

    Raises:
        LookupError: for an unknown name.
        ValueError: for a bad option, and for "auto", for which a policy must be known; see `resolve`.
    """
    if asked == AUTO:
        raise ValueError(
            f"the schedule is '{AUTO}', which stands for the one that talon tune has kept with a policy's preset; name "
            "one here (talon list schedules)"
        )
    made: Schedule | None = None if asked in (IN_TURN, None) else built(registry, "schedule", asked)
    return made if made is not None and made.prepares else None


def check_place(asked: object, schedule: Schedule | None, why: str = "") -> None:
    """Refuse what is no place to draft on while the target verifies.

    Args:
        asked: see `parse_place`.
        schedule: what drafts there; None drafts and verifies in turn.
        why: the reason for None, where nobody has asked for it.

    Raises:
        ValueError: if it is none, or nothing is drafted meanwhile.
    """
    parse_place(asked)
    if schedule is None and asked != DEFAULT_PLACE:
        raise ValueError(
            f"draft_on is {written(asked)}, and the schedule drafts and verifies in turn{f' ({why})' if why else ''}; "
            "name one that prepares something, as cached"
        )


def made_policy(registry: Registry, asked: str | TreePolicy | None) -> TreePolicy | None:
    """The policy that is asked for; None for "none" and None. Raises as `built` does."""
    return None if asked in (NONE, None) else cast(TreePolicy, built(registry, "tree policy", asked, [NONE]))


def _made_drafter(registry: Registry, asked: str | DrafterSpec, policy: TreePolicy | None) -> DrafterSpec | None:
    """The drafter that is asked for; None where it is chosen later, or where nothing is drafted."""
    if asked == AUTO or (policy is None and asked in (NONE, None)):
        return None
    _check_known(registry, "drafter", asked, [AUTO])
    drafter: DrafterSpec = built(registry, "drafter", asked)
    if policy is None:
        warn_of_unused(drafter)
        return None
    return drafter


def warn_of_unused(drafter: DrafterSpec | Drafter) -> None:
    """Say that a drafter which was asked for drafts nothing, as there is no tree policy."""
    LOGGER.warning("%s drafts nothing: there is no tree policy", naming("drafter", drafter))


def choose_drafter(registry: Registry, model: Any) -> str:
    """The name of the drafter that is ready for a model and has the highest rank, the first name among equals.

    A drafter that fails at saying its rank is left out, with a warning: nobody has asked for it.

    Raises:
        LookupError: if none is ready, which happens only where TALON's own drafters are not installed.
    """
    best: tuple[int, str] | None = None
    for name in registry.names("drafter"):
        cls: type[DrafterSpec] = registry.get("drafter", name).cls
        try:
            rank = checked_rank(cls, model)
        except PluginError as error:
            LOGGER.warning("left out of the drafters to choose from: %s", error)
            continue
        if rank is not None and (best is None or rank > best[0]):
            best = (rank, name)
    if best is None:
        raise LookupError(f"no drafter is ready for this model; name one with its files{registry.failed}")
    return best[1]


def built(registry: Registry, kind: str, given: Any, besides: Sequence[str] = ()) -> Any:
    """What a spec describes, or the object that was given in its place.

    Args:
        registry: where names are looked up.
        kind: a key of `talon_core.plugins.registry.KINDS`.
        given: a spec or an object; of a tree policy also a preset's name, with options that are to be others.
        besides: words that who calls this takes besides, and that are no specs.

    Raises:
        LookupError: for an unknown name; the sentence lists what there is, and these words.
        ValueError: for a bad option, an object of another kind, or a file that is no preset.
    """
    if kind == "tree policy":
        return _made_policy(registry, given, besides)[1]
    _check_known(registry, kind, given, besides)
    return _made(registry, kind, given)


def _made_policy(registry: Registry, given: Any, besides: Sequence[str] = ()) -> tuple[Any, TreePolicy]:
    """A policy, and its spec, that which a preset's name stands for. Raises as `built` does."""
    spec = spelled_out(registry, given, besides) if isinstance(given, str) else given
    try:
        return spec, cast(TreePolicy, _made(registry, "tree policy", spec))
    except ValueError as error:
        if not isinstance(given, str) or spec == given:
            raise
        raise ValueError(f"preset '{parse_spec(given)[0]}': {error}") from error


def _made(registry: Registry, kind: str, given: Any) -> Any:
    """As `built`, of a spec that is no preset's name."""
    interface = KINDS[kind][1]
    part = build(registry, kind, given) if isinstance(given, str) else given
    if not isinstance(part, interface):
        raise ValueError(  # noqa: TRY004 - callers expect a ValueError for every bad part
            f"the {kind} is {given!r}; it must be a spec, as `talon list` shows them, or {made_of(interface, given)}"
        )
    if isinstance(part, TreePolicy):
        for which in ("budget", "draft_budget"):
            checked_budget(part, which)
    return part
