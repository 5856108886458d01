"""What every tree policy must keep, as a function that its author runs in a test."""

import re
from collections import Counter
from collections.abc import Callable

import attrs
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import SeededChoices
from talon_core.drafting import Drafted, DraftLimits, draft_tree
from talon_core.errors import naming
from talon_core.policy import TreePolicy
from talon_core.rounds import Round
from talon_core.testing.strategies import draft_limits, table_drafters
from talon_core.testing.table import TableDrafter
from talon_core.tree import TokenTree


def check_tree_policy(make: Callable[[], TreePolicy], *, max_examples: int = 100) -> None:
    """Check that a policy keeps the contract of `TreePolicy`.

    Its options are checked once. Then trees are grown, by the decoder's own code and with its checks, against random
    drafters: flat and peaked laws, forbidden and hardly possible tokens, ties, rows with few candidates or none,
    rounding, tokens that end the text, limits of any depth. Each tree must keep the budgets, be a part of what was
    drafted, and come out the same when it is drafted again.

    Args:
        make: the policy's class, or a function that makes a new policy with the options to be checked.
        max_examples: how many random drafters to try.

    Raises:
        AssertionError: if the contract is broken in a way that the decoder does not look for.
        PluginError: if it is broken in a way that the decoder would refuse, too.
    """
    _check_options(make())

    @settings(max_examples=max_examples, deadline=None, report_multiple_bugs=False)
    @given(st.data(), table_drafters(), st.lists(st.integers(0, 1), min_size=1, max_size=3), st.integers(0, 2**16))
    def every_round_keeps_the_contract(data: st.DataObject, drafter: TableDrafter, roots: list[int], seed: int) -> None:
        limits = data.draw(draft_limits(drafter.vocab_size), label="limits")
        _check_sequence(make, drafter, roots, limits, seed)

    every_round_keeps_the_contract()


def _require(holds: bool, policy: TreePolicy, what: str) -> None:
    if not holds:
        raise AssertionError(f"{naming('tree policy', policy)} {what}")


def _check_options(policy: TreePolicy) -> None:
    cls: type = type(policy)
    _require(isinstance(policy, TreePolicy), policy, "is not a TreePolicy")
    name = getattr(policy, "name", None)
    _require(
        isinstance(name, str) and re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name) is not None,
        policy,
        f"has the name {name!r}; a name is lower case letters and digits with dashes between",
    )
    _require(isinstance(policy.children, str) and bool(policy.children), policy, "does not say how it chooses children")
    _require(
        attrs.has(cls) and _is_frozen(policy), policy, "must be an @attrs.frozen class, with options as its fields"
    )
    without = [field.name for field in attrs.fields(cls) if field.init and field.default is attrs.NOTHING]
    _require(not without, policy, f"has options without a default: {', '.join(without)}")
    cls()
    for budget in ("budget", "draft_budget"):
        nodes = getattr(policy, budget)
        _require(isinstance(nodes, int) and nodes >= 1, policy, f"has a {budget} of {nodes!r}; it is a number of nodes")


def _is_frozen(policy: TreePolicy) -> bool:
    try:
        setattr(policy, "budget", 2)  # noqa: B010 - the assignment is what is tested
    except attrs.exceptions.FrozenInstanceError:
        return True
    except AttributeError:
        return False
    return False


def _check_sequence(
    make: Callable[[], TreePolicy], drafter: TableDrafter, roots: list[int], limits: DraftLimits, seed: int
) -> None:
    """Draft one tree per root, telling the policy in between that its last node was accepted."""
    policy, twin = make(), make()
    policy.begin()
    twin.begin()
    other_seed = seed + 1 if policy.children == "deterministic" else seed
    for root in roots:
        drafted = draft_tree(policy, drafter, root, limits, SeededChoices(seed))
        _check_finished(policy, drafted)
        again = draft_tree(policy, drafter, root, limits, SeededChoices(seed))
        _require(
            _same(drafted, again), policy, "drafts another tree when asked again; between rounds nothing may change"
        )
        told = _round(drafted)
        policy.observe(told)
        others = draft_tree(twin, drafter, root, limits, SeededChoices(other_seed))
        _require(
            _same(drafted, others),
            policy,
            f"drafts other trees than an equal policy that saw the same (its children are {policy.children})",
        )
        twin.observe(told)


def _check_finished(policy: TreePolicy, drafted: Drafted) -> None:
    invented = _nodes(drafted.tree) - _nodes(drafted.drafted)
    for path, score in invented:
        _require(False, policy, f"finished a tree with the path {path} of path_logp {score}, which it had not drafted")


def _nodes(tree: TokenTree) -> Counter[tuple[tuple[int, ...], float]]:
    """Each node's path of tokens, the root's first, with its score."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return Counter(zip(paths, tree.path_logp.tolist(), strict=True))


def _same(one: Drafted, other: Drafted) -> bool:
    return all(
        np.array_equal(getattr(mine, arrays), getattr(theirs, arrays))
        for mine, theirs in ((one.tree, other.tree), (one.drafted, other.drafted))
        for arrays in ("tokens", "parents", "path_logp")
    )


def _round(drafted: Drafted) -> Round:
    """A round in which the tree's last node was accepted and every part took a millisecond."""
    tree = drafted.tree
    path = tree.path(len(tree) - 1)
    return Round(
        tree=tree,
        path=path,
        tokens=np.append(tree.tokens[path[1:]], 0),
        drafted_nodes=len(drafted.drafted),
        draft_passes=1,
        draft_seconds=1e-3,
        policy_seconds=1e-3,
        verify_seconds=1e-3,
        accept_seconds=1e-3,
        commit_seconds=1e-3,
    )
