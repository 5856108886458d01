"""What is tried on a trace, written `policy`, `policy/rule`, `drafter/policy` or `drafter/policy/rule`."""

from collections.abc import Sequence

from talon_core.bench.methods import SPACED
from talon_core.defaults import DEFAULT_DRAFTER, DEFAULT_POLICY, DEFAULT_RULE
from talon_core.drafter import DrafterSpec
from talon_core.engine.checked_drafter import told_hash
from talon_core.plugins.parts import Parts, Resolved, built, resolve
from talon_core.plugins.registry import Registry
from talon_core.trace.folder import Trace
from talon_core.trace.replay import Method

OR_NAME_IT = ", or write the drafter before the policy, as in 'drafter / policy', to look things up in these"
"""What helps where the files of a trace's own drafter were changed, besides recording it anew."""


def parse_method(spec: str, trace: Trace, registry: Registry) -> Method:
    """Read a method, and make its parts.

    Args:
        spec: for example `talon:budget=12`, `sequoia/rrsw` or `ngram/talon`.
        trace: what it is tried on: its drafter is the one that is meant where none is named.
        registry: where to look names up.

    Raises:
        ValueError: if a part is unknown or has a bad option, the rule does not fit the policy, the drafter is another
            one than the trace's and needs the model, or none is named and the trace's looks things up in files that
            were changed; the sentence names the method.
    """
    drafter, resolved = parse_parts(spec, registry)
    recorded = _recorded(trace["drafter"]["spec"], registry)
    try:
        own = None if drafter is None else _drafter(drafter, trace, recorded, registry)
        if own is None and trace["drafter"]["reads_texts"]:
            own = own_drafter(trace, registry, OR_NAME_IT)
    except (LookupError, ValueError) as error:
        raise ValueError(f"method '{spec.strip()}': {error}") from error
    return Method(spec.strip(), resolved.policy, resolved.rule, own, recorded)


def own_drafter(trace: Trace, registry: Registry, instead: str = "") -> DrafterSpec:
    """The drafter that a trace is of, if the files in which it looks things up are those that it was recorded with.

    Args:
        trace: of a drafter that reads texts alone.
        registry: where to look it up.
        instead: what helps besides recording the trace anew, for the error.

    Raises:
        LookupError: if there is no such drafter.
        ValueError: if it has a bad option, or its files were changed or are not there.
        PluginError: if it fails at telling its files; the message names it.
    """
    spec, before = trace["drafter"]["spec"], trace["drafter"]["sha256"]
    drafter: DrafterSpec = built(registry, "drafter", spec)
    now = told_hash(spec, drafter)
    if now != before:
        raise ValueError(
            f"the files of '{spec}' are not those that the trace was recorded with (sha256 {before[:8]} then, "
            f"{now[:8]} now); record it anew{instead}"
        )
    return drafter


def parse_parts(spec: str, registry: Registry) -> tuple[str | None, Resolved]:
    """The drafter that a method names, and its policy and rule, made; raises as `parse_method` does."""
    name = spec.strip()
    pieces = [piece.strip() for piece in (SPACED.split(name) if SPACED.search(name) else name.split("/"))]
    first = pieces[0].partition(":")[0].strip()
    if first == DEFAULT_DRAFTER:
        rest = name.partition("/")[2].strip() or DEFAULT_POLICY
        parse_parts(rest, registry)
        raise ValueError(f"method '{name}': the trace's own drafter is taken where none is named: write '{rest}'")
    drafter = pieces.pop(0) if len(pieces) > 1 and first in registry.names("drafter") else None
    if not 1 <= len(pieces) <= 2 or not pieces[0]:
        raise ValueError(f"method '{name}' is written policy, policy/rule, drafter/policy or drafter/policy/rule")
    policy, rule = (*pieces, "")[:2]
    try:
        return drafter, resolve(Parts(policy=policy, rule=rule or DEFAULT_RULE), registry)
    except (LookupError, ValueError) as error:
        why: object = error
        if drafter is None and first in registry.names("drafter"):
            why = f"'{first}' is a drafter, and a policy stands behind it: write '{name}/{DEFAULT_POLICY}'"
        elif "@" in name:
            why = f"{error}; a schedule, as behind an @ of talon bench, is tried by talon trace simulate --schedule"
        raise ValueError(f"method '{name}': {why}") from error


def _drafter(spec: str, trace: Trace, recorded: DrafterSpec | None, registry: Registry) -> DrafterSpec | None:
    """The drafter that is named; None if it is the recorded one."""
    drafter: DrafterSpec = built(registry, "drafter", spec)
    if not trace["drafter"]["reads_texts"] and drafter == recorded:
        return None
    if not drafter.reads_texts:
        raise ValueError(
            f"the trace is of the drafter '{trace['drafter']['spec']}', and '{spec}' needs the model; record a trace "
            "with it, or name a drafter that reads texts alone"
        )
    return drafter


def _recorded(spec: str, registry: Registry) -> DrafterSpec | None:
    try:
        found: DrafterSpec = built(registry, "drafter", spec)
    except (LookupError, ValueError):  # it may come from a plugin that is not installed here
        return None
    return found


def parse_methods(specs: Sequence[str], trace: Trace, registry: Registry) -> list[Method]:
    """Read several, each another one; raises as `parse_method` does."""
    methods = [parse_method(spec, trace, registry) for spec in specs]
    names = [method.name for method in methods]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"the method '{name}' is given twice; give each one once")
    return methods
