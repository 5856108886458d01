"""Presets: options of a tree policy under a name, which `--policy` takes in the place of a spec."""

import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics import records
from talon_core.basics.kept import Kept
from talon_core.basics.records import as_plain
from talon_core.errors import LONGEST, written
from talon_core.plugins.registry import RESERVED, Registry
from talon_core.plugins.specs import join_spec, parse_spec

LOGGER = logging.getLogger(__name__)

KIND = "talon preset"
FORMAT = 1
"""Of the file; another number is another form."""

ORIGINS = ("tuned", "chosen")

LONGEST_POLICY = 1000
"""Characters of a preset's spec."""


def _usable(preset: "Preset", field: "attrs.Attribute[str]", policy: str) -> None:
    if len(policy) > LONGEST_POLICY or not policy.isprintable() or not parse_spec(policy)[0]:
        raise ValueError(f"'{field.name}' is {written(policy)}; it must be a spec such as name:option=value")


def check_kept(policy: str) -> None:
    """Refuse the spec of a policy that a preset cannot have, before anything is searched for it.

    Raises:
        ValueError: if it is too long.
    """
    if len(policy) > LONGEST_POLICY:
        raise ValueError(
            f"the policy has {len(policy)} characters, and that of a preset at most {LONGEST_POLICY}; give a shorter "
            "one, or leave out --save"
        )


@attrs.frozen
class Preset:
    """Options that were found good.

    Attributes:
        name: what it is called.
        policy: the spec of a registered policy.
        origin: "tuned" by `talon tune`, or "chosen" by somebody.
        made: when, and with which command and settings; for readers.
        traces: on which: the `fingerprint`, target, drafter and prompts of each.
        profile: under which: its `name`, `origin`, machine, model and drafter; None where none was used.
        schedule: with which it is to be decoded on that machine: `schedule`, a spec, `draft_on`, `said`, why that is
            so, and in `tried`, by spec, how many times as fast as in turn each would be; None where none was tried.
        gains: by what it is compared with, how many times as fast it is on prompts left out of the search: `median`,
            `low`, `high` and `prompts`.
    """

    name: str
    policy: str = attrs.field(validator=_usable)
    origin: str
    made: Mapping[str, Any] = attrs.field(factory=dict)
    traces: list[dict[str, Any]] = attrs.field(factory=list)
    profile: Mapping[str, Any] | None = None
    gains: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    schedule: Mapping[str, Any] | None = None

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, for JSON; `from_dict` reads it."""
        return {"kind": KIND, "format": FORMAT, **records.fields_as_plain(self)}

    @classmethod
    def from_dict(cls, data: Any) -> "Preset":
        """What `as_dict` gave.

        Raises:
            ValueError: if it is no preset, or of another version; the sentence names the field and the value.
        """
        found: Preset = records.make(cls, records.of_kind(data, KIND, FORMAT), READERS, "")
        return found


_schedule = records.holding(
    {**dict.fromkeys(("schedule", "draft_on", "said"), records.words), "tried": records.table(records.amount)}
)
_profile = records.holding(
    {"drafter": records.maybe(records.words), "machine": records.dictionary, "model": records.dictionary}
)
_gain = records.holding(
    {
        **dict.fromkeys(("low", "high"), records.maybe(records.amount)),
        **{"median": records.amount, "prompts": records.whole},
    }
)


def _gains(value: Any) -> dict[str, Any]:
    found: dict[str, Any] = records.table(_gain)(value)
    for spec in found:
        if len(spec) > LONGEST_POLICY or not spec.isprintable():
            raise ValueError(f"has the policy {written(spec)}; it must be a spec such as name:option=value")
    return found


READERS: Mapping[str, records.Reader] = {
    "name": records.words,
    "policy": records.words,
    "origin": records.one_of(*ORIGINS),
    "made": records.dictionary,
    "traces": records.dictionaries,
    "profile": records.maybe(_profile),
    "gains": _gains,
    "schedule": records.maybe(_schedule),
}

KEPT = Kept("preset", "talon tune", Path(__file__).parent / "shipped", Preset.from_dict)


def known_presets() -> dict[str, Path]:
    """The files of all presets that have a name: those that come with TALON, and the user's own."""
    return KEPT.known()


def find_preset(given: str) -> Preset:
    """A preset by its name, or by its file, which ends in `.json`; raises as `Kept.find` does."""
    return KEPT.find(given)


def check_preset_name(name: str, registry: Registry) -> None:
    """Refuse what is no name for a preset of the user's own.

    Raises:
        ValueError: if it is no name, that of a preset that comes with TALON, or one that means something else where a
            policy is asked for.
    """
    check_meaning(name, registry)
    KEPT.check_name(name)


def check_meaning(name: str, registry: Registry) -> None:
    """Refuse a preset's name that means something else where a policy is asked for.

    Raises:
        ValueError: if it does; the sentence says what.
    """
    if name in RESERVED:
        raise ValueError(f"a preset cannot be called '{name}', which means that {RESERVED[name]}; take another name")
    for kind in ("tree policy", "drafter"):
        if name in registry.names(kind):
            raise ValueError(f"a preset cannot be called '{name}', as a registered {kind} is; take another name")


def as_text(preset: Preset) -> str:
    """A preset as its file has it."""
    return json.dumps(as_plain(preset.as_dict()), ensure_ascii=False, indent=2) + "\n"


def save_preset(preset: Preset, registry: Registry) -> Path:
    """Keep a preset under its name; one of the user's own that is there already is replaced.

    Raises:
        ValueError: if its name is none, see `check_preset_name`.
        OSError: if it cannot be written; what was there before stays.
    """
    check_preset_name(preset.name, registry)
    return KEPT.save(preset.name, as_text(preset))


def spelled_out(registry: Registry, spec: str, besides: Sequence[str] = ()) -> str:
    """The spec that a preset stands for, with the options that were given besides; another spec as it is.

    Where a policy is registered under the preset's name, that one is meant, and a warning says so.

    Args:
        registry: where names are looked up.
        spec: as it is given.
        besides: words that may be given in the place of a spec, for the error.

    Raises:
        LookupError: if the name is that of no policy and no preset, or a preset's policy is not registered.
        ValueError: if the preset's file is none, or an option is written wrongly; the sentence names it.
        OSError: if its file cannot be read.
    """
    name, options = parse_spec(spec)
    registered, file = registry.names("tree policy"), KEPT.file_of(name)
    if name in registered:
        if file is not None:
            LOGGER.warning("'%s' is the registered tree policy; the preset in '%s' has the same name", name, file)
        return spec
    if file is None:
        raise LookupError(registry.unknown("tree policy", name[:LONGEST], [*known_presets()], besides))
    policy, own = parse_spec(KEPT.read(file).policy)
    if policy not in registered:
        raise LookupError(f"preset '{name}' in '{file}': {registry.unknown('tree policy', policy)}")
    return join_spec(policy, {**own, **options})
