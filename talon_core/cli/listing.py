"""`talon list`: what can be asked for by name, and who brought it."""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import attrs
import typer
from rich.console import Console
from rich.padding import Padding
from rich.text import Text

from talon_core.basics.suggestions import did_you_mean
from talon_core.certificates.store import every_certificate, why_not
from talon_core.cli import options as opts
from talon_core.cli.helps import attribute_helps
from talon_core.cli.output import plain, print_json, stdout
from talon_core.drafter import DrafterSpec
from talon_core.errors import PluginError, one_line
from talon_core.plugins.presets import KEPT, known_presets
from talon_core.plugins.registry import Registered, Registry, load_registry
from talon_core.plugins.specs import describe_options
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule
from talon_core.schedule import Schedule
from talon_core.searching import as_written

KINDS: Mapping[str, str] = {
    "policies": "tree policy",
    "drafters": "drafter",
    "rules": "rule",
    "schedules": "schedule",
    "attention": "attention backend",
    "accelerators": "accelerator",
    "recipes": "recipe",
    "peers": "peer",
}
"""What users call the registry's kinds."""
GROUPED = ("policies", "drafters", "rules", "schedules")
"""Those that say what they are for."""
OTHER = "other"
"""What the others are for."""
PRESETS = "presets"
WORDS = ("models", "policies", PRESETS, *(word for word in KINDS if word != "policies"), "certificates")


def listing(
    what: Annotated[str | None, typer.Argument(help=f"One of: {', '.join(WORDS)}. All of them without it.")] = None,
    as_json: opts.Json = False,
) -> None:
    """Show what is registered, by which plugin, with its options and their defaults."""
    if what is not None and what not in WORDS:
        raise ValueError(f"nothing is listed under '{what}'; {did_you_mean(what, WORDS)}there are: {', '.join(WORDS)}")
    wanted = WORDS if what is None else ("policies", PRESETS) if what == "policies" else (what,)
    registry = load_registry()
    failures = dict(registry.failures)
    answer: dict[str, Any] = {}
    for word in wanted:
        answer[word] = _listed(word, registry, failures)
    answer["failures"] = failures
    if as_json:
        print_json(answer)
    else:
        show(stdout(), answer)


def _listed(word: str, registry: Registry, failures: dict[str, str]) -> list[dict[str, Any]]:
    if word == "models":
        return list_models()
    if word == PRESETS:
        return list_presets(failures)
    return list_certificates(registry) if word == "certificates" else list_registered(registry, KINDS[word], failures)


def list_certificates(registry: Registry) -> list[dict[str, Any]]:
    """The certificates of this user, and those that installed plugins ship."""
    classes = [registry.get(kind, name).cls for kind in ("tree policy", "rule") for name in registry.names(kind)]
    return [
        {
            "policy": one.policy,
            "rule": one.rule,
            "any_value_of": list(one.subject.varied),
            "worlds": one.worlds,
            "accepting": one.accepting,
            "largest_error": one.largest_error,
            "seed": one.seed,
            "date": one.date,
            "versions": dict(one.versions),
            "shipped_by": one.package,
            "counts": why is None,
            "why_not": why,
            "path": str(one.file),
        }
        for one in every_certificate(classes)
        for why in [why_not(one)]
    ]


def list_presets(failures: dict[str, str]) -> list[dict[str, Any]]:
    """The presets of policies that come with TALON, and the user's own.

    Args:
        failures: what cannot be read is added here, by its file, with the reason.
    """
    described = []
    failures.update({f"preset '{one_line(name)}'": one_line(why) for name, why in KEPT.nameless().items()})
    for name, file in known_presets().items():
        try:
            preset = KEPT.read(file)
        except (ValueError, OSError) as error:
            failures[f"preset '{name}'"] = one_line(error)
            continue
        described.append(
            {
                **{"name": name, "policy": preset.policy, "origin": preset.origin, "gains": dict(preset.gains)},
                **{"made": dict(preset.made), "profile": preset.profile, "path": str(file)},
            }
        )
    return described


def list_models() -> list[dict[str, Any]]:
    """The embedded models and where they stand on this machine."""
    from talon_core.models import MODELS, status

    return [
        {
            "name": each.name,
            "description": MODELS[each.name].description,
            "licence": MODELS[each.name].licence,
            "architecture": MODELS[each.name].architecture,
            "parameters": MODELS[each.name].parameters,
            "download_bytes": MODELS[each.name].download_size,
            "state": each.state,
            "path": str(each.path),
        }
        for each in status()
    ]


def list_registered(registry: Registry, kind: str, failures: dict[str, str]) -> list[dict[str, Any]]:
    """Everything of one kind, by name.

    Args:
        registry: where they are looked up.
        kind: a key of `talon_core.plugins.registry.KINDS`.
        failures: what cannot be described is added here, by plugin and name, with the reason.
    """
    described = []
    for name in registry.names(kind):
        registered = registry.get(kind, name)
        try:
            described.append(describe(registered))
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # of a plugin; the others are listed all the same
            reason = str(error) if isinstance(error, PluginError) else f"{type(error).__name__}: {error}"
            failures[f"{registered.plugin} ({kind} '{name}')"] = reason
    return described


def describe(registered: Registered) -> dict[str, Any]:
    """One registered class: what it is, who brought it, and what can be set."""
    docstring = inspect.getdoc(registered.cls) or ""
    helps = attribute_helps(docstring)
    own: dict[str, Any] = {}
    if issubclass(registered.cls, TreePolicy | DrafterSpec | AcceptanceRule | Schedule):
        own = {"purpose": _words(registered.cls.purpose), "paper": _words(registered.cls.paper)}
    if issubclass(registered.cls, AcceptanceRule):
        own["lossy"] = bool(registered.cls.lossy)
    return {
        "name": registered.name,
        "plugin": registered.plugin,
        "class": f"{registered.cls.__module__}.{registered.cls.__qualname__}",
        "description": " ".join(docstring.split("\n\n")[0].split()),
        **own,
        "options": [
            {
                "name": option,
                "required": default is attrs.NOTHING,
                "default": None if default is attrs.NOTHING else plain(default),
                "description": helps.get(option, ""),
            }
            for option, default in describe_options(registered.cls).items()
        ],
    }


def _words(said: object) -> str | None:
    """What a class says of itself, in one line; None if that is no text."""
    return one_line(said) if isinstance(said, str) and said.strip() else None


def by_purpose(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """Registered classes by what they are for, in alphabetical order; those that do not say it come last."""
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for entry in sorted(entries, key=lambda entry: (entry["purpose"] is None, entry["purpose"] or "", entry["name"])):
        groups.setdefault(entry["purpose"] or OTHER, []).append(entry)
    return groups


def show(console: Console, answer: Mapping[str, Any]) -> None:
    """Print what `--json` gives, for people."""
    for word, entries in answer.items():
        if word == "failures":
            continue
        console.print(Text(word, style="bold"))
        if not entries:
            missing = "there is none" if word == "certificates" else "none is registered"
            console.print(Text(f"  {missing}", style="dim"))
        elif word in GROUPED:
            for place, (purpose, group) in enumerate(by_purpose(entries).items()):
                console.print(Text(f"\n  {purpose}:" if place else f"  {purpose}:", style="bold"))
                for entry in group:
                    _show_registered(console, entry)
        else:
            for entry in entries:
                SHOWN.get(word, _show_registered)(console, entry)
        console.print()
    if answer["failures"]:
        console.print(Text("failed to load", style="bold red"))
        for plugin, why in answer["failures"].items():
            _indented(console, Text(f"{plugin}: {why}"), 2)


def _show_registered(console: Console, entry: Mapping[str, Any]) -> None:
    head = Text("  ").append(entry["name"], style="bold cyan")
    head.append(f"  {entry['paper']}" if entry.get("paper") else "").append(f"  from {entry['plugin']}", style="dim")
    console.print(head.append("  lossy: needs --lossy" if entry.get("lossy") else "", style="bold red"))
    _indented(console, Text(entry["description"]), 6)
    for option in entry["options"]:
        required = option["required"]
        line = Text().append(
            option["name"] if required else f"{option['name']}={as_written(option['default'])}", "cyan"
        )
        help_ = option["description"] or ("must be given" if required else "")
        _indented(console, line.append(f"  {help_}" if help_ else "", "dim"), 6)


def _show_certificate(console: Console, entry: Mapping[str, Any]) -> None:
    by = f"shipped by {entry['shipped_by']}" if entry["shipped_by"] else "made here"
    head = Text("  ").append(f"{entry['policy']} with {entry['rule']}", style="bold cyan").append(f"  {by}", "dim")
    console.print(head.append("" if entry["counts"] else f"  does not count: {entry['why_not']}", style="bold red"))
    tried = (
        f"{entry['worlds']:,} worlds, largest error {entry['largest_error']:.2g}, seed {entry['seed']}, {entry['date']}"
    )
    varied = f"; any {', '.join(entry['any_value_of'])}" if entry["any_value_of"] else ""
    _indented(console, Text(f"{tried}{varied}"), 6)
    _indented(console, Text(entry["path"], style="dim"), 6)


def _show_preset(console: Console, entry: Mapping[str, Any]) -> None:
    head = Text("  ").append(entry["name"], style="bold cyan").append(f"  {entry['origin']}", style="dim")
    console.print(head)
    _indented(console, Text(entry["policy"]), 6)
    for other, gain in entry["gains"].items():
        between = f" ({gain['low']:.3f} to {gain['high']:.3f})" if None not in (gain["low"], gain["high"]) else ""
        told = (
            f"{gain['median']:.3f} times as fast as {other}{between}, predicted on {gain['prompts']} prompts left out"
        )
        _indented(console, Text(told, style="dim"), 6)
    _indented(console, Text(entry["path"], style="dim"), 6)


def _show_model(console: Console, entry: Mapping[str, Any]) -> None:
    console.print(Text("  ").append(entry["name"], style="bold cyan").append(f"  {entry['state']}", style="dim"))
    _indented(console, Text(entry["description"]), 6)
    size = f"{entry['parameters'] / 1e6:.0f}M parameters, {entry['download_bytes'] / 1e6:.0f} MB to download"
    _indented(console, Text(f"{size}; licence: {entry['licence']}", style="dim"), 6)


SHOWN: Mapping[str, Callable[[Console, Mapping[str, Any]], None]] = {
    "models": _show_model,
    PRESETS: _show_preset,
    "certificates": _show_certificate,
}
"""How entries are printed that are not of the registry."""


def _indented(console: Console, text: Text, by: int) -> None:
    console.print(Padding(text, (0, 0, 0, by), expand=False))
