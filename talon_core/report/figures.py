"""What a report shows, as plain data: every figure can be looked at without anything being drawn."""

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from talon_core.bench.bootstrap import Interval
from talon_core.report.lanes import Stretch, Timeline
from talon_core.rule import Lossless

SPEED, MAT, DEPTHS, RANKS, SHAPES, TIME, TIMELINE = "speed", "mat", "depths", "ranks", "shapes", "time", "timeline"
LANES, EFFICIENCY, ORACLE, STEPS = "lanes", "efficiency", "oracle", "steps"
FIGURES = (SPEED, MAT, DEPTHS, RANKS, SHAPES, TIME, TIMELINE, LANES, EFFICIENCY, ORACLE)
"""The names of the figures, in the order in which they stand on the page; `STEPS` is a section without one."""

ALL = None
"""What stands in the place of a set's name where no set is meant: none can be called so."""


def called(group: str | None) -> str:
    """How a group of prompts is shown: a set by its name, all together in words."""
    return "all prompts" if group is None else group


@attrs.frozen
class Shown:
    """A method on the page.

    Attributes:
        name: as it was written in the run.
        label: its name with the mark of those that are lossy, or lossless by a plugin's word alone.
        place: which colour and which mark it has everywhere; 0 is plain decoding's.
        lossless: as in `Summary`.
        drafter: the drafter's spec; None where nothing is drafted.
    """

    name: str
    label: str
    place: int
    lossless: Lossless
    drafter: str | None


@attrs.frozen
class Estimate:
    """A figure of one method on one set, with its interval.

    Attributes:
        set: the prompt set's name, or `ALL`.
        method: the method's name.
        interval: the figure.
    """

    set: str | None
    method: str
    interval: Interval


@attrs.frozen
class DepthShare:
    """How often something was accepted at one depth.

    Attributes:
        depth: from 1 on.
        tested: rounds in which the last accepted node had children; None where the run did not count them.
        accepted: rounds in which one of them was accepted.
        parents: rounds whose accepted path reached the depth before.
    """

    depth: int
    tested: int | None
    accepted: int
    parents: int

    @property
    def share(self) -> float | None:
        """Accepted of tested; None where nothing was tested, or nobody knows."""
        return self.accepted / self.tested if self.tested else None


@attrs.frozen
class RankShares:
    """How often the accepted child was the likeliest one, the second, and so on, by depth.

    A child's rank is its place among its siblings by the drafter's probability, from 1 on.

    Attributes:
        tested: for each depth from 1 on, for each rank from 1 on: how often the last accepted node had such a child.
        accepted: how often it was the accepted one.
    """

    tested: Sequence[Sequence[int]]
    accepted: Sequence[Sequence[int]]


@attrs.frozen
class TreeShapes:
    """How wide trees are at each depth.

    Attributes:
        set: the prompt set's name, or `ALL`.
        method: the method's name.
        rounds: how many there are.
        nodes: of a tree in the mean, the root included.
        widths: for each depth from 1 on, how many rounds had a tree of that many nodes there, by the number of nodes.
    """

    set: str | None
    method: str
    rounds: int
    nodes: float
    widths: Sequence[Mapping[int, int]]

    def reached(self, depth: int) -> float:
        """The share of rounds whose tree was that deep."""
        return sum(self.widths[depth - 1].values()) / self.rounds

    def mean_width(self, depth: int) -> float:
        """Nodes at that depth in the mean, of the trees that reached it."""
        counts = self.widths[depth - 1]
        return sum(width * count for width, count in counts.items()) / sum(counts.values())


@attrs.frozen
class TimePerToken:
    """Where the time of a method goes, over all prompts.

    Attributes:
        method: the method's name.
        milliseconds: for each new token, by part: those of `Stats`, the prefill and what is left among them.
    """

    method: str
    milliseconds: Mapping[str, float]

    @property
    def total(self) -> float:
        """Milliseconds for a token."""
        return sum(self.milliseconds.values())


@attrs.frozen
class RoundTime:
    """How long the rounds of a method take.

    Attributes:
        method: the method's name.
        rounds: how many there are.
        milliseconds: the median of each part.
        total: the median of the whole round, from the first span's beginning to the last one's end.
        typical: the round whose parts are nearest to the medians.
        nodes: of its tree.
        tokens: that it emitted.
    """

    method: str
    rounds: int
    milliseconds: Mapping[str, float]
    total: float
    typical: Sequence[Stretch]
    nodes: int
    tokens: int


@attrs.frozen
class Point:
    """What a method makes of its passes.

    Attributes:
        method: the method's name.
        set: the prompt set's name, or `ALL`.
        delta: draft passes for each target pass.
        tau: new tokens for each target pass, the bonus token included.
        nodes: of a verified tree in the mean, the root included.
    """

    method: str
    set: str | None
    delta: float
    tau: float
    nodes: float


@attrs.frozen
class Efficiency:
    """Tokens and draft passes for each target pass, as in TALON's efficiency plot.

    Attributes:
        points: of each method, over all prompts and by set.
        cost: what a draft pass takes, to a pass of the target over one node, in this run; None where nothing drafts
            with a model.
    """

    points: Sequence[Point]
    cost: float | None


@attrs.frozen
class Budget:
    """The best trees of at most so many nodes, from a trace: see `talon_core.trace.oracle.BestTrees`.

    Attributes:
        nodes: with the root.
        in_hindsight: new tokens for each target pass, by somebody who knows the text.
        by_the_laws: with the nodes that are likeliest by the drafter's own laws.
    """

    nodes: int
    in_hindsight: float
    by_the_laws: float


@attrs.frozen
class Oracle:
    """What the drafter of a trace allows.

    Attributes:
        drafter: its spec.
        texts: how many of the run's prompts the trace has.
        line: pairs of delta and tau: on these texts no policy that drafts so much gets more, with any tree of the
            candidates that the trace has.
        budgets: the best trees by their number of nodes.
        methods: names of the run's methods with this drafter.
        same_texts: whether these wrote just the texts of the trace, each as often, so that none is above the line.
    """

    drafter: str
    texts: int
    line: Sequence[tuple[float, float]]
    budgets: Sequence[Budget]
    methods: Sequence[str]
    same_texts: bool


@attrs.frozen
class Step:
    """One round as the page shows it, step by step.

    Attributes:
        parents: of the shown nodes; -1 for the root.
        tokens: index of each one's text in `Walks.words`.
        shares: the drafter's probability after the parent, in percent.
        path: the accepted nodes, root first.
        own: index of the text of the target's own token; None where a stop came before it.
        pieces: the text that the round emitted, token by token.
        nodes: of the verified tree, those that are not shown among them.
        milliseconds: by part.
        draft_passes: of the round.
    """

    parents: Sequence[int]
    tokens: Sequence[int]
    shares: Sequence[int]
    path: Sequence[int]
    own: int | None
    pieces: Sequence[str]
    nodes: int
    milliseconds: Mapping[str, float]
    draft_passes: int


@attrs.frozen
class Walk:
    """The rounds of one method on one prompt.

    Attributes:
        method: the method's name.
        steps: in order.
        rounds: how many there were; more than `steps` where a long text is cut.
        tokens_per_second: of the whole text.
        ratio: to plain decoding.
    """

    method: str
    steps: Sequence[Step]
    rounds: int
    tokens_per_second: float
    ratio: float


@attrs.frozen
class Extreme:
    """A prompt that is told of because it was decoded fast, or slowly.

    Attributes:
        set: the prompt set's name.
        prompt: the prompt's index there.
        turn: the turn's index.
        question_id: what the prompt's file calls it.
        fast: whether it is one of the fastest; otherwise one of the slowest.
        ratio: of the method that decides, to plain decoding.
        text: the prompt, cut; None where its file was not given.
        answer: what plain decoding wrote, cut; None where the model's tokenizer is not there.
        walks: what can be stepped through; none where the run kept no rounds.
    """

    set: str
    prompt: int
    turn: int
    question_id: int | str | None
    fast: bool
    ratio: float
    text: str | None
    answer: str | None
    walks: Sequence[Walk]


@attrs.frozen
class Walks:
    """Prompts that were decoded slowest and fastest.

    Attributes:
        by: the method by whose speed they were chosen.
        prompts: the fastest first.
        words: texts of tokens, once each.
    """

    by: str
    prompts: Sequence[Extreme]
    words: Sequence[str]


@attrs.frozen
class Progress:
    """How far a run is. A unit is what all methods decode in turn: a prompt, once per repetition.

    Attributes:
        done: units that are measured.
        planned: units that the run is of.
        command: what goes on with it.
    """

    done: int
    planned: int
    command: str

    @property
    def finished(self) -> bool:
        """Whether nothing is left to measure."""
        return self.done >= self.planned


@attrs.frozen
class Report:
    """Everything that is known of a run.

    Attributes:
        name: the folder's name.
        title: the model and the sets, in a line.
        baseline: the method that `speed` is to.
        methods: all of them, in the run's order.
        sets: names of the prompt sets, in the run's order, with the number of prompts.
        progress: how far the run is.
        headline: what came out, in a sentence or two.
        notes: what follows, and what to be careful with.
        facts: what was measured, and where: pairs of a name and a value.
        speed: tokens per second to the baseline's, prompt by prompt.
        tokens_per_second: themselves.
        mat: new tokens per target pass.
        depths: by method.
        ranks: by method.
        shapes: of all prompts first, then by set.
        time: by method.
        timeline: by method.
        lanes: rounds after each other, by method.
        efficiency: the methods.
        oracle: the drafter.
        no_oracle: why a trace that was given says nothing of it, in a sentence; empty where it does, or none was.
        walks: the slowest and the fastest prompts.
        missing: why a figure is not there, in a sentence, by its name.
    """

    name: str
    title: str
    baseline: str
    methods: Sequence[Shown]
    sets: Mapping[str, int]
    progress: Progress
    headline: str
    notes: Sequence[str]
    facts: Sequence[tuple[str, str]]
    speed: Sequence[Estimate]
    tokens_per_second: Sequence[Estimate]
    mat: Sequence[Estimate]
    depths: Mapping[str, Sequence[DepthShare]]
    ranks: Mapping[str, RankShares]
    shapes: Sequence[TreeShapes]
    time: Sequence[TimePerToken]
    timeline: Sequence[RoundTime]
    lanes: Mapping[str, Timeline]
    efficiency: Efficiency | None
    oracle: Oracle | None
    no_oracle: str
    walks: Walks | None
    missing: Mapping[str, str]

    def shown(self, method: str) -> Shown:
        """A method by its name."""
        return next(one for one in self.methods if one.name == method)

    @property
    def groups(self) -> list[str | None]:
        """`ALL`, and the sets where there are several."""
        return [ALL, *(self.sets if len(self.sets) > 1 else ())]

    def as_dict(self) -> dict[str, Any]:
        """It as plain data."""
        return attrs.asdict(self)
