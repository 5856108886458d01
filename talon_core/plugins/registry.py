"""What can be asked for by name: policies, drafters, rules, schedules and attention backends, all from plugins."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from types import FunctionType, MethodType, ModuleType
from typing import Any

import attrs
import pluggy

from talon_core import hookspecs
from talon_core.attention import Accelerator, AttentionBackend
from talon_core.basics.loaded import noting_imports
from talon_core.basics.suggestions import did_you_mean
from talon_core.drafter import DrafterSpec
from talon_core.errors import first_line, one_line, written
from talon_core.peer import Peer
from talon_core.policy import TreePolicy
from talon_core.recipe import Recipe
from talon_core.rule import AcceptanceRule, fault_of_claims
from talon_core.schedule import Schedule

GROUP = "talon"

KINDS: Mapping[str, tuple[str, type]] = {
    "tree policy": ("talon_policies", TreePolicy),
    "drafter": ("talon_drafters", DrafterSpec),
    "rule": ("talon_rules", AcceptanceRule),
    "schedule": ("talon_schedules", Schedule),
    "attention backend": ("talon_attention", AttentionBackend),
    "accelerator": ("talon_accelerators", Accelerator),
    "recipe": ("talon_recipes", Recipe),
    "peer": ("talon_peers", Peer),
}
"""For each kind of plugin object, the hook that lists its classes and the interface they implement."""

WITHOUT_OPTIONS = (AttentionBackend, Accelerator)
"""Interfaces whose classes are made without options, and so need not be attrs classes."""

HOOKABLE = (FunctionType, MethodType, classmethod, staticmethod)
"""What pluggy takes for a hook, where it is marked as one."""

RESERVED = {"none": "there is none", "auto": "one is chosen"}
"""Names that no plugin can have, and what they mean where a part is asked for."""


@attrs.frozen
class Registered:
    """One registered class: its name, what kind it is, and which plugin (`distribution:entry-point`) brought it."""

    kind: str
    name: str
    cls: type
    plugin: str


@attrs.frozen
class Registry:
    """Every registered class; never changed after it is built.

    Attributes:
        entries: by kind, then by name.
        failures: for each plugin, or part of one, that could not be used, why not.
        plugins: every plugin that was looked at, `distribution:entry-point`.
    """

    entries: Mapping[str, Mapping[str, Registered]]
    failures: Mapping[str, str]
    plugins: tuple[str, ...] = ()

    def names(self, kind: str) -> list[str]:
        """The registered names of a kind, sorted."""
        return sorted(self.entries[kind])

    def get(self, kind: str, name: str) -> Registered:
        """Look a name up.

        Raises:
            LookupError: if there is none; the sentence lists what there is and which plugins failed to load.
        """
        try:
            return self.entries[kind][name]
        except KeyError:
            raise LookupError(self.unknown(kind, name)) from None

    def unknown(self, kind: str, name: str, presets: Sequence[str] = (), besides: Sequence[str] = ()) -> str:
        """The sentence for a name that there is not.

        Args:
            kind: what was looked for.
            name: its name.
            presets: names that stand for options of one that is registered, and could have been meant as well.
            besides: names that may be asked for as well, and are not registered.
        """
        names = sorted([*self.names(kind), *besides])
        there = ", ".join(names) or "none"
        kept = f"; presets: {', '.join(presets)}" if presets else ""
        hint = _as_option(name) if kind == "drafter" else ""
        hint = hint or did_you_mean(name, [*names, *presets])
        return f"no {kind} '{name}'; {hint}there are: {there}{kept}{self.failed}"

    @property
    def failed(self) -> str:
        """The end of a sentence: which plugins failed to load, and why; empty if none did."""
        return "".join(f"; failed to load: {plugin} ({why})" for plugin, why in self.failures.items())


def _as_option(name: str) -> str:
    """How a drafter's files are named, where somebody has named these alone; empty where they have not."""
    if not (os.path.exists(name) or "/" in name):
        return ""
    return f"files are an option of a drafter, NAME:path={name}, and talon doctor --drafter {name} says whose; "


def load_registry(plugins: Iterable[tuple[str, Callable[[], Any]]] | None = None) -> Registry:
    """Collect what plugins register. A plugin that fails is left out and remembered; it never stops the others.

    Args:
        plugins: pairs of a plugin's label and a function that loads it; by default every entry point in the group
            `talon`, TALON's own before the others, so that nobody can take a built-in's name.
    """
    failures: dict[str, str] = {}
    entries: dict[str, dict[str, Registered]] = {kind: {} for kind in KINDS}
    labels = []
    for label, load in _installed_plugins() if plugins is None else plugins:
        labels.append(label)
        try:
            plugin = load()
            manager = _Hooks(GROUP)
            manager.add_hookspecs(hookspecs)
            manager.register(plugin, name=label)
            manager.check_pending()
            if not manager.get_hookcallers(plugin):
                raise ValueError("it registers nothing: no function of it is marked @hookimpl")
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # sys.exit in a plugin must not end the program
            failures[label] = _sentence(error)
            continue
        for kind, (hook, interface) in KINDS.items():
            try:
                classes = [cls for listed in getattr(manager.hook, hook)() for cls in listed]
            except KeyboardInterrupt:
                raise
            except BaseException as error:
                failures[f"{label} ({hook})"] = _sentence(error)
                continue
            problems = []
            for cls in classes:
                problem = _problem_of(cls, interface, entries[kind])
                if problem:
                    problems.append(problem)
                else:
                    entries[kind][cls.name] = Registered(kind, cls.name, cls, label)
            if problems:
                failures[f"{label} ({hook})"] = "; ".join(problems)
    return Registry(entries, failures, tuple(labels))


_MAKES_PARTS: ContextVar[Registry] = ContextVar("_MAKES_PARTS")


@contextmanager
def making_parts(registry: Registry) -> Iterator[None]:
    """While entered, a part that is made of other parts finds them in this registry; see `registry_of_parts`."""
    before = _MAKES_PARTS.set(registry)
    try:
        yield
    finally:
        _MAKES_PARTS.reset(before)


def registry_of_parts() -> Registry:
    """Where a part looks up those that it is made of: in the registry that it comes from.

    One that nobody looked up, but that was made in Python, finds them in what is installed.
    """
    return _MAKES_PARTS.get(None) or load_registry()


class _Hooks(pluggy.PluginManager):
    """Asks pluggy only about what can be a hook: most names of a module are classes, and each look takes long."""

    def parse_hookimpl_opts(self, plugin: Any, name: str) -> Any:
        if type(plugin) is ModuleType and not isinstance(vars(plugin).get(name), HOOKABLE):
            return None
        return super().parse_hookimpl_opts(plugin, name)


def _installed_plugins() -> list[tuple[str, Callable[[], Any]]]:
    found: dict[str, EntryPoint] = {}
    for entry in entry_points(group=GROUP):
        distribution = (entry.dist.name if entry.dist is not None else None) or "unknown"  # it may lack its metadata
        found.setdefault(f"{distribution}:{entry.name}", entry)
    ours_first = sorted(found, key=lambda label: (not label.startswith("talon-core:"), label))
    return [(label, partial(_load, found[label])) for label in ours_first]


def _load(entry: EntryPoint) -> Any:
    if EntryPoint.pattern.match(entry.value) is None:
        raise ValueError(f"its entry point is {written(entry.value)}; it must be module or module:object")
    if entry.module in sys.modules:
        return entry.load()
    with noting_imports():
        return entry.load()


def _problem_of(cls: object, interface: type, taken: Mapping[str, Registered]) -> str | None:
    try:
        return _problem(cls, interface, taken)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # attributes may be descriptors, and classes may have odd metaclasses
        return f"{written(cls)} cannot be looked at: {_sentence(error)}"


def _problem(cls: object, interface: type, taken: Mapping[str, Registered]) -> str | None:
    """Why a class cannot be registered, or None."""
    if not isinstance(cls, type) or not issubclass(cls, interface):
        return f"{written(cls)} is not a subclass of {interface.__name__}"
    where = f"{cls.__module__}.{cls.__qualname__}"
    name = getattr(cls, "name", None)
    if not isinstance(name, str) or not name:
        return f"{where} has no name"
    if not all(part.isalnum() and part.isascii() and part == part.lower() for part in name.split("-")):
        return f"{where} is called '{name}'; a name is lower case letters and digits with dashes between"
    if name in RESERVED:
        return f"{where} is called '{name}', which means that {RESERVED[name]}"
    if name in taken:
        return f"{where} is called '{name}', a name that {taken[name].plugin} has taken"
    missing: frozenset[str] = getattr(cls, "__abstractmethods__", frozenset())
    if missing:
        return f"{where} does not implement {', '.join(sorted(missing))}"
    if not attrs.has(cls) and interface not in WITHOUT_OPTIONS:
        return f"{where} is not an attrs class; decorate it with @attrs.frozen"
    wrong = fault_of_claims(cls) if issubclass(cls, AcceptanceRule) else None
    return f"{where} {wrong}" if wrong is not None else None


def _sentence(error: BaseException) -> str:
    # what is wrong with a hook comes in the last lines
    said = one_line(error) if isinstance(error, pluggy.PluginValidationError) else first_line(error)
    name = type(error).__name__
    return name if said == name else f"{name}: {said}"
