"""What goes with a rule: the trees of a policy, and what the user allows."""

from collections.abc import Iterable

from talon_core.defaults import EXACT_RULE
from talon_core.engine.checked_policy import checked_children
from talon_core.errors import naming
from talon_core.plugins.registry import Registry
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule, check_claims


def check_rule(rule: AcceptanceRule, policy: TreePolicy | None, lossy: bool) -> str | None:
    """Refuse a rule that changes the output's law, unless the user allows it.

    Args:
        rule: the acceptance rule.
        policy: whose trees it is for; None decodes without drafting.
        lossy: rules that say themselves that they are lossy are allowed, for trees of any kind.

    Returns:
        The kind of the policy's trees, which must stay what it is now; None without a policy.

    Raises:
        ValueError: if the rule is lossy, or not exact for the policy's trees.
        PluginError: if what one of them says of itself cannot be understood.
    """
    check_claims(rule)
    children = checked_children(policy) if policy is not None else None
    if rule.lossy:
        if not lossy:
            raise ValueError(
                f"{naming('rule', rule)} is lossy: it changes what the model says; where that is wanted, "
                "lossy=True allows it (--lossy of talon generate and talon bench run)"
            )
        return children
    exact_for: Iterable[str] = getattr(rule, "exact_for", ())  # a rule that does not say it is exact for nothing
    if children is not None and not _is_exact(exact_for, children):
        raise ValueError(
            f"{naming('rule', rule)} is not exact for the {children} trees of "
            f"{naming('tree policy', policy)}; it is exact for {', '.join(sorted(exact_for)) or 'none'}"
        )
    return children


def _is_exact(exact_for: Iterable[str], children: str) -> bool:
    return not {children, "any"}.isdisjoint(exact_for)


def rule_for(registry: Registry, policy: TreePolicy | None) -> str:
    """The name of the rule to use where the user names none.

    Raises:
        LookupError: if its default rule is not registered; the sentence names the policy.
    """
    if policy is None:
        return EXACT_RULE
    if policy.default_rule not in registry.names("rule"):
        others = ", ".join(exact_rules(registry, policy))
        raise LookupError(
            f"{naming('tree policy', policy)} has the default rule {policy.default_rule!r}, and there is none; "
            f"name one that is exact for its trees: {others or 'none is registered'}{registry.failed}"
        )
    return policy.default_rule


def exact_rules(registry: Registry, policy: TreePolicy, looking_ahead: bool = True) -> list[str]:
    """The names of the lossless rules for a policy's trees.

    Args:
        registry: where they are looked up.
        policy: whose trees they are for.
        looking_ahead: those that look ahead are among them.
    """
    names = []
    for name in registry.names("rule"):
        rule: type[AcceptanceRule] = registry.get("rule", name).cls
        exact_for = getattr(rule, "exact_for", ())  # a plugin may have forgotten to say it
        if not rule.lossy and _is_exact(exact_for, policy.children) and (looking_ahead or not rule.looks_ahead):
            names.append(name)
    return names
