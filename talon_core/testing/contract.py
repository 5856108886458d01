"""What every tree policy must keep, as a function that its author runs in a test."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from talon_core.candidates import Candidates
from talon_core.chains import Chains
from talon_core.choices import Choices, SeededChoices
from talon_core.costs import Costs, MeasuredCosts
from talon_core.drawn import Drawn
from talon_core.engine.checked_policy import (
    begun,
    chaining,
    checked_budget,
    checked_kind,
    follower,
    overlooking,
    resting,
    source_of,
)
from talon_core.engine.drafting import Drafted, DraftLimits, Wanted, draft_tree, draft_trees
from talon_core.engine.faults import Faults
from talon_core.engine.growing_slots import GrowingSlots
from talon_core.engine.offers import Offers
from talon_core.errors import blaming
from talon_core.forest_drawer import forest_drawer
from talon_core.forest_grower import forest_grower
from talon_core.forest_learner import ForestRound, LearningForest, beside, forest_learners
from talon_core.forest_planner import AskedLayer, TreePlan, forest_planner, plan_of
from talon_core.policy import Growth, SequenceInfo, TreePolicy
from talon_core.rounds import Round, Span
from talon_core.testing.claims import check_class, is_name, made, require, steady, unexplained
from talon_core.testing.drawn_forests import drawn_forest
from talon_core.testing.hostile import AnyDrafter, hostile_drafters
from talon_core.testing.strategies import draft_limits, table_drafters
from talon_core.tree import FloatArray, IntArray, TokenTree


@attrs.frozen
class Told:
    """What becomes of a tree, and what its policy is told.

    Attributes:
        root: the last committed token before it.
        place: the last accepted node, counted around a tree that has fewer; 0 accepts nothing.
        bonus: the token after that.
        draft_seconds: time in the drafter.
        verify_seconds: time in the target.
    """

    root: int
    place: int
    bonus: int
    draft_seconds: float
    verify_seconds: float

    def of(self, drafted: Drafted, context: int = 1) -> Round:
        """The round, for a tree that was drafted, behind so many committed tokens."""
        tree = drafted.tree
        path = tree.path(self.place % len(tree))
        taking: list[tuple[float, str, str | None, int | None]] = [
            (self.draft_seconds, "draft", "layer", 0),
            (1e-4, "policy", "finish", None),
            (self.verify_seconds, "verify", None, None),
            (1e-4, "accept", None, None),
        ]
        spans, start = [], 0.0
        for seconds, part, work, layer in taking:
            spans.append(Span(part, start, start + seconds, work, layer))
            start += seconds
        return Round(
            tree=tree,
            path=path,
            tokens=np.append(tree.tokens[path[1:]], self.bonus),
            drafted=None if drafted.drafted is tree else drafted.drafted,
            draft_passes=1,
            spans=tuple(spans),
            context=context,
        )


_SECONDS = st.sampled_from([1e-3, 0.0, 1e-6, 0.03, 2.0])
_PLACES = st.sampled_from([-1, 0]) | st.integers(0, 60)
"""The last node, none at all, or any."""

_TOLD = st.builds(Told, st.integers(0, 1), _PLACES, st.integers(0, 1), _SECONDS, _SECONDS)


def _of_one_speed(rounds: list[Told], seconds: float) -> list[Told]:
    return [attrs.evolve(told, verify_seconds=seconds) for told in rounds]


_FIRST = st.lists(_TOLD, min_size=1, max_size=3)
_FIRST |= st.builds(_of_one_speed, _FIRST, _SECONDS)  # a policy may look at their sum


def _measured() -> MeasuredCosts:
    """What passes take, by few of them: a root alone, a tree of 60 nodes, and two layers of a drafter."""
    costs = MeasuredCosts()
    costs.verified(1, 100, 1, 0.01)
    costs.verified(60, 100, 1, 0.02)
    costs.drafted(1, 10, 0.001)
    costs.drafted(10, 10, 0.002)
    return costs


@attrs.frozen
class _Fixed(Costs):
    """What passes take, as a profile knows it; of nodes the more, the longer the text is.

    Attributes:
        node: what another node costs after a text of 100 tokens, in passes over the root alone.
        layer: what a layer of one row costs, likewise.
    """

    node: float
    layer: float

    @property
    def fixed(self) -> bool:
        return True

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return 0.01 * (1.0 + self.node * (nodes - 1) * context / 100)

    def draft(self, rows: int, width: int) -> float:
        return 0.01 * self.layer * (1.0 + 0.1 * (rows - 1))

    def besides(self, drafted: bool) -> float:
        return 0.005 * drafted

    def chain(self, layers: int) -> float:
        return 0.01 * self.layer * layers


_PRICES = st.sampled_from([0.05, 0.0, 0.01, 0.3])
_COSTS = st.builds(MeasuredCosts) | st.builds(_measured) | st.builds(_Fixed, _PRICES, _PRICES)


_SEQUENCES = st.builds(
    SequenceInfo,
    prompt_length=st.sampled_from([5, 1, 4000]),
    max_new_tokens=st.sampled_from([64, 1, 4000]),
    temperature=st.sampled_from([1.0, 0.0, 0.3, 2.0]),
    costs=_COSTS,
)


def check_tree_policy(make: Callable[[], TreePolicy], *, max_examples: int = 100) -> None:
    """Check that a policy keeps the contract of `TreePolicy`.

    What it says of itself is checked once. Then trees are grown, by the decoder's own code and with its checks, against
    random drafters and hostile ones: flat and peaked laws, forbidden and hardly possible tokens, ties, rows with few
    candidates or none, rounding, tokens that end the text, limits of any depth. In between the policy is told of rounds
    in which nothing, something or all was accepted, in times of any size. Each tree must keep the budgets, be a part of
    what was drafted, and come out the same when it is drafted again with the same choices, what is said of its draws
    included. A policy that grows forests, or draws for them, must grow the same trees in them; one that can be
    asked together with those of other texts must choose the same as by itself, round after round; one that plans must
    draft those that it plans; and one that says chains, and need not be asked for them, must draft these where it is
    asked, and learn the same. One that says that it rests must draft nothing then, and the same afterwards whether it
    was asked in between or not. A sequence after others, and beside others, must get the trees that it gets alone:
    what a policy remembers of a text is in what `begin` returns, where each field with a factory is made anew. That is
    a policy of the same `children`, for prompts of any length and any temperature, whether what passes cost is not
    known, was measured, or never changes.

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
    @settings(max_examples=max_examples, deadline=None, report_multiple_bugs=False, phases=unexplained())
    @given(
        st.data(),
        drafters,
        _SEQUENCES,
        _FIRST,
        st.lists(_TOLD, max_size=2),
        st.integers(0, 2**16),
    )
    def every_round_keeps_the_contract(
        data: st.DataObject,
        drafter: AnyDrafter,
        sequence: SequenceInfo,
        first: list[Told],
        second: list[Told],
        seed: int,
    ) -> None:
        limits = data.draw(draft_limits(drafter.vocab_size), label="limits")
        policy = make()
        served, twin = _begun(policy, sequence), _begun(make(), sequence)
        _check_sequence(served, twin, drafter, first, limits, seed)
        _check_forest(make, sequence, drafter, [told.root for told in first + second], limits)
        _check_drawer(make, sequence, drafter, [told.root for told in first + second], limits)
        _check_learners(make, sequence, drafter, first + second, limits)
        run_ahead = attrs.evolve(sequence, runs_on=True, draws_on=True, rests_on=True)
        _check_chained_learners(make, run_ahead, drafter, first, limits)
        _check_chains(make, run_ahead, drafter, first + second, limits)
        _check_rests(make, run_ahead, drafter, first + second, limits)
        _check_plans(_begun(make(), sequence), _begun(make(), sequence), drafter, first + second, limits)
        _check_memory(lambda of: _begun(of, sequence), policy, make(), drafter, second, limits, seed)

    with steady("tree policy", make(), "choices"):
        every_round_keeps_the_contract()


def _require(holds: bool, policy: TreePolicy, what: str) -> None:
    require(holds, "tree policy", policy, what)


def _check_claims(policy: TreePolicy) -> None:
    check_class("tree policy", policy, TreePolicy)
    checked_kind(policy)
    _require(
        is_name(policy.default_rule),
        policy,
        f"has default_rule {policy.default_rule!r}; it must be the name of a rule, as 'match'",
    )
    hooks: object = policy.hooks
    _require(
        isinstance(hooks, tuple) and all(isinstance(one, str) and hasattr(type(policy), one) for one in hooks),
        policy,
        f"has hooks {hooks!r}; it must be a tuple of the names of its methods",
    )
    for which in ("budget", "draft_budget"):
        checked_budget(policy, which)
    for temperature in (0.0, 1.0):
        _begun(policy, SequenceInfo(prompt_length=5, max_new_tokens=64, temperature=temperature))
    told = SequenceInfo(prompt_length=5, max_new_tokens=64, temperature=0.0, sources=("first", "second"))
    source_of(_begun(policy, told), len(told.sources))()


def _check_sequence(
    policy: TreePolicy, twin: TreePolicy, drafter: AnyDrafter, rounds: list[Told], limits: DraftLimits, seed: int
) -> None:
    """Draft a sequence of trees with two equal policies, telling them in between what became of each."""
    other_seed = seed + 1 if policy.children == "deterministic" else seed
    rests = 0
    for told in rounds:
        drafted = draft_tree(policy, drafter, told.root, limits, SeededChoices(seed))
        _check_finished(policy, drafted)
        alone = len(drafted.drafted) == 1
        _require(
            alone or not rests,
            policy,
            f"drafts in a round in which it was to rest: rests said {rests} more before it",
        )
        rests = max(rests - 1, resting(policy)()) if alone else 0
        again = draft_tree(policy, drafter, told.root, limits, SeededChoices(seed))
        _require(
            _same(drafted, again), policy, "drafts another tree when asked again; between rounds nothing may change"
        )
        _observe(policy, told.of(drafted))
        others = draft_tree(twin, drafter, told.root, limits, SeededChoices(other_seed))
        _require(
            _same(drafted, others),
            policy,
            f"drafts other trees than an equal policy that saw the same (its children are {policy.children})",
        )
        _observe(twin, told.of(drafted))


def _check_forest(
    make: Callable[[], TreePolicy], sequence: SequenceInfo, drafter: AnyDrafter, roots: list[int], limits: DraftLimits
) -> None:
    """Draft trees of texts of several lengths one by one and all together, if the policy can."""
    wanted = []
    for slot, root in enumerate(roots):
        own = attrs.evolve(limits, max_depth=max(limits.max_depth - slot, 0))
        context = sequence.prompt_length + slot * slot * 100
        policy = _begun(make(), attrs.evolve(sequence, prompt_length=context))
        grower = forest_grower(policy)
        if grower is None:
            return
        wanted.append(Wanted(slot, policy, root, own, SeededChoices(slot), context, [grower]))
    faults = Faults()
    together = draft_trees(wanted, Offers(drafter), faults, MeasuredCosts(), fewest=1)
    for fault in faults.values():
        raise fault
    for one in wanted:
        alone, drafted = draft_tree(one.policy, drafter, one.root, one.limits, one.choices), together[one.slot]
        _require(
            _same(alone, drafted),
            one.policy,
            "grows another tree in a forest than by itself; widths, grow_forest and finish_forest must lead to the "
            "same trees as width, grow and finish",
        )


def _check_drawer(
    make: Callable[[], TreePolicy], sequence: SequenceInfo, drafter: AnyDrafter, roots: list[int], limits: DraftLimits
) -> None:
    """Draw trees one by one and all together, if the policy can."""
    drawer = forest_drawer(_begun(make(), sequence))
    if drawer is None:
        return
    own = [attrs.evolve(limits, max_depth=max(limits.max_depth - slot, 0)) for slot in range(len(roots))]
    verified, drafted = drawn_forest(drawer, drafter, roots, own, [SeededChoices(slot) for slot in range(len(roots))])
    for slot, root in enumerate(roots):
        alone = draft_tree(_begun(make(), sequence), drafter, root, own[slot], SeededChoices(slot))
        together = attrs.evolve(alone, tree=verified[slot], drafted=drafted[slot])
        _require(
            _same(alone, together, ROUNDING),
            drawer,
            "draws another tree in a forest than by itself; forest_widths, draw_forest and finish_forest must lead to "
            "the same trees as width, grow and finish",
        )


ROUNDING = 1e-9
"""By how much numbers may differ that are computed from laws in different ways."""


@attrs.frozen
class _Said(TreePolicy):
    """Draws one of the chains that were said.

    Attributes:
        said: which.
        offered: the log-probabilities of what was offered, layer by layer.
    """

    name = "said"
    said: Chains
    offered: list[FloatArray] = attrs.field(factory=list, init=False, eq=False)

    @property
    def children(self) -> str:  # type: ignore[override]
        return "deterministic" if self.said.drawn is None else "sampled-chain"

    @property
    def budget(self) -> int:  # type: ignore[override]
        return self.said.depth + 1

    def width(self, tree: TokenTree) -> int:
        return self.said.width

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        depth, path = len(tree) - 1, candidates.path_logp.item(0)
        self.offered.append(candidates.logp[0])
        joins = path >= self.said.joins[depth] and path > -np.inf
        drawn = {}
        if joins and self.said.drawn is not None:
            law = candidates.law(0)
            law = (law / law.max()) ** (1.0 / self.said.drawn)
            drawn[0] = candidates.draw(choices, 0, law=law / law.sum())
            path = float(tree.path_logp[-1] + drawn[0].logp[0])
        goes_on = joins and depth + 1 < self.said.depth and path >= self.said.goes_on[depth]
        return Growth(np.arange(int(joins and not drawn)), None if goes_on else np.arange(0), drawn=drawn)


def _check_chains(
    make: Callable[[], TreePolicy], sequence: SequenceInfo, drafter: AnyDrafter, rounds: list[Told], limits: DraftLimits
) -> None:
    """Ask one of two equal policies for its trees, and give the other those that it has said."""
    asked, given = _begun(make(), sequence), _begun(make(), sequence)
    follow, context = follower(given), sequence.prompt_length
    if follow is None:
        return
    for told in rounds:
        chains, same = chaining(asked)(), chaining(given)()
        _require(
            chains == same, asked, "says other chains than an equal policy that was given those that both have said"
        )
        drafted = draft_tree(asked, drafter, told.root, limits, SeededChoices(0))
        if chains is None:
            draft_tree(given, drafter, told.root, limits, SeededChoices(0))
        else:
            said = _Said(chains)
            own = draft_tree(said, drafter, told.root, limits, SeededChoices(0))
            rounding = 0.0 if chains.drawn is None else ROUNDING  # laws are made sharper in one way or another
            _require(_same(drafted, own, rounding), asked, "drafts another tree than the chain that it has said")
            if said.offered:
                widest = max(map(len, said.offered))
                rows = [np.pad(row, (0, widest - len(row)), constant_values=-np.inf) for row in said.offered]
                follow(np.array(rows), len(own.tree) - 1)
        for policy in (asked, given):
            _observe(policy, told.of(drafted, context))
        context += len(told.of(drafted).tokens)


def _check_rests(
    make: Callable[[], TreePolicy], sequence: SequenceInfo, drafter: AnyDrafter, rounds: list[Told], limits: DraftLimits
) -> None:
    """Ask one of two equal policies for all of its trees, and the other for none of those for which it rests."""
    asked, told_of = _begun(make(), sequence), _begun(make(), sequence)
    left, rested = 0, False
    for told in rounds:
        chaining(asked)()
        overlooking(asked)()
        drafted = draft_tree(asked, drafter, told.root, limits, SeededChoices(0))
        if left:
            left, rested = left - 1, True
        else:
            chaining(told_of)()
            overlooking(told_of)()
            own = draft_tree(told_of, drafter, told.root, limits, SeededChoices(0))
            _require(
                not rested or _same(drafted, own),
                asked,
                "drafts another tree than an equal policy that was not asked for those of rounds in which it rested",
            )
            left = resting(told_of)() if len(own.drafted) == 1 else 0
        for policy in (asked, told_of):
            _observe(policy, told.of(drafted))


TEXTS = 3
"""Texts that go on side by side."""


def _check_learners(
    make: Callable[[], TreePolicy], sequence: SequenceInfo, drafter: AnyDrafter, rounds: list[Told], limits: DraftLimits
) -> None:
    """Draft for several texts one by one, in slots that are handed back, and as one, if the policy can."""
    contexts = [sequence.prompt_length + text * text * 100 for text in range(TEXTS)]
    told_of = [attrs.evolve(sequence, prompt_length=context, unread=context - 1) for context in contexts]
    alone, slots, others = ([_begun(make(), told) for told in told_of] for _ in range(3))
    learners, own = forest_learners(slots), forest_learners(others)
    if learners is None or own is None:
        return
    as_one = beside(own)
    for number, told in enumerate(rounds):
        # now and then a text has no round, or none in which anything can be drafted
        depths = [0 if (number + text) % 5 == 4 else max(limits.max_depth - text, 0) for text in range(TEXTS)]
        running = [(number + 2 * text) % 4 != 3 for text in range(TEXTS)]
        wanted = [
            Wanted(
                text,
                learners[text],
                (told.root + text) % 2,
                attrs.evolve(limits, max_depth=depths[text] if running[text] else 0),
                SeededChoices(text),
                contexts[text],
                [learners[text]],
            )
            for text in range(TEXTS)
        ]
        faults = Faults()
        of_slots = draft_trees(
            [wanted[text] for text in range(TEXTS) if running[text]], Offers(drafter), faults, MeasuredCosts(), fewest=1
        )
        growing, of_one = _drafted_as_one(as_one, wanted, drafter, faults)
        for fault in faults.values():
            raise fault
        done: dict[int, Round] = {}
        for text, one in enumerate(wanted):
            if running[text]:
                drafted = draft_tree(alone[text], drafter, one.root, one.limits, one.choices)
                _require(
                    _same(drafted, of_slots[text]) and _same(drafted, of_one[text]),
                    one.policy,
                    "grows another tree beside those of other texts than by itself; what its LearningForest chooses, "
                    "and what it learns or hands back, must be what the policy itself would",
                )
                done[text] = told.of(drafted, contexts[text])
                _observe(alone[text], done[text])
                _observe(slots[text], done[text])
                contexts[text] += len(done[text].tokens)
        with blaming("tree policy", others[0], "observe_forest"):
            as_one.observe_forest(_forest_round(growing, done))


def _check_chained_learners(
    make: Callable[[], TreePolicy], sequence: SequenceInfo, drafter: AnyDrafter, rounds: list[Told], limits: DraftLimits
) -> None:
    """Draft for several texts one by one and as one, where passes of chains would be run ahead, if the policy can."""
    contexts = [sequence.prompt_length + text * text * 100 for text in range(TEXTS)]
    told_of = [attrs.evolve(sequence, prompt_length=context, unread=context - 1) for context in contexts]
    alone, others = ([_begun(make(), told) for told in told_of] for _ in range(2))
    own = forest_learners(others)
    if own is None:
        return
    as_one = beside(own)
    for told in rounds:
        said = [chaining(policy)() is not None for policy in alone]
        with blaming("tree policy", others[0], "chained"):
            chained = as_one.chained(np.arange(TEXTS))
        _require(
            np.array_equal(chained, said),
            others[0],
            "says chains of other texts beside each other than by itself; chained of its LearningForest must tell for "
            "which texts chains says something",
        )
        wanted = [
            Wanted(text, own[text], (told.root + text) % 2, limits, SeededChoices(text), contexts[text])
            for text in range(TEXTS)
        ]
        faults = Faults()
        growing, of_one = _drafted_as_one(as_one, wanted, drafter, faults)
        for fault in faults.values():
            raise fault
        done: dict[int, Round] = {}
        for text, one in enumerate(wanted):
            drafted = draft_tree(alone[text], drafter, one.root, one.limits, one.choices)
            _require(
                _same(drafted, of_one[text]),
                one.policy,
                "grows another tree beside those of other texts than by itself, where passes may be run ahead",
            )
            done[text] = told.of(drafted, contexts[text])
            _observe(alone[text], done[text])
            contexts[text] += len(done[text].tokens)
        with blaming("tree policy", others[0], "observe_forest"):
            as_one.observe_forest(_forest_round(growing, done))


def _drafted_as_one(
    as_one: LearningForest, wanted: Sequence[Wanted], drafter: AnyDrafter, faults: Faults
) -> tuple[GrowingSlots, dict[int, Drafted]]:
    names = "slot", "root", "context", "limits"
    slots, roots, contexts, limits = ([getattr(one, name) for one in wanted] for name in names)
    growing, offers = GrowingSlots(as_one, slots, roots, contexts, limits), Offers(drafter)
    while asked := growing.asked(faults):
        growing.take(offers.ask(asked, [{}] * len(asked)).candidates, asked, offers, faults)
    return growing, {slot: Drafted(*trees) for slot, trees in growing.finish(faults).items()}


def _forest_round(growing: GrowingSlots, done: Mapping[int, Round]) -> ForestRound:
    """What became of trees that were drafted together, by what became of each of them."""
    forest, kept = growing.forest, growing.kept
    assert kept is not None
    accepted, new = np.zeros(len(forest), dtype=bool), np.zeros(forest.size, dtype=np.int64)
    for tree, round_ in done.items():
        path = growing.trees[tree].follow(round_.tree.tokens[round_.path[1:]])
        accepted |= (forest.trees == tree) & np.isin(growing.places, path)
        new[tree] = len(round_.tokens)
    return ForestRound(forest, kept, accepted, new)


@attrs.frozen(eq=False)
class _Noting(TreePolicy):
    """Drafts the trees of another policy, and notes what it was offered.

    Attributes:
        of: that policy.
        layers: what was offered, layer by layer.
        depths: of the nodes of each frontier, likewise.
    """

    name = "noting"
    of: TreePolicy
    layers: list[AskedLayer] = attrs.field(factory=list, init=False)
    depths: list[IntArray] = attrs.field(factory=list, init=False)

    @property
    def budget(self) -> int:  # type: ignore[override]
        return self.of.budget

    @property
    def draft_budget(self) -> int:
        return self.of.draft_budget

    def width(self, tree: TokenTree) -> int:
        return self.of.width(tree)

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        logp = candidates.logp.copy()
        rows, width = logp.shape
        self.layers.append(AskedLayer(rows, width, lambda: logp))
        self.depths.append(tree.depths.take(candidates.frontier))
        return self.of.grow(tree, candidates, choices)

    def finish(self, tree: TokenTree) -> TokenTree:
        return self.of.finish(tree)


@attrs.frozen(eq=False)
class _Planned:
    """The tree of a plan, and what was offered for it.

    Attributes:
        drafted: the tree.
        layers: what was offered, layer by layer.
        depths: of the nodes of each frontier, likewise.
    """

    drafted: Drafted
    layers: Sequence[AskedLayer]
    depths: Sequence[IntArray]

    @classmethod
    def of(cls, plan: TreePlan, drafter: AnyDrafter, root: int, limits: DraftLimits) -> "_Planned":
        """Draft it."""
        most = limits.max_depth if plan.depth is None else min(limits.max_depth, plan.depth)
        noting = _Noting(plan.policy)
        drafted = draft_tree(noting, drafter, root, attrs.evolve(limits, max_depth=most), SeededChoices(0))
        return cls(drafted, noting.layers, noting.depths)

    def cut(self, depth: int | None) -> "_Planned | None":
        """The same without nodes that are deeper; None where that is not simply a part of it.

        So it is where nodes were selected, or a layer was drafted from nodes of many depths.
        """
        tree, drafted = self.drafted.tree, self.drafted.drafted
        by_depth = all((own == place).all() for place, own in enumerate(self.depths))
        if depth is None or len(tree) < len(drafted) or not by_depth:
            return None
        kept, left = (one.keep(np.flatnonzero(one.depths <= depth)) for one in (tree, drafted))
        return _Planned(Drafted(kept, left), self.layers[:depth], self.depths[:depth])


def _check_plans(
    policy: TreePolicy, twin: TreePolicy, drafter: AnyDrafter, rounds: list[Told], limits: DraftLimits
) -> None:
    """Draft a sequence of trees with a policy that plans, and those that an equal one plans with whom it names."""
    asked, planning = forest_planner(policy), forest_planner(twin)
    if asked is None or planning is None:
        return
    for told in rounds:
        plan = plan_of(planning)
        if plan is None:
            return
        same = plan_of(asked)
        _require(hash(plan) == hash(same) and plan == same, policy, "plans another tree than its equal")
        _require(
            forest_grower(plan.policy) is not None,
            policy,
            f"plans trees of '{plan.policy.name}', which is no ForestGrower",
        )
        drafted = draft_tree(asked, drafter, told.root, limits, SeededChoices(0))
        planned = _Planned.of(plan, drafter, told.root, limits)
        with blaming("tree policy", policy, "ends_after"):
            ended = plan.ended(planning.ends_after(iter(planned.layers)))
        if ended != plan:
            planned = planned.cut(ended.depth) or _Planned.of(ended, drafter, told.root, limits)
        _require(_same(drafted, planned.drafted), policy, "drafts another tree than it plans")
        planning.drafted(planned.layers if limits.max_depth > 0 and told.root not in limits.ends else None)
        for one in (asked, planning):
            _observe(one, told.of(drafted))


def _check_memory(
    begun: Callable[[TreePolicy], TreePolicy],
    policy: TreePolicy,
    unseen: TreePolicy,
    drafter: AnyDrafter,
    rounds: list[Told],
    limits: DraftLimits,
    seed: int,
) -> None:
    """Draft a sequence after and beside others of the same policy, and one of a policy that serves no other."""
    own, alone = begun(policy), begun(unseen)
    for told in rounds:
        beside = begun(policy)
        _observe(beside, told.of(draft_tree(beside, drafter, told.root, limits, SeededChoices(seed))))
        drafted, expected = (draft_tree(one, drafter, told.root, limits, SeededChoices(seed)) for one in (own, alone))
        _require(
            _same(drafted, expected),
            policy,
            "drafts other trees for a sequence after and beside others than for the same one alone; what it remembers "
            "of a text must be made anew in what begin returns",
        )
        for one in (own, alone):
            _observe(one, told.of(expected))


def _begun(policy: TreePolicy, sequence: SequenceInfo) -> TreePolicy:
    """The policy of a further sequence; what was learnt of the machine starts anew, so that trees can be compared."""
    own = begun(policy, attrs.evolve(sequence, machine={}))
    _require(
        own.children == policy.children,
        policy,
        f"returned a policy from begin whose children are {own.children}; they must be {policy.children}, as its own",
    )
    kept = [name for name in _made_anew(policy) if getattr(own, name, None) is getattr(policy, name, None)]
    _require(
        not kept,
        policy,
        f"returned a policy from begin that shares {', '.join(kept)} with it; a field with a factory is made anew for "
        "each sequence, as attrs.evolve(self) does",
    )
    return own


def _made_anew(policy: TreePolicy) -> list[str]:
    """The fields in which a policy remembers, `init=False, eq=False`, as far as their factory makes another each."""
    one: Any = policy
    fields = [field.name for field in attrs.fields(type(one)) if not field.init and not field.eq]
    if not fields:
        return []
    other: TreePolicy = attrs.evolve(one)
    return [name for name in fields if getattr(other, name, None) is not getattr(policy, name, None)]


def _observe(policy: TreePolicy, round_: Round) -> None:
    with blaming("tree policy", policy, "observe"):
        policy.observe(round_)


def _check_finished(policy: TreePolicy, drafted: Drafted) -> None:
    if drafted.tree is drafted.drafted:
        return
    invented = _nodes(drafted.tree) - _nodes(drafted.drafted)
    for path, score in invented:
        _require(False, policy, f"finished a tree with the path {path} of path_logp {score}, which it had not drafted")


def _nodes(tree: TokenTree) -> Counter[tuple[tuple[int, ...], float]]:
    """Each node's path of tokens, the root's first, with its score."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), token))
    return Counter(zip(paths, tree.path_logp.tolist(), strict=True))


def _same(one: Drafted, other: Drafted, rounding: float = 0.0) -> bool:
    """Whether two trees are the same, and their numbers up to a relative difference."""
    return all(
        _equal(mine, theirs, ("tokens", "parents", "path_logp"), rounding)
        and mine.drawn.keys() == theirs.drawn.keys()
        and all(_same_draws(drawn, theirs.drawn[node], rounding) for node, drawn in mine.drawn.items())
        for mine, theirs in {(one.tree, other.tree), (one.drafted, other.drafted)}
    )


def _same_draws(one: Drawn, other: Drawn, rounding: float = 0.0) -> bool:
    return one.replacement == other.replacement and _equal(one, other, ("tokens", "law", "logp"), rounding)


def _equal(one: object, other: object, arrays: tuple[str, ...], rounding: float = 0.0) -> bool:
    pairs = [(getattr(one, array), getattr(other, array)) for array in arrays]
    return all(
        np.array_equal(mine, theirs)
        or (rounding > 0.0 and mine.shape == theirs.shape and np.allclose(mine, theirs, rtol=rounding, atol=rounding))
        for mine, theirs in pairs
    )
