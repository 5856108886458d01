"""Any policy, with learned acceptance in the place of the drafter's probabilities."""

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np

from talon_core.basics.logistic import log_odds_of, log_sigmoid
from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.errors import blaming, written
from talon_core.forest_learner import ForestLearner, asked_together, go_together
from talon_core.policy import Growth, SequenceInfo, TreePolicy
from talon_core.rounds import Round
from talon_core.source_chooser import chooses_source
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import totals
from talon_strategies.acceptance_head import AcceptanceHead, given_head, notice, shipped_head
from talon_strategies.calibration import CERTAIN
from talon_strategies.entropy import OFFERED, entropies_of
from talon_strategies.taps_forests import TapsForest

FEATURES = ("log_odds", "rank", "depth", "entropy", "best")
"""What the estimate looks at, in this order: the log-odds of the drafter's probability of the token after its parent,
as `Calibration` cuts them; the natural logarithms of its rank among the candidates there and of its depth, both counted
from 1; the entropy of the `OFFERED` best candidates there, in nats, see `talon_strategies.entropy`; the log-odds of the
best."""

WITHOUT_KNOBS: Any = "talon-cost"  # text, as users write it; the converter makes it a policy


def examined(logp: FloatArray, depths: IntArray) -> FloatArray:
    """What the estimate looks at.

    Args:
        logp: natural log-probabilities of candidates after their parents, best first, shape `(rows, width)`.
        depths: of the candidates of each row, 1 below the root, shape `(rows,)`.

    Returns:
        `FEATURES` of each candidate, shape `(rows, width, 5)`.
    """
    found = np.empty((*logp.shape, len(FEATURES)))
    found[..., 0] = log_odds_of(logp, CERTAIN)
    found[..., 1] = np.log(np.arange(1, logp.shape[1] + 1))
    found[..., 2] = np.log(depths)[:, None]
    found[..., 3] = entropies_of(logp[:, :OFFERED])[:, None]
    found[..., 4] = found[:, :1, 0]
    return found


def learned(head: AcceptanceHead, logp: FloatArray, depths: IntArray) -> FloatArray:
    """Log-probabilities that candidates are accepted once their parents are.

    As those of a drafter they fall along each row, and those of a row add up to 1 at most: of siblings one is accepted.

    Args:
        head: looks at `FEATURES`.
        logp: as for `examined`, and so are `depths`.

    Returns:
        The same shape as `logp`; padding keeps minus infinity.
    """
    rows, width = logp.shape
    blocks = -(-width // OFFERED)  # products of one size have the same bits, whatever stands in other rows or behind
    padded = np.full((rows, blocks * OFFERED), -np.inf)
    padded[:, :width] = logp
    features = examined(padded, depths).reshape(rows * blocks, OFFERED, len(FEATURES))
    odds = head.log_odds(features).reshape(padded.shape)[:, :width]
    accepted = np.minimum.accumulate(log_sigmoid(odds), axis=1)
    accepted = np.where(np.isneginf(logp), -np.inf, accepted)
    total = totals(np.exp(accepted))[:, None]
    estimates: FloatArray = accepted - np.log(np.maximum(total, 1.0))
    return estimates


def _head(given: Any) -> Any:
    return given_head(given, "model", FEATURES)


def _policy(given: Any) -> Any:
    """The policy that an option names, in the form of `talon_core.plugins.nested`."""
    if not isinstance(given, str):
        return given
    from talon_core.plugins.several import made_part

    return made_part("tree policy", given, "of", "a tree policy", "talon[budget=16]")


def _scored_alone(_: object, __: object, policy: object) -> None:
    """Refuse what is no policy whose children the drafter's laws decide."""
    if not isinstance(policy, TreePolicy):
        raise ValueError(  # noqa: TRY004 - as for every option
            f"of is {written(policy)}; it must be a tree policy, or its spec, as talon[budget=16]"
        )
    if policy.children != "deterministic":
        raise ValueError(
            f"of is '{policy.name}', whose children are {policy.children}; it must be a policy that chooses by the "
            "candidates' scores and draws nothing, as talon"
        )
    if chooses_source(policy):
        raise ValueError(
            f"of is '{policy.name}', which chooses who drafts; name taps within it, as bandit:of=taps,drafters=true"
        )


@attrs.define(eq=False)
class Scores:
    """What is known of the tree that is being drafted.

    Attributes:
        path_logp: log-probabilities that the paths to its nodes are accepted, the root's first, shape `(nodes,)`.
        width: candidates of each node that the policy within has asked for.
    """

    path_logp: FloatArray = attrs.field(factory=lambda: np.zeros(1))
    width: int = 1


@attrs.frozen
class Taps(ForestLearner):
    """Shows another policy how likely candidates are to be accepted, in the place of what the drafter thinks of them.

    In TAPS (arXiv 2606.00487) the probability that a child is accepted once its parent is takes the place of a
    drafter's probabilities when a tree is chosen; it is learned from verifications that were recorded. Of that paper we
    know the abstract, and no section: its drafters are diffusion models, whose probabilities say nothing of the path to
    a node, and the tree is a part of theirs with as many nodes as are verified. Here the estimate is a small network,
    see `FEATURES` for its inputs, and `python -m talon_strategies.fitting taps` fits it on a trace; that and these are
    ours.

    The policy `of` sees trees and candidates with these estimates as their scores, of tokens and of paths, and chooses
    as it always does; whole laws are the drafter's. It is told of rounds in the same scores. So `of` may be any policy
    that draws nothing, one that learns as well: what `talon-cost` learns of a text then begins from these estimates.
    Where sequences share a pass and the engine cuts their trees, it goes by the drafter's probabilities.

    Siblings keep their order. So the trees of a policy that goes by ranks and by what was accepted alone stay as they
    are, and the network is asked in vain: `chain`, `static`, `gammatune`, `heuristic`, `sps`, and a `bandit` of these.

    Attributes:
        of: the policy, its options in brackets with `;` between them, as in `of=talon[budget=16;mu=0.1]`.
        model: a safetensors file with a fitted head, see `talon_strategies.acceptance_head`; none for the one that
            comes with TALON, for the embedded model smollm2-135m and its shipped drafter `eagle3`.
    """

    name = "taps"
    purpose = "trees by confidence"
    paper = "arXiv 2606.00487"
    of: TreePolicy = attrs.field(default=WITHOUT_KNOBS, converter=_policy, validator=_scored_alone)
    model: AcceptanceHead | None = attrs.field(default=None, converter=_head)
    scores: Scores = attrs.field(init=False, eq=False, repr=False, factory=Scores)

    @property
    def budget(self) -> int:  # type: ignore[override]  # a field in other policies; here it is that of `of`
        return self.of.budget

    @property
    def draft_budget(self) -> int:
        return self.of.draft_budget

    @property
    def head(self) -> AcceptanceHead:
        """What estimates."""
        return shipped_head(self.name, FEATURES) if self.model is None else self.model

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        with blaming("tree policy", self.of, "begin"):
            own = self.of.begin(sequence.within())
        notice(self.name, self.head, sequence)
        return attrs.evolve(self, of=own)

    def learns_beside(self) -> bool:
        return asked_together(self.of) is not None

    def goes_with(self, other: TreePolicy) -> bool:
        own, others = asked_together(self.of), asked_together(other.of) if isinstance(other, Taps) else None
        return own is not None and others is not None and super().goes_with(other) and go_together(own, others)

    def beside(self, policies: "Sequence[Taps]") -> TapsForest:
        return TapsForest(policies, learned)

    def _shown(self, tree: TokenTree) -> TokenTree:
        return tree.scored(self.scores.path_logp[: len(tree)])

    def width(self, tree: TokenTree) -> int:
        if len(tree) == 1:
            self.scores.path_logp = np.zeros(1)
        with blaming("tree policy", self.of, "width"):
            width = int(self.of.width(self._shown(tree)))
        self.scores.width = width
        return max(width, OFFERED) if width > 0 else 0

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        scores, rows = self.scores, candidates.frontier
        wide, width = candidates.width, min(self.scores.width, candidates.width)
        logp = learned(self.head, candidates.logp, 1 + tree.depths[rows])[:, :width]
        path_logp = scores.path_logp[rows][:, None] + logp
        shown = Candidates(rows, candidates.tokens[:, :width], logp, path_logp, candidates.law)
        with blaming("tree policy", self.of, "grow"):
            growth = self.of.grow(self._shown(tree), shown, choices)
            chosen = np.asarray(growth.chosen)
            if not chosen.size:
                return growth
            scores.path_logp = np.append(scores.path_logp, path_logp.take(chosen))
        return Growth(chosen // width * wide + chosen % width, growth.frontier, growth.drawn)

    def finish(self, tree: TokenTree) -> TokenTree:
        shown = self._shown(tree)
        with blaming("tree policy", self.of, "finish"):
            finished = self.of.finish(shown)
            if finished is shown:
                return tree
            nodes = np.array(tree.nodes_of(finished))
        return finished.scored(np.where(nodes >= 0, tree.path_logp[nodes], finished.path_logp))

    def observe(self, round_: Round) -> None:
        if type(self.of).observe is TreePolicy.observe:
            return
        drafted = round_.tree if round_.drafted is None else round_.drafted
        scored = self._shown(drafted)
        tree = round_.tree.scored(scored.path_logp[drafted.nodes_of(round_.tree)])
        with blaming("tree policy", self.of, "observe"):
            self.of.observe(attrs.evolve(round_, tree=tree, drafted=None if round_.drafted is None else scored))
