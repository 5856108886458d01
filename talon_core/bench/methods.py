"""Methods: what is compared, written `drafter/policy/rule@schedule@place`, and peers, written as any spec."""

import re
from collections.abc import Sequence
from contextlib import suppress

import attrs

from talon_core.basics.suggestions import nearest
from talon_core.certificates.standing import standing
from talon_core.defaults import (
    DEFAULT_DRAFTER,
    DEFAULT_PLACE,
    DEFAULT_POLICY,
    DEFAULT_RULE,
    IN_TURN,
    NONE,
)
from talon_core.engine.ahead.place import parse_place
from talon_core.peer import Peer
from talon_core.plugins.parts import Parts, Resolved, built, made_schedule, resolve
from talon_core.plugins.presets import known_presets
from talon_core.plugins.registry import Registry, load_registry
from talon_core.plugins.specs import spelled
from talon_core.rule import MEASURED, Lossless

PLAIN = NONE
"""The method every run has: one token per pass, with the same engine as all others."""
WRITTEN = {"llama.cpp": "llama-cpp"}
"""Other ways to write the names of peers."""

GENERATE = "generate"
"""The method that is transformers' own `model.generate`."""

SPACED = re.compile(r"\s+/(?:\s+|$)")
"""The separator between parts where an option's value may hold a slash of its own."""
BEHIND = re.compile(r"\s+@\s+")
"""Likewise between a method, its schedule and the place where that drafts, where an option's value may hold an @."""


@attrs.frozen
class Method:
    """One way of decoding.

    Attributes:
        name: as it was written, without the space around it.
        resolved: what TALON's engine decodes with; None for a peer, and for transformers' own `generate`.
        lossless: whether what it decodes has the target's law, see `talon_core.certificates.standing`.
        peer: what decodes in the place of TALON's engine; None for TALON's own methods and `generate`.
    """

    name: str
    resolved: Resolved | None
    lossless: Lossless = True
    peer: Peer | None = None

    def check_place(self) -> None:
        """Refuse a method that drafts where this machine has nothing, before a model is loaded.

        Raises:
            ValueError: the sentence names the method.
        """
        if self.resolved is None:
            return
        try:
            self.resolved.check_place()
        except ValueError as error:
            raise ValueError(f"method '{self.name}': {error}") from error

    @property
    def schedule(self) -> tuple[str, str] | None:
        """Its schedule and where that drafts; None where it drafts and verifies in turn, or drafts nothing."""
        if self.resolved is None or self.resolved.schedule is None:
            return None
        return str(self.resolved.parts.schedule), self.resolved.parts.draft_on

    def as_dict(self) -> dict[str, str | bool | None]:
        """Its name and its parts with the defaults filled in, as the manifest has them."""
        parts = self.resolved.parts if self.resolved is not None else None
        drafting = parts is not None and parts.policy != PLAIN
        return {
            "name": self.name,
            "drafter": str(parts.drafter) if parts is not None and drafting else None,
            "policy": str(parts.policy) if parts is not None else None,
            "rule": str(parts.rule) if parts is not None else None,
            "lossless": self.lossless,
            **({} if self.schedule is None else {"schedule": self.schedule[0], "draft_on": self.schedule[1]}),
            **({} if self.peer is None else {"peer": spelled(self.peer)}),
        }


def parse_method(
    spec: str,
    attention: str | None = None,
    registry: Registry | None = None,
    lossy: bool = False,
    draft_on: str = DEFAULT_PLACE,
) -> Method:
    """Read a method, and make its parts.

    Parts are separated by `/`, or by ` / ` with space around it: where that occurs, other slashes belong to the
    options, as in `draft-model:model=./some/folder / talon:budget=8`. Parts left out take the defaults; the policy is
    the preset itself then, on any kind of device. Behind them may stand a schedule, and behind that where it drafts,
    each after an `@`, or an ` @ ` in the same way.

    Args:
        spec: for example `ngram/talon:budget=12,mu=0.1`, `eagle3/talon@cached:budget=24@cpu:1`, `none` or `generate`.
        attention: an attention backend's name; None takes the first that can run.
        registry: where to look names up; everything that is installed by default.
        lossy: allow a rule that changes the law of the output.
        draft_on: where a schedule drafts that says no place itself, as `talon_core.load` takes it.

    Raises:
        ValueError: if a part is unknown or has a bad option, or the rule does not fit the policy or is lossy where that
            is not allowed, or a place is named and nothing is drafted there; the sentence names the method.
    """
    registry = registry if registry is not None else load_registry()
    name = spec.strip()
    head, schedule, place, at_hint = _behind(name)
    if not name:
        raise ValueError(
            "a method is empty; it is written drafter/policy/rule, with a schedule drafter/policy/rule@schedule, or it "
            f"is {PLAIN} or {GENERATE}"
        )
    if head in (PLAIN, GENERATE):
        if head != name:
            raise ValueError(f"method '{name}' has a schedule, and '{head}' drafts nothing; write '{head}' alone")
        parts = Parts(policy=PLAIN, attention=attention, lossy=lossy)
        return Method(name, None if head == GENERATE else resolve(parts, registry))
    drafter, policy, rule, hint = _parts(name, head)
    chosen = (drafter or DEFAULT_DRAFTER, policy or DEFAULT_POLICY, rule or DEFAULT_RULE)
    try:
        prepares = _prepares(registry, schedule, at_hint)
        place = place or (draft_on if prepares else DEFAULT_PLACE)
        parts = Parts(*chosen, attention, lossy=lossy, schedule=schedule, draft_on=place)
        resolved = resolve(parts, registry)
    except (LookupError, ValueError) as error:
        raise ValueError(f"method '{name}': {_without_drafter(registry, name, drafter) or f'{error}{hint}'}") from error
    resolved = attrs.evolve(resolved, found_on=None)  # what is compared has one meaning, whatever it runs on
    return Method(name, resolved, standing(resolved.rule, resolved.policy))


def _without_drafter(registry: Registry, name: str, drafter: str) -> str:
    """What is wrong where a policy stands in the place of the drafter; empty where none does."""
    first = drafter.partition(":")[0].strip()
    if first in registry.names("drafter") or first not in (*registry.names("tree policy"), *known_presets()):
        return ""
    separator = " / " if SPACED.search(name) else "/"
    pieces = [piece.strip() for piece in name.split(separator)]
    meant = f"{DEFAULT_DRAFTER}{separator}{name}"
    if len(pieces) > 1 and pieces[1].partition(":")[0].strip() in registry.names("drafter"):
        meant = separator.join([pieces[1], pieces[0], *pieces[2:]])
    with suppress(LookupError, ValueError):
        parse_method(meant, registry=registry)
        return f"'{first}' is a policy, and a method begins with its drafter: write '{meant}'"
    return ""


def _behind(name: str) -> tuple[str, str, str, str]:
    """A method's parts, its schedule, the place, empty where none is named, and a hint for errors."""
    spaced = BEHIND.search(name) is not None
    head, *behind = (piece.strip() for piece in (BEHIND.split(name) if spaced else name.split("@")))
    hint = f"; where an option holds an @, write ' @ ' with spaces before the schedule, or ' @ {IN_TURN}'"
    hint = hint if "=" in head and behind and not spaced else ""
    if len(behind) > 2 or (behind and not all(behind)):
        raise ValueError(f"method '{name}' is written drafter/policy/rule@schedule@place, with at most two @{hint}")
    schedule, place = (*behind, "", "")[:2]
    return head, schedule or IN_TURN, place, hint


def _prepares(registry: Registry, schedule: str, hint: str) -> bool:
    """Whether what stands behind the first @ prepares something.

    Raises:
        LookupError: if it is no schedule; with the hint, unless it resembles one.
        ValueError: if it has a bad option.
    """
    try:
        return made_schedule(registry, schedule) is not None
    except LookupError as error:
        meant = nearest(schedule.partition(":")[0], registry.names("schedule"))
        raise LookupError(f"{error}{'' if meant else hint}") from error


def _parts(name: str, head: str) -> tuple[str, str, str, str]:
    """A method's drafter, policy and rule, empty where they are left out, and a hint for errors."""
    spaced = SPACED.search(head) is not None
    pieces = [piece.strip() for piece in (SPACED.split(head) if spaced else head.split("/"))]
    slash_in_option = not spaced and any("=" in piece for piece in pieces[:-1])
    hint = "; where an option holds a slash, write ' / ' with spaces between the parts" if slash_in_option else ""
    if len(pieces) > 3:
        raise ValueError(
            f"method '{name}' has {len(pieces)} parts; at most three are written, drafter/policy/rule{hint}"
        )
    drafter, policy, rule = (*pieces, "", "")[:3]
    if policy == PLAIN:
        raise ValueError(f"method '{name}' has the policy {PLAIN}; decoding without drafting is the method '{PLAIN}'")
    return drafter, policy, rule, hint


def parse_peer(spec: str, registry: Registry | None = None) -> Method:
    """Read a peer.

    Args:
        spec: for example `prompt-lookup:tokens=5`; `llama.cpp` is `llama-cpp`.
        registry: where to look the name up; everything that is installed by default.

    Raises:
        LookupError: if there is no such peer.
        ValueError: for a bad option.
    """
    name = _as_registered(spec.strip())
    if not name:
        raise ValueError("a peer is empty; it is written name:option=value, as talon list peers shows them")
    peer: Peer = built(registry if registry is not None else load_registry(), "peer", name)
    return Method(name, None, MEASURED, peer)


def _as_registered(spec: str) -> str:
    """A peer's spec with the name that it is registered by."""
    name, colon, options = spec.partition(":")
    return f"{WRITTEN.get(name.strip(), name)}{colon}{options}"


def parse_methods(
    specs: Sequence[str],
    attention: str | None = None,
    lossy: bool = False,
    peers: Sequence[str] = (),
    draft_on: str = DEFAULT_PLACE,
) -> list[Method]:
    """Read the methods of a run; plain decoding is put first where it was not given.

    Args:
        specs: as for `parse_method`.
        attention: likewise.
        lossy: likewise.
        peers: as for `parse_peer`; they come last.
        draft_on: as for `parse_method`.

    Raises:
        LookupError: if there is no such peer.
        ValueError: for a bad method or peer, or two that are the same or have one name, or a place where no method
            drafts.
    """
    registry = load_registry()
    methods = [parse_method(spec, attention, registry, lossy, draft_on) for spec in specs]
    if draft_on != DEFAULT_PLACE and all(method.schedule is None for method in methods):
        parse_place(draft_on)
        raise ValueError(
            f"draft_on is '{draft_on}', and every method drafts and verifies in turn; write a schedule behind one, as "
            "in eagle3/talon@cached"
        )
    if all(method.name != PLAIN for method in methods):
        methods.insert(0, parse_method(PLAIN, attention, registry, lossy))
    methods += [parse_peer(spec, registry) for spec in peers]
    for number, method in enumerate(methods):
        for other in methods[:number]:
            if (method.resolved, method.peer) == (other.resolved, other.peer):
                what = "method" if method.peer is None else "peer"
                raise ValueError(f"'{other.name}' and '{method.name}' are the same {what}; give each one once")
            if method.name == other.name:
                raise ValueError(
                    f"'{method.name}' is a method and a peer, and a run tells them apart by name; write one of them "
                    "differently, such as with an option's default"
                )
    return methods
