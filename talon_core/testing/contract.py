"""What every tree policy must keep, as a function that its author runs in a test."""

from collections import Counter
from collections.abc import Callable

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.choices import SeededChoices
from talon_core.drafting import Drafted, DraftLimits, draft_tree
from talon_core.drawn import Drawn
from talon_core.growing import checked_budget, checked_kind
from talon_core.policy import TreePolicy
from talon_core.rounds import Round
from talon_core.testing.claims import check_class, is_name, made, require, steady
from talon_core.testing.hostile import AnyDrafter, hostile_drafters
from talon_core.testing.strategies import draft_limits, table_drafters
from talon_core.tree import TokenTree


def check_tree_policy(make: Callable[[], TreePolicy], *, max_examples: int = 100) -> None:
    """Check that a policy keeps the contract of `TreePolicy`.

    What it says of itself is checked once. Then trees are grown, by the decoder's own code and with its checks, against
    random drafters and hostile ones: flat and peaked laws, forbidden and hardly possible tokens, ties, rows with few
    candidates or none, rounding, tokens that end the text, limits of any depth. Each tree must keep the budgets, be a
    part of what was drafted, and come out the same when it is drafted again with the same choices, what is said of its
    draws included.

    Args:
        make: the policy's class, or a function that makes a new policy with the options to be checked.
        max_examples: how many random drafters to try, and how many hostile ones.

    Raises:
        AssertionError: if the contract is broken in a way that the decoder does not look for.
        PluginError: if it is broken in a way that the decoder would refuse, too.
    """
    _check_claims(made(make))
    _check_rounds(make, table_drafters(), max_examples)
    _check_rounds(make, hostile_drafters(), max_examples)


def _check_rounds(make: Callable[[], TreePolicy], drafters: st.SearchStrategy[AnyDrafter], max_examples: int) -> None:
    @settings(max_examples=max_examples, deadline=None, report_multiple_bugs=False)
    @given(st.data(), drafters, st.lists(st.integers(0, 1), min_size=1, max_size=3), st.integers(0, 2**16))
    def every_round_keeps_the_contract(data: st.DataObject, drafter: AnyDrafter, roots: list[int], seed: int) -> None:
        limits = data.draw(draft_limits(drafter.vocab_size), label="limits")
        _check_sequence(make, drafter, roots, limits, seed)

    with steady("tree policy", make(), "candidates.choices"):
        every_round_keeps_the_contract()


def _require(holds: bool, policy: TreePolicy, what: str) -> None:
    require(holds, "tree policy", policy, what)


def _check_claims(policy: TreePolicy) -> None:
    check_class("tree policy", policy, TreePolicy)
    checked_kind(policy)
    _require(is_name(policy.suits), policy, f"suits {policy.suits!r}; it must be the name of a rule, as 'match'")
    for which in ("budget", "draft_budget"):
        checked_budget(policy, which)


def _check_sequence(
    make: Callable[[], TreePolicy], drafter: AnyDrafter, roots: list[int], limits: DraftLimits, seed: int
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
        _equal(mine, theirs, ("tokens", "parents", "path_logp"))
        and mine.drawn.keys() == theirs.drawn.keys()
        and all(_same_draws(drawn, theirs.drawn[node]) for node, drawn in mine.drawn.items())
        for mine, theirs in ((one.tree, other.tree), (one.drafted, other.drafted))
    )


def _same_draws(one: Drawn, other: Drawn) -> bool:
    return one.replacement == other.replacement and _equal(one, other, ("tokens", "law", "logp"))


def _equal(one: object, other: object, arrays: tuple[str, ...]) -> bool:
    return all(np.array_equal(getattr(one, array), getattr(other, array)) for array in arrays)


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
