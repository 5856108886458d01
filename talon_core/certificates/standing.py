"""Whether the output of a policy and a rule has the target's law: proved, certified, claimed, or not."""

from inspect import getattr_static

from talon_core.certificates.store import find
from talon_core.certificates.subject import is_own
from talon_core.drawn import KINDS
from talon_core.policy import TreePolicy
from talon_core.rule import CLAIMED, AcceptanceRule, Lossless


def standing(rule: AcceptanceRule, policy: TreePolicy | None) -> Lossless:
    """Whether the output has the target's law, for a pair that `check_rule` lets through.

    Drafters do not matter: they are asked before anything is drawn, and cannot foresee a draw.

    Args:
        rule: the acceptance rule.
        policy: whose trees it is for; None without drafting.

    Returns:
        False for a lossy rule. True if that is proved for the pair, or a certificate belongs to its code. Otherwise
        "claimed".
    """
    if rule.lossy:
        return False
    return is_proved(rule, policy) or find(policy, rule) is not None or CLAIMED


def is_proved(rule: AcceptanceRule, policy: TreePolicy | None) -> bool:
    """Whether it holds whatever a plugin does: the rule is TALON's, and so is the policy, or the rule does not mind.

    A rule minds how a policy made its trees if it tests drawn children by the law they are said to be drawn from, and
    the policy's trees may hold such.
    """
    if rule.lossy or not is_own(rule):
        return False
    return policy is None or "any" in rule.exact_for or not _may_draw(policy) or is_own(policy)


def _may_draw(policy: TreePolicy) -> bool:
    children = getattr_static(policy, "children", None)  # of a property, nobody knows what it says next time
    return children != policy.children or not isinstance(children, str) or KINDS[children].most != 0
