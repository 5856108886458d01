"""Methods: what is compared, written `drafter/policy/rule`, and peers, written as any spec."""

import re
from collections.abc import Sequence

import attrs

from talon_core.certificates.standing import standing
from talon_core.defaults import DEFAULT_DRAFTER, DEFAULT_POLICY, DEFAULT_RULE, NONE
from talon_core.peer import Peer
from talon_core.plugins.parts import Parts, Resolved, built, resolve
from talon_core.plugins.registry import Registry, load_registry
from talon_core.plugins.specs import spelled
from talon_core.rule import MEASURED, Lossless

PLAIN = NONE
"""The method every run has: one token per pass, with the same engine as all others."""
GENERATE = "generate"
"""The method that is transformers' own `model.generate`."""

SPACED = re.compile(r"\s+/(?:\s+|$)")
"""The separator between parts where an option's value may hold a slash of its own."""


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
            **({} if self.peer is None else {"peer": spelled(self.peer)}),
        }


def parse_method(
    spec: str, attention: str | None = None, registry: Registry | None = None, lossy: bool = False
) -> Method:
    """Read a method, and make its parts.

    Parts are separated by `/`, or by ` / ` with space around it: where that occurs, other slashes belong to the
    options, as in `draft-model:model=./some/folder / talon:budget=8`. Parts left out take the defaults.

    Args:
        spec: for example `ngram/talon:budget=12,mu=0.1`, `none` or `generate`.
        attention: an attention backend's name; None takes the first that can run.
        registry: where to look names up; everything that is installed by default.
        lossy: allow a rule that changes the law of the output.

    Raises:
        ValueError: if a part is unknown or has a bad option, or the rule does not fit the policy or is lossy where that
            is not allowed; the sentence names the method.
    """
    registry = registry if registry is not None else load_registry()
    name = spec.strip()
    if not name:
        raise ValueError(f"a method is empty; it is written drafter/policy/rule, or it is {PLAIN} or {GENERATE}")
    if name == GENERATE:
        return Method(name, None)
    if name == PLAIN:
        return Method(name, resolve(Parts(policy=PLAIN, attention=attention, lossy=lossy), registry))
    spaced = SPACED.search(name) is not None
    pieces = [piece.strip() for piece in (SPACED.split(name) if spaced else name.split("/"))]
    slash_in_option = not spaced and any("=" in piece for piece in pieces[:-1])
    hint = "; where an option holds a slash, write ' / ' with spaces between the parts" if slash_in_option else ""
    if len(pieces) > 3:
        raise ValueError(
            f"method '{name}' has {len(pieces)} parts; at most three are written, drafter/policy/rule{hint}"
        )
    drafter, policy, rule = (*pieces, "", "")[:3]
    if policy == PLAIN:
        raise ValueError(f"method '{name}' has the policy {PLAIN}; decoding without drafting is the method '{PLAIN}'")
    chosen = (drafter or DEFAULT_DRAFTER, policy or DEFAULT_POLICY, rule or DEFAULT_RULE)
    try:
        resolved = resolve(Parts(*chosen, attention, lossy=lossy), registry)
    except (LookupError, ValueError) as error:
        raise ValueError(f"method '{name}': {error}{hint}") from error
    return Method(name, resolved, standing(resolved.rule, resolved.policy))


def parse_peer(spec: str, registry: Registry | None = None) -> Method:
    """Read a peer.

    Args:
        spec: for example `prompt-lookup:tokens=5`.
        registry: where to look the name up; everything that is installed by default.

    Raises:
        LookupError: if there is no such peer.
        ValueError: for a bad option.
    """
    name = spec.strip()
    if not name:
        raise ValueError("a peer is empty; it is written name:option=value, as talon list peers shows them")
    peer: Peer = built(registry if registry is not None else load_registry(), "peer", name)
    return Method(name, None, MEASURED, peer)


def parse_methods(
    specs: Sequence[str], attention: str | None = None, lossy: bool = False, peers: Sequence[str] = ()
) -> list[Method]:
    """Read the methods of a run; plain decoding is put first where it was not given.

    Args:
        specs: as for `parse_method`.
        attention: likewise.
        lossy: likewise.
        peers: as for `parse_peer`; they come last.

    Raises:
        LookupError: if there is no such peer.
        ValueError: for a bad method or peer, or two that are the same or have one name.
    """
    registry = load_registry()
    methods = [parse_method(spec, attention, registry, lossy) for spec in specs]
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
