"""One of several policies a round, and one of several drafters, by what each has brought in this text."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, ClassVar

import attrs
from attrs.validators import ge, in_

from talon_core.basics.option_checks import number, yes_or_no
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.costs import Costs, MeasuredCosts
from talon_core.defaults import NONE
from talon_core.errors import blaming
from talon_core.forest import Count, Forest, ForestCandidates
from talon_core.forest_grower import ForestGrower, ForestGrowth, forest_grower
from talon_core.forest_planner import (
    AskedLayer,
    CountingPlanner,
    ForestPlanner,
    RoundCounts,
    TreePlan,
    counting_planner,
    forest_planner,
)
from talon_core.policy import Growth, SequenceInfo, TreePolicy
from talon_core.rounds import Round
from talon_core.searching import searched
from talon_core.source_chooser import SourceChooser, chooses_source
from talon_core.tree import TokenTree
from talon_strategies.drawing import NOTHING
from talon_strategies.prices import rounds_price
from talon_strategies.ucb import BOUNDS, Arm, next_arm

REWARDS = ("speed", "tokens", "blend")

DEFAULT: Any = "chain[length=2]+chain[length=5]+talon[budget=16]"  # text, as users write it; the converter reads it


@attrs.frozen
class Plain(ForestGrower):
    """Drafts nothing: plain decoding, as one of several."""

    name = NONE
    budget: int = attrs.field(init=False, default=1)

    def width(self, tree: TokenTree) -> int:
        return 0

    def widths(self, forest: Forest) -> Count:
        return 0

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(NOTHING)

    def grow_forest(self, forest: Forest, candidates: ForestCandidates) -> ForestGrowth:
        return ForestGrowth(NOTHING)


def _policies(of: object) -> Any:
    """The option `of` as a tuple; what else is in it than policies is left for a validator to refuse."""
    from talon_core.plugins.several import made_parts, split_parts

    if not isinstance(of, str):
        return tuple(of) if isinstance(of, Iterable) else (of,)
    written = split_parts(of, "policies", "chain[length=2]+talon[budget=16;mu=0.1]")
    return made_parts("tree policy", written, {NONE: Plain()})


def _go_together(_: object, __: object, of: tuple[object, ...]) -> None:
    """Refuse what are no policies of one kind of children, or a bandit among them."""
    policies = [policy for policy in of if isinstance(policy, TreePolicy)]
    if not of or len(policies) < len(of):
        raise ValueError(f"of is {of!r}; it must be one or more policies")
    if any(isinstance(one, Bandit) for policy in policies for one in _with_those_within(policy)):
        raise ValueError("of has a bandit among its policies; put that one's policies into the list instead")
    if any(map(chooses_source, policies)):
        raise ValueError("of has a policy that chooses who drafts by itself; leave it out, and set drafters")
    kinds = {policy.name: policy.children for policy in policies if not isinstance(policy, Plain)}
    if len(set(kinds.values())) > 1:
        told = ", ".join(f"those of {name} are {kind}" for name, kind in kinds.items())
        raise ValueError(f"of has policies whose children differ: {told}; one rule is exact for one kind")


def _with_those_within(policy: TreePolicy) -> Iterator[TreePolicy]:
    """A policy, those that its options are, and so on."""
    yield policy
    kind = type(policy)
    for option in attrs.fields(kind) if attrs.has(kind) else ():
        value = getattr(policy, option.name) if option.init else None
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, TreePolicy):
                yield from _with_those_within(one)


def _begun(policy: TreePolicy, sequence: SequenceInfo) -> TreePolicy:
    with blaming("tree policy", policy, "begin"):
        return policy.begin(sequence)


def _alone(sequence: SequenceInfo, source: int) -> SequenceInfo:
    """What policies are told that ask one source: what they learn of texts there is not what others learn elsewhere."""
    machine = sequence.machine.setdefault(f"bandit with source {source}", {})
    return attrs.evolve(sequence, costs=sequence.costs.of_source(source), machine=machine)


def _chooses_unheard(policy: TreePolicy) -> bool:
    """Whether a policy chooses for many trees by nothing that it hears of its rounds; as an arm it misses some."""
    return forest_grower(policy) is not None and type(policy).observe is TreePolicy.observe


@attrs.define(eq=False)
class Player(Arm):
    """A policy, what it has brought as an arm, and what that took.

    Attributes:
        policy: that drafts.
        source: whom it asks, as `SourceChooser.source` says it.
        costs: what passes take then.
        passes: how often the target's pass had so many nodes.
        layers: how often a layer had so many rows and candidates of each.
    """

    policy: TreePolicy = attrs.field(kw_only=True)
    source: int | None = None
    costs: Costs = attrs.field(factory=MeasuredCosts)
    passes: Counter[int] = attrs.field(factory=Counter)
    layers: Counter[tuple[int, int]] = attrs.field(factory=Counter)

    def cost(self, context: int) -> float:
        """What a round of it takes in the mean, by what is known now; 0 if there was none."""
        return rounds_price(self.costs, self.passes, self.layers, context) / max(self.rounds, 1)

    @cached_property
    def planner(self) -> ForestPlanner | None:
        """The policy, if it plans."""
        return self.policy if isinstance(self.policy, ForestPlanner) else None

    @cached_property
    def own_plan(self) -> TreePlan:
        """Of a policy that does not plan: it itself."""
        return TreePlan(self.policy)


@attrs.define(eq=False)
class Learnt:
    """What is learnt of one text, and of its latest round.

    Attributes:
        players: the arms.
        place: which one drafts this round.
        deepest: tokens of the longest path of a tree.
        context: committed tokens.
        layers: of this round: rows, and candidates that were asked for, of each.
        wanted: candidates, of each row of the coming one.
        vocab_size: of the target; None where it is not known.
        asked: whether it wanted candidates in it; None before it is asked.
    """

    players: list[Player]
    place: int = 0
    deepest: int = 1
    context: int = 1
    layers: list[tuple[int, int]] = attrs.field(factory=list)
    wanted: int = 0
    vocab_size: int | None = None
    asked: bool | None = None


class _OfPolicies:
    """A class attribute of policies that a bandit has from its own ones; of the class, that of the default ones."""

    def __init__(self, attribute: str, default: str) -> None:
        self._attribute, self._default = attribute, default

    def __get__(self, bandit: "Bandit | None", _: object) -> str:
        drafting = () if bandit is None else (policy for policy in bandit.of if not isinstance(policy, Plain))
        return next((getattr(policy, self._attribute) for policy in drafting), self._default)


@attrs.frozen
class Bandit(SourceChooser, CountingPlanner):
    """Drafts each round with one of several policies or drafters, by an upper confidence bound on what each brings.

    That is BanditSpec (arXiv 2505.15141, algorithm 3) with its algorithm UCBSpec (section 4): the arms are policies
    here, so also the lengths of a chain, and `none` among them is plain decoding, their length 0. First each is played
    once, in order. Then it is the one whose mean reward and `explore` times the bound are the most, the first among
    equals, and nothing is drawn: the same rounds at the same costs lead to the same choices; measured costs differ from
    run to run. TapOut (arXiv 2511.02017) chooses among stopping rules in the same way, by UCB1 and others, which draw.

    Rewards, each of one round:

    - `speed`, our default: all tokens of an arm by the time of all its layers and passes of the target, by what these
      cost here at this length of the text. They are priced anew for each choice, as costs become known while one
      decodes. BanditSpec takes the measured tokens a second where it chooses lengths for batches; by costs, a slow
      moment of the machine is no loss, and a trace can be replayed. While nothing is known, a layer is taken to cost a
      tenth, and a node a twentieth, of a pass over the root alone.
    - `tokens`: those that the round emits, as BanditSpec does for drafters.
    - `blend`: TapOut's two parts, the accepted tokens by the longest chain there may be, and by those that were
      drafted. We know it from others' notes, which name no section: that each part counts half, that a tree's longest
      path is what was drafted, and that the longest one of this text so far is the longest there may be, is ours.

    Bounds: `tuned` is UCB1-Tuned, `ucb1` is UCB1, `ucbspec` BanditSpec's, which is several times as wide and so plays
    all arms for longer; see `talon_strategies.ucb`. They are made for rewards from 0 to a known largest one; here it is
    the largest of this text so far. They promise little loss in the long run, and a text has few rounds: so `explore`
    is ours. Of 0, 0.03, 0.1, 0.2, 0.3, 0.5 and 1, 0.2 with `tuned` lost least to the best chain of each text, where we
    simulated texts of 128 tokens with acceptance rates from 0.2 to 0.95 (`tests/strategies/test_ucb.py`).

    With `drafters` the arms are also whom the drafter is made of, as `hybrid` is of a model and a look-up: each policy
    with all of them together, and with each alone. BanditSpec's arms are drafters. One that brings too little for what
    it takes is then asked in few rounds, and in the others it costs nothing but that it hears of the text. Only what
    its layers take is counted, and not what it has to read first when it is asked again.

    A round counts for no arm if its policy wanted candidates and nothing was drafted, as the drafter had nothing to
    offer, or if it was not asked, as the sequences of a batch drafted nothing. Among several drafters having nothing to
    offer counts: it is what one is worth there.
    Each policy is told of the rounds that it has drafted, and of no others: what it would have drafted in those is not
    known. So one that asks what passes cost at this length of the text asks for its length after its own latest round.
    What is learnt ends with the text. Thompson sampling and EXP3Spec, which draw, are left out.

    Attributes:
        of: the policies, joined by `+`; options of each in brackets, separated by `;`, as in
            `of=chain[length=2]+talon[budget=16;mu=0.1]`. Their children must be of one kind. Any registered policy and
            any preset can be one, but no bandit, nor one with a bandit within; `none` drafts nothing. From Python, the
            objects.
        reward: `speed`, `tokens` or `blend`.
        bound: `tuned`, `ucb1` or `ucbspec`.
        explore: what the bound is multiplied with, at least 0; 1 is the papers'.
        drafters: also choose which of the drafter's sources is asked (`Drafter.sources`); refused where there are none.
    """

    name = "bandit"
    children: ClassVar[Any] = _OfPolicies("children", TreePolicy.children)
    default_rule: ClassVar[Any] = _OfPolicies("default_rule", TreePolicy.default_rule)
    purpose = "choice among policies"
    paper = "arXiv 2505.15141"
    of: tuple[TreePolicy, ...] = attrs.field(default=DEFAULT, converter=_policies, validator=_go_together)
    reward: str = attrs.field(default="speed", validator=in_(REWARDS))
    bound: str = attrs.field(default="tuned", validator=in_(tuple(BOUNDS)))
    explore: float = attrs.field(default=0.2, validator=[number, ge(0)], metadata=searched(0.05, 1.0, log=True))
    drafters: bool = attrs.field(default=False, validator=yes_or_no)
    learnt: Learnt = attrs.field(
        init=False,
        eq=False,
        repr=False,
        default=attrs.Factory(lambda self: Learnt([Player(policy=policy) for policy in self.of]), takes_self=True),
    )

    @property
    def budget(self) -> int:  # type: ignore[override]  # a field in other policies
        return max(policy.budget for policy in self.of)

    @property
    def draft_budget(self) -> int:
        return max(policy.draft_budget for policy in self.of)

    @property
    def playing(self) -> Player:
        """Who drafts this round."""
        return self.learnt.players[self.learnt.place]

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        sources = (None, *range(len(sequence.sources))) if self.drafters and len(sequence.sources) > 1 else (None,)
        arms = [
            (policy, source)
            for source in sources
            for policy in self.of
            if source is None or not isinstance(policy, Plain)
        ]
        alone = {source: _alone(sequence, source) for source in sources if source is not None}
        infos = {source: info.within() for source, info in ({None: sequence} | alone).items()}
        one = attrs.evolve(self, of=tuple(_begun(policy, infos[source]) for policy, source in arms))
        for player, (_, source) in zip(one.learnt.players, arms, strict=True):
            player.source, player.costs = source, infos[source].costs
        one.learnt.context, one.learnt.vocab_size = sequence.prompt_length, sequence.vocab_size
        return one

    @property
    def chooses_source(self) -> bool:
        return self.drafters

    def source(self) -> int | None:
        return self.playing.source

    def width(self, tree: TokenTree) -> int:
        full = len(tree) >= self.playing.policy.draft_budget
        with blaming("tree policy", self.playing.policy, "width"):
            width = 0 if full else self.playing.policy.width(tree)
        vocab_size = self.learnt.vocab_size
        self.learnt.wanted = width if vocab_size is None else min(width, vocab_size)
        if len(tree) == 1:
            self.learnt.layers, self.learnt.asked = [], width >= 1
        return width

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        self.learnt.layers.append((len(candidates.frontier), self.learnt.wanted))
        with blaming("tree policy", self.playing.policy, "grow"):
            return self.playing.policy.grow(tree, candidates, choices)

    def finish(self, tree: TokenTree) -> TokenTree:
        with blaming("tree policy", self.playing.policy, "finish"):
            return self.playing.policy.finish(tree)

    @cached_property
    def _all_plan(self) -> bool:
        """Whether it can be said of each policy whose trees it has, from what all drafters say together."""
        if self._sources:
            return False
        return all(forest_planner(policy) is not None or _chooses_unheard(policy) for policy in self.of)

    def plan(self) -> TreePlan | None:
        if not self._all_plan:
            return None
        player = self.playing
        if player.planner is None:
            return player.own_plan
        with blaming("tree policy", player.planner, "plan"):
            return player.planner.plan()

    def ends_after(self, layers: Iterator[AskedLayer]) -> int | None:
        planner = self.playing.planner
        if planner is None:
            return None
        with blaming("tree policy", planner, "ends_after"):
            return planner.ends_after(layers)

    def drafted(self, layers: Sequence[AskedLayer] | None) -> None:
        learnt = self.learnt
        learnt.layers, learnt.asked = [(layer.rows, layer.width) for layer in layers or ()], None
        if layers is not None:
            learnt.asked = bool(layers) or self.width(TokenTree.root(0)) >= 1
        planner = self.playing.planner
        if planner is not None:
            with blaming("tree policy", planner, "drafted"):
                planner.drafted(layers)

    def counts_suffice(self) -> bool:
        return self._count and type(self).observe is Bandit.observe

    @cached_property
    def _count(self) -> bool:
        """Whether numbers are all that any of its policies, and it itself, learns from."""
        learning = [policy for policy in self.of if type(policy).observe is not TreePolicy.observe]
        return self.reward != "blend" and all(counting_planner(policy) is not None for policy in learning)

    def observe(self, round_: Round) -> None:
        with blaming("tree policy", self.playing.policy, "observe"):
            self.playing.policy.observe(round_)
        self._played(RoundCounts.of(round_), round_.rows, self._gain(round_))

    def observe_counts(self, counts: RoundCounts) -> None:
        if isinstance(self.playing.policy, CountingPlanner):
            with blaming("tree policy", self.playing.policy, "observe_counts"):
                self.playing.policy.observe_counts(counts)
        self._played(counts, counts.nodes, float(counts.new))

    def _played(self, counts: RoundCounts, rows: int, gain: float) -> None:
        """A round is over, in which the target's pass had so many rows."""
        learnt = self.learnt
        learnt.context = counts.context + counts.new
        if counts.drafted_nodes > 1 or learnt.asked is False or (learnt.asked and self._sources):
            player = self.playing
            player.brought(gain)
            player.passes[rows] += 1
            for shape in learnt.layers:
                player.layers[shape] += 1
            learnt.place = next_arm(learnt.players, self._costs(), self.bound, self.explore)
        learnt.layers, learnt.asked = [], None

    @property
    def _sources(self) -> bool:
        """Whether some arm asks one of several drafters alone."""
        return any(player.source is not None for player in self.learnt.players)

    def _gain(self, round_: Round) -> float:
        if self.reward != "blend":
            return float(len(round_.tokens))
        depth = int(round_.tree.depths.max())
        self.learnt.deepest = max(self.learnt.deepest, depth)
        return 0.5 * round_.accepted * (1.0 / self.learnt.deepest + 1.0 / max(depth, 1))

    def _costs(self) -> list[float]:
        learnt = self.learnt
        if self.reward != "speed":
            return [1.0] * len(learnt.players)
        return [player.cost(learnt.context) for player in learnt.players]
