"""A policy on several texts of a trace at once: trees at many of their positions grow together."""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.engine.checked_policy import checked_budget, fixed_chaining, listens, no_chains, teller
from talon_core.engine.growing_forest import GrowingForest
from talon_core.engine.plain import NoDrafter
from talon_core.errors import PluginError, blaming
from talon_core.forest_drawer import ForestDrawer, forest_drawer
from talon_core.forest_grower import ForestGrower, forest_grower, serve_alike
from talon_core.forest_learner import ForestRound, LearningForest, beside, forest_learners
from talon_core.forest_planner import ForestPlanner, RoundCounts, TreePlan, counting_planner, forest_planner, plan_of
from talon_core.policy import TreePolicy
from talon_core.rounds import Round
from talon_core.trace.answers import Answers
from talon_core.trace.columns import TextTrace
from talon_core.trace.grown import Grown
from talon_core.trace.grown_draws import GrownDraws, Testing
from talon_core.trace.in_turn import InTurn
from talon_core.trace.priced_rounds import Rounds, seconds_behind, spans_of
from talon_core.trace.prices import Untold, behind, seconds_of
from talon_core.trace.replay import Method, Replay, Replayed, Totals
from talon_core.trace.several import SeveralTexts
from talon_core.trace.several_laws import NotKept, SeveralLaws
from talon_core.trace.text_laws import LawsChanged
from talon_core.tree import FloatArray, IntArray
from talon_core.tree_arrays import by_number, distinct, ints

TREES, NODES = 512, 1 << 18
"""Trees that are begun with, at most: fewer hardly take less time, and more of them turn out to be at no round's begin;
and how many nodes they may have together while they are drafted, as each may have a row of candidates in the memory."""

DRAWN_NODES = 1 << 15
"""The same of nodes that are drawn: each may have sums of a law in the memory."""

PLANS = 64
"""Policies that may be planned on some texts, at most: with more of them, trees at all positions are many more than are
wanted."""


class _Growing:
    """A method on several texts: rounds of which each has a tree of those that were grown at many positions together.

    Args:
        replay: of the trace.
        method: it.
        texts: they, with the rows of its drafter.
        most: the deepest node that this drafts; None where it knows no limit.
    """

    def __init__(self, replay: Replay, method: Method, texts: SeveralTexts, most: int | None) -> None:
        self._replay, self._texts, self._costs = replay, texts, replay.costs_behind(method)
        self._rests, self._runs_on = replay.rests(method), replay.runs_on(method)
        self._vocab_size = int(replay.trace["target"]["vocab_size"])
        self._count = int(texts.first_positions[-1])
        left = np.concatenate([replay.limit(text) - 1 - np.arange(text.positions) for text in texts.texts])
        self._deepest = left if most is None else np.minimum(left, most)
        self._contexts = np.concatenate([text.prompt_tokens + np.arange(text.positions) for text in texts.texts])
        self._grown: list[Grown] = []
        self._steps = np.zeros(self._count, dtype=np.int64)  # by position; 0 where nothing is known
        self._where = np.zeros((self._count, 2), dtype=np.int64)  # in which of `_grown`, and which tree there
        self._chained = np.zeros(self._count, dtype=bool)  # by position, whether a round there was said to have a chain
        self._begins: list[IntArray] = []  # by text, the positions at which a round begins

    def _grow(
        self,
        policy: ForestGrower | ForestDrawer | LearningForest,
        positions: IntArray,
        most: int | IntArray | None = None,
    ) -> Grown:
        """Trees at some positions, of so many layers at most."""
        target = self._replay.trace["target"]
        roots, deepest = self._texts.before[positions], self._deepest[positions]
        deepest = deepest if most is None else np.minimum(deepest, most)
        contexts = self._contexts[positions]
        growing = GrowingForest(policy, roots, deepest, self._vocab_size, target["eos"], contexts)
        self._grown.append(self._grown_at(growing, positions))
        return self._grown[-1]

    def _grown_at(self, growing: GrowingForest, positions: IntArray) -> Grown:
        return Grown.at(growing, self._texts, positions, self._vocab_size)

    def _played(self, grown: Grown, tree: int, text: TextTrace, context: int, untold: Untold) -> Round:
        """The round with a tree, as a policy is told of it while the text goes on; `untold` is that of `priced`."""
        told = context, untold, self._replay.timed, bool(self._chained[grown.positions[tree]])
        parts = {} if self._costs is None else grown.parts(tree, self._costs, *told)
        return grown.round(tree, text.ids[context:], tuple(behind(parts, 0.0)), context)

    @cached_property
    def _by_grown(self) -> list[tuple[Grown, IntArray, IntArray]]:
        """Trees that have grown together, the positions of rounds that have one of them, and which tree that is."""
        begins = np.concatenate(self._begins)
        which, trees = self._where[begins].T
        order = by_number(which, len(self._grown))
        ends = np.bincount(which, minlength=len(self._grown)).cumsum()[:-1]
        parts = (np.split(each[order], ends) for each in (begins, trees))
        return [*zip(self._grown, *parts, strict=True)]

    def _check(self) -> None:
        """Refuse what was looked at for the trees of rounds, if it was changed, and faults in these."""
        looked_at: dict[int, list[IntArray]] = {}  # rows, by how many candidates of each
        for grown, _, trees in self._by_grown:
            looked_at.setdefault(grown.widest, []).append(grown.rows(trees))
        for widest, rows in looked_at.items():
            self._texts.check(distinct(np.concatenate(rows)), widest, self._vocab_size)
        for grown, _, trees in self._by_grown:
            if grown.faults:
                grown.check(trees, self._vocab_size)

    def _at(self, name: str) -> IntArray:
        """What the trees of rounds have, by position."""
        found = np.zeros(self._count, dtype=np.int64)
        for grown, begins, trees in self._by_grown:
            found[begins] = getattr(grown, name)[trees]
        return found

    @cached_property
    def _parts(self) -> list[FloatArray]:
        """Seconds of the parts of each round, by text, shape `(rounds, parts)` each; where costs are known."""
        assert self._costs is not None
        begins, counts = np.concatenate(self._begins), ints([*map(len, self._begins)])
        rounds = Rounds(
            texts=np.arange(len(counts)).repeat(counts),
            prompts=ints([text.prompt_tokens for text in self._texts.texts]),
            contexts=self._contexts[begins],
            nodes=self._at("sizes")[begins],
            new=self._at("steps")[begins],
            layers=self._layers(begins),
            chained=self._chained[begins],
        )
        parts = rounds.priced(self._costs, self._replay.timed, self._rests)
        return np.split(parts, counts.cumsum()[:-1])

    def _layers(self, begins: IntArray) -> IntArray:
        """The layers that were drafted in rounds, as `Rounds.layers`."""
        rounds, found = np.empty(self._count, dtype=np.int64), [np.empty((3, 0), dtype=np.int64)]
        rounds[begins] = np.arange(len(begins))
        for grown, own, trees in self._by_grown:
            for layer in grown.layers:
                sizes = layer.sizes[trees]
                found.append(np.stack([rounds[own], sizes, layer.widths[trees]])[:, sizes > 0])
        return np.concatenate(found, axis=1)

    def _seconds(self, number: int) -> float | None:
        if self._costs is None:
            return None
        seconds = seconds_behind(self._parts[number]).ravel().tolist()
        return seconds_of(self._costs, self._texts.texts[number], seconds)

    def totals(self) -> list[Totals]:
        """What the method did, text by text."""
        sizes, passes, outside = (self._at(name) for name in ("sizes", "passes", "outside"))
        return [
            Totals(
                new_tokens=text.positions,
                target_passes=len(begins),
                draft_passes=int(passes[begins].sum()),
                nodes_verified=int(sizes[begins].sum()),
                largest_tree=int(sizes[begins].max()),
                outside=int(outside[begins].sum()),
                predicted_seconds=self._seconds(number),
            )
            for number, (text, begins) in enumerate(zip(self._texts.texts, self._begins, strict=True))
        ]

    def deepest(self) -> list[int]:
        """The deepest node that was drafted, text by text."""
        deepest = self._at("deepest")
        return [int(deepest[begins].max()) for begins in self._begins]

    def replayed(self) -> list[Replayed]:
        """The rounds, text by text."""
        outside, found = self._at("outside"), []
        for number, (text, begins) in enumerate(zip(self._texts.texts, self._begins, strict=True)):
            first, rounds = int(self._texts.first_positions[number]), []
            for place, position in enumerate(begins.tolist()):
                which, tree = self._where[position].tolist()
                context = text.prompt_tokens + position - first
                spans = () if self._costs is None else spans_of(self._parts[number][place])
                rounds.append(self._grown[which].round(tree, text.ids[context:], spans, context))
            found.append(Replayed(text, rounds, int(outside[begins].sum()), self._seconds(number)))
        return found


class Together(_Growing):
    """A method on several texts at once.

    What a round's tree is does not hang on the rounds before, as the policy remembers nothing. So trees are grown at
    several positions of each text at once, then at those where the rounds after them would begin, as long as nothing is
    known of these. From wherever one begins, one soon comes to a position at which a round of the text begins.

    Args:
        replay: of the trace.
        method: it.
        policy: the method's, as it serves each of the texts.
        texts: they.
        most: the deepest node that the drafter drafts; None where it knows no limit.

    Raises:
        PluginError: if the policy breaks its contract; the message names it.
        ValueError: if a text was changed since it was recorded.
    """

    most_nodes = NODES

    def __init__(
        self,
        replay: Replay,
        method: Method,
        policy: ForestGrower | ForestDrawer,
        texts: SeveralTexts,
        most: int | None,
    ) -> None:
        super().__init__(replay, method, texts, most)
        self._chained[:] = self._runs_on and fixed_chaining(policy)() is not None
        first = texts.first_positions
        ends = np.repeat(first[1:], np.diff(first))
        trees = max(1, min(TREES, self.most_nodes // checked_budget(policy, "draft_budget")))
        stride = max(1, self._count // trees)
        wanted = np.concatenate([np.arange(*ends, stride) for ends in pairwise(first)])
        while len(wanted):
            grown = self._grow(policy, wanted)
            self._where[wanted, 0], self._where[wanted, 1] = len(self._grown) - 1, np.arange(len(wanted))
            self._steps[wanted] = grown.steps
            then = wanted + grown.steps
            then = then[then < ends[wanted]]
            wanted = distinct(then[self._steps[then] == 0])
        self._begins = self._found()
        self._check()

    def _found(self) -> list[IntArray]:
        steps, bounds, found = self._steps.tolist(), self._texts.first_positions.tolist(), []
        for position, end in pairwise(bounds):
            own = []
            while position < end:
                own.append(position)
                position += steps[position]
            found.append(np.array(own))
        return found


class Drawing(Together):
    """A method whose rule tests drawn children, on several texts at once.

    The draws and tests of a round take numbers of its position (`SeededChoices.at`), so that they do not hang on the
    rounds before either.

    Args:
        replay: of the trace.
        method: it; its rule says how it tests.
        policy: the method's, as it serves each of the texts.
        texts: they, with whole laws.
        most: the deepest node that the drafter drafts; None where it knows no limit.

    Raises:
        PluginError: if the policy breaks its contract; the message names it.
        ValueError: if a text was changed since it was recorded.
        NotKept: if the sums of laws that it asks for are not kept.
    """

    most_nodes = DRAWN_NODES

    def __init__(
        self, replay: Replay, method: Method, policy: ForestDrawer, texts: SeveralTexts, most: int | None
    ) -> None:
        self._testing = Testing(replay, method, SeveralLaws(texts))
        super().__init__(replay, method, policy, texts, most)

    def _grown_at(self, growing: GrowingForest, positions: IntArray) -> Grown:
        return GrownDraws.drawn_at(growing, self._texts, positions, self._testing)


class Planned(_Growing):
    """Policies that plan, one for each of several texts.

    The trees of what they plan are grown at all positions at which they may be wanted, a group of texts at a time.

    Args:
        replay: of the trace.
        method: what is tried.
        policies: those that serve the texts.
        texts: they.
        most: the deepest node that the drafter drafts; None where it knows no limit.

    Raises:
        PluginError: if a policy breaks its contract; the message names it.
        ValueError: if a text was changed since it was recorded.
        NotPlanned: if one plans what cannot be grown in forests.
    """

    def __init__(
        self, replay: Replay, method: Method, policies: Sequence[ForestPlanner], texts: SeveralTexts, most: int | None
    ) -> None:
        super().__init__(replay, method, texts, most)
        able = (self._deepest > 0) & ~np.isin(texts.before, replay.trace["target"]["eos"])
        self._able: list[bool] = able.tolist()  # whether anything could be drafted there
        self._plans: dict[TreePlan | None, _Trees] = {}
        self._whole: dict[tuple[ForestGrower, int], int] = {}  # in `_grown`, without a depth, by the first position
        bounds = texts.first_positions.tolist()
        for policy, text, (first, end) in zip(policies, texts.texts, pairwise(bounds), strict=True):
            rounds = np.array([*self._rounds(policy, text, first, end)])
            self._where[rounds[:, 0]] = rounds[:, 1:]
            self._begins.append(rounds[:, 0])
        self._check()

    def _rounds(self, policy: ForestPlanner, text: TextTrace, first: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Go through a text; where each round begins, in which of `_grown` its tree is, and which one there."""
        position, untold = first, Untold(text.prompt_tokens)
        hears_of_layers = type(policy).drafted is not ForestPlanner.drafted
        counting = counting_planner(policy)
        while position < end:
            which = self._planned(policy, position)
            grown, context = self._grown[which], text.prompt_tokens + position - first
            tree = position - grown.first
            if tree in grown.faults:
                grown.check(ints([tree]), self._vocab_size)
            nodes, drafted_nodes, step = grown.numbers[tree]
            if hears_of_layers:
                with blaming("tree policy", policy, "drafted"):
                    policy.drafted([*grown.asked(tree)] if self._able[position] else None)
            if counting is not None:
                with blaming("tree policy", policy, "observe_counts"):
                    counting.observe_counts(RoundCounts(nodes, drafted_nodes, step - 1, step, context))
            else:
                round_ = self._played(grown, tree, text, context, untold)
                with blaming("tree policy", policy, "observe"):
                    policy.observe(round_)
            yield position, which, tree
            position += step

    def _planned(self, policy: ForestPlanner, position: int) -> int:
        """In which of `_grown` is the tree at a position that a policy plans."""
        plan = plan_of(policy)
        if plan is None:
            raise NotPlanned
        which = self._place(plan, position)
        if type(policy).ends_after is ForestPlanner.ends_after:
            return which
        grown = self._grown[which]
        tree = position - grown.first
        try:
            with blaming("tree policy", policy, "ends_after"):
                plan = plan.ended(policy.ends_after(grown.asked(tree)))
        except PluginError:  # what a changed file has led to is not the policy's fault
            grown.check(ints([tree]), self._vocab_size)
            raise
        return self._place(plan, position)

    def _place(self, plan: TreePlan, position: int) -> int:
        """In which of `_grown` is the tree of a plan at a position."""
        try:
            trees = self._plans.get(plan)
        except TypeError:  # it cannot be hashed
            raise NotPlanned from None
        if trees is None:
            trees = self._plans[plan] = self._trees_of(plan)
        part = position // trees.size
        if part not in trees.places:
            first = part * trees.size
            positions = np.arange(first, min(first + trees.size, self._count))
            trees.places[part] = self._grow_plan(trees.grower, plan.depth, positions)
        return trees.places[part]

    def _trees_of(self, plan: TreePlan) -> "_Trees":
        grower = forest_grower(plan.policy)
        if grower is None or len({grower, *(known.grower for known in self._plans.values())}) > PLANS:
            raise NotPlanned
        return _Trees(grower, max(1, NODES // checked_budget(grower, "draft_budget")))

    def _grow_plan(self, grower: ForestGrower, depth: int | None, positions: IntArray) -> int:
        """Grow trees; where in `_grown` they are."""
        key = grower, int(positions[0])
        if key not in self._whole:
            self._grow(grower, positions)
            self._whole[key] = len(self._grown) - 1
        if depth is None:
            return self._whole[key]
        cut = self._grown[self._whole[key]].cut(depth)
        if cut is None:
            self._grow(grower, positions, depth)
        else:
            self._grown.append(cut)
        return len(self._grown) - 1


class SideBySide(_Growing):
    """Policies that choose together, one for each of several texts.

    The trees of one round of each text that goes on are grown together, then all are told of it.

    Args:
        replay: of the trace.
        method: what is tried.
        learning: those that serve the texts, as one.
        texts: they.
        most: the deepest node that the drafter drafts; None where it knows no limit.

    Raises:
        PluginError: if a policy breaks its contract; the message names it.
        ValueError: if a text was changed since it was recorded.
    """

    def __init__(
        self, replay: Replay, method: Method, learning: LearningForest, texts: SeveralTexts, most: int | None
    ) -> None:
        super().__init__(replay, method, texts, most)
        positions, ends = texts.first_positions[:-1].copy(), texts.first_positions[1:]
        goes_on = np.ones(len(positions), dtype=bool)
        rounds: list[IntArray] = []  # where each text stood before each round
        while goes_on.any():
            rounds.append(np.where(goes_on, positions, -1))
            positions = positions + self._round(learning, np.minimum(positions, ends - 1), goes_on)
            goes_on = positions < ends
        self._begins = [of_text[of_text >= 0] for of_text in np.array(rounds).T]
        self._check()

    def _round(self, learning: LearningForest, positions: IntArray, goes_on: NDArray[np.bool_]) -> IntArray:
        """A round of each text that goes on; the tokens that it emits, 0 of the others."""
        (going,) = goes_on.nonzero()
        if self._runs_on:
            self._ask_for_chains(learning, positions[going], going)
        grown = self._grow(learning, positions, np.where(goes_on, self._deepest[positions], 0))
        if grown.faults:
            grown.check(going, self._vocab_size)
        new = np.where(goes_on, grown.steps, 0)
        own = positions[going]
        self._steps[own] = new[going]
        self._where[own, 0], self._where[own, 1] = len(self._grown) - 1, going
        try:
            self._tell(learning, grown, new, going)
        except PluginError:  # what a changed file has led to is not the policy's fault
            grown.check(going, self._vocab_size)
            raise
        return new

    def _ask_for_chains(self, learning: LearningForest, positions: IntArray, going: IntArray) -> None:
        """Ask whether the trees at some positions, of the texts that go on, will be chains."""
        able = ~np.isin(self._texts.before[positions], self._replay.trace["target"]["eos"])
        with blaming("tree policy", learning.policies[0], "chained"):
            self._chained[positions[able]] = learning.chained(going[able])

    def _tell(self, learning: LearningForest, grown: Grown, new: IntArray, going: IntArray) -> None:
        """Tell the policies of a round, in which texts have emitted so many tokens; `going` are those that had one."""
        with blaming("tree policy", learning.policies[0], "observe_forest"):
            shown = grown.forest.copied(), grown.kept.copy(), grown.accepted.copy(), new.copy()
            learning.observe_forest(ForestRound(*shown))


class OneAfterTheOther(SideBySide):
    """Policies of any kind, one for each of several texts: each is asked for its own tree, and told of its own round.

    Args:
        replay: of the trace.
        method: what is tried.
        in_turn: those that serve the texts.
        texts: they.
        most: the deepest node that the drafter drafts; None where it knows no limit.

    Raises:
        PluginError: if a policy breaks its contract, or answers what is unusual, see `InTurn`.
        ValueError: if a text was changed since it was recorded.
    """

    def __init__(self, replay: Replay, method: Method, in_turn: InTurn, texts: SeveralTexts, most: int | None) -> None:
        self._in_turn = in_turn
        self._untold = [Untold(text.prompt_tokens) for text in texts.texts]
        super().__init__(replay, method, in_turn, texts, most)

    def _round(self, learning: LearningForest, positions: IntArray, goes_on: NDArray[np.bool_]) -> IntArray:
        self._in_turn.begin(goes_on)
        return super()._round(learning, positions, goes_on)

    def _tell(self, learning: LearningForest, grown: Grown, new: IntArray, going: IntArray) -> None:
        for number in going.tolist():
            policy, text = learning.policies[number], self._texts.texts[number]
            if listens(policy):
                context = int(self._contexts[grown.positions[number]])
                teller(policy)(self._played(grown, number, text, context, self._untold[number]))


@attrs.frozen(eq=False)
class _Trees:
    """Trees that were planned.

    Attributes:
        grower: whose they are.
        size: how many are grown together, at positions behind each other.
        places: in `_grown`, by the positions divided by this.
    """

    grower: ForestGrower
    size: int
    places: dict[int, int] = attrs.field(factory=dict)


class NotPlanned(Exception):
    """A policy plans what cannot be grown in forests, or has too many plans: each text has to be tried by itself."""


def together(
    replay: Replay, method: Method, texts: SeveralTexts, fewest: int = 1, answers: Answers | None = None
) -> _Growing | None:
    """A method on several texts; None where it has to be tried on each by itself.

    It has to where the policy has no way to choose or draw for many trees, to choose together with others, or to plan,
    where its drafter is asked again and what it says is not there, and where the rule tests probabilities in a way that
    it does not tell. The policy's own time is left out, see `talon_core.trace.trying`.

    Args:
        replay: of the trace.
        method: has passed `Replay.check`.
        texts: of the trace, with the rows of its drafter.
        fewest: so many texts or more go side by side, where each round has to wait for the one before.
        answers: where these rows are from, if the method's drafter is not the recorded one.

    Raises:
        PluginError: if the policy breaks its contract; the message names it.
        ValueError: if a text was changed since it was recorded.
    """
    if method.drafter is not None and answers is None:
        return None
    if not replay.follows(method.rule):
        return _drawing(replay, method, texts)
    policies = [replay.begun(method, text) for text in texts.texts]
    most = replay.trace["drafter"]["max_depth"] if answers is None else answers.max_depth
    most = NoDrafter.max_depth if method.policy is None else most
    grower = forest_grower(policies[0])
    if grower is not None and serve_alike(policies):
        return Together(replay, method, grower, texts, most)
    learners = forest_learners(policies) if len(policies) >= fewest else None
    if learners is not None:
        return SideBySide(replay, method, beside(learners), texts, most)
    planners = [one for one in map(forest_planner, policies) if one is not None]
    # which planners are not asked for
    says_chains = replay.runs_on(method) and fixed_chaining(policies[0]) is not no_chains
    if len(planners) == len(policies) and not says_chains:
        try:
            return Planned(replay, method, planners, texts, most)
        except NotPlanned:
            policies = [replay.begun(method, text) for text in texts.texts]
    return _one_after_the_other(replay, method, policies, texts, most) if len(policies) >= fewest else None


def _drawing(replay: Replay, method: Method, texts: SeveralTexts) -> Drawing | None:
    """None where the policy cannot draw for many trees, or the rule does not say how it tests."""
    if method.drafter is not None or method.policy is None or method.rule.tests is None:
        return None
    policies = [replay.begun(method, text) for text in texts.texts]
    drawer = forest_drawer(policies[0])
    if drawer is None or not serve_alike(policies):
        return None
    try:
        return Drawing(replay, method, drawer, texts, replay.trace["drafter"]["max_depth"])
    except (NotKept, LawsChanged):  # what was changed may not be looked at where each text is tried by itself
        return None


def _one_after_the_other(
    replay: Replay, method: Method, policies: Sequence[TreePolicy], texts: SeveralTexts, most: int | None
) -> OneAfterTheOther | None:
    """None where a policy draws, asks for laws, serves several texts, or answers what is unusual or wrong.

    Then each text is tried by itself, which tells what is wrong.
    """
    if len({*map(id, policies)}) < len(policies):
        return None
    if replay.trace["settings"]["laws"] or any(policy.children != "deterministic" for policy in policies):
        return None
    if len(policies) * checked_budget(policies[0], "draft_budget") > NODES:
        return None
    in_turn = InTurn(policies, [replay.policy_choices(text) for text in texts.texts])
    try:
        found = OneAfterTheOther(replay, method, in_turn, texts, most)
    except (PluginError, ValueError):
        return None
    return None if in_turn.law_asked else found
