"""Chains whose length a small network chooses, by how sure the drafter was in the round before."""

from collections.abc import Sequence
from functools import cached_property
from math import log
from typing import Any

import attrs
import numpy as np
from attrs.validators import in_

from talon_core.candidates import Candidates
from talon_core.costs import Costs, MeasuredCosts
from talon_core.forest_planner import AskedLayer, CountingPlanner, RoundCounts, TreePlan
from talon_core.policy import SequenceInfo, TreePolicy
from talon_core.tree import FloatArray, TokenTree, read_only
from talon_strategies.acceptance_head import AcceptanceHead, given_head, notice, shipped_head
from talon_strategies.entropy import OFFERED, entropies_of
from talon_strategies.options import numbers_of, positive_numbers
from talon_strategies.prices import layer_price, verify_price
from talon_strategies.stopping import PlannedChain, StoppingChain, plain_chain

SEEN = ("mean_entropy", "mean_best", "max_entropy", "min_best")
"""What is seen of the chain before; `FEATURES` tells of each."""

FEATURES = (*SEEN, "compression", "gamma")
"""What the network looks at, in this order: of the chain before, the mean entropy of the laws along it, in bits, see
`talon_strategies.entropy`, the mean probability of its tokens, the largest entropy and the smallest probability; the
compression of the target, see `COMPRESSIONS`; the length of the chain that is asked about."""

COMPRESSIONS = {"fp16": 0, "int8": 1, "nf4": 2}
"""The paper's codes for how the target's weights are kept."""

LENGTHS: Any = "2;4;6;8"  # text, as users write it; the converter makes it numbers

USUAL = 4
"""The length of the first chain, before which there is none: the one that the paper compares with."""


def compression_of(weight_bits: int | None) -> int:
    """The code for so many bits a weight: nf4's for 4 and fewer, int8's for up to 8, else, or unknown, fp16's.

    The paper's targets are kept in one of three ways. Others, as weights in a GGUF file's blocks, count by their bits,
    the mean of all with what blocks hold besides (`Target.weight_bits`). Fitting and use ask this alone.
    """
    bits = 16 if weight_bits is None else weight_bits
    return COMPRESSIONS["nf4" if bits <= 4 else "int8" if bits <= 8 else "fp16"]


def signals(entropies: Sequence[float], best: Sequence[float]) -> tuple[float, float, float, float]:
    """What is seen of a chain, as `SEEN` names it.

    Args:
        entropies: of the laws along a chain, in nats, at least one.
        best: the probabilities of its tokens, as many.
    """
    bits = [entropy / log(2) for entropy in entropies]  # of so few numbers sooner done than by arrays
    return sum(bits) / len(bits), sum(best) / len(best), max(bits), min(best)


def _best(logp: FloatArray) -> FloatArray:
    """The probability of the best token of each row."""
    best: FloatArray = np.exp(logp[:, 0])
    return best


def _lengths(given: Any) -> Any:
    return numbers_of(given, int, "gammas", "2;4;6;8")


def _head(given: Any) -> Any:
    return given_head(given, "model", FEATURES)


@attrs.define(eq=False)
class Watched:
    """What is known of a text.

    Attributes:
        gamma: tokens of the chain that is drafted; None for the first one.
        entropies: of the laws along it, in nats.
        best: the probabilities of its tokens.
        costs: what passes take.
        context: committed tokens.
        compression: of the target, a value of `COMPRESSIONS`.
    """

    gamma: int | None = None
    entropies: list[float] = attrs.field(factory=list)
    best: list[float] = attrs.field(factory=list)
    costs: Costs = attrs.field(factory=MeasuredCosts)
    context: int = 1
    compression: int = 0


@attrs.frozen
class SpecKV(StoppingChain, CountingPlanner):  # pyright: ignore[reportIncompatibleVariableOverride]  # of `budget`
    """Drafts a chain of the length that promises most by a small network (SpecKV, arXiv 2605.02888).

    The network predicts which share a of a chain of gamma tokens is accepted, from how sure the drafter was along a
    chain, from how the target's weights are compressed, and from gamma; see `FEATURES`. The paper looks at the chain
    whose length it chooses, which is known only when it is drafted: here it is the chain of the round before, and the
    first one has the longest of `gammas` that is at most 4, else the shortest. The length is the one of the highest
    (a gamma + 1) / (gamma C_q + C_v(gamma + 1)), expected tokens by the seconds of the drafter's and the target's
    passes. The paper's own objective is a gamma + 1, which hardly ever says no to the longest chain, what it costs left
    out. While nothing is known of passes, a node is taken to cost a twentieth and a layer a tenth of a pass over the
    root. Inputs, lengths and the size of the network, 16 neurons with ReLU, are the paper's, the logistic function at
    its end and the rate are ours. No section of it is known to us by its number.

    Entropies are those of the 16 best candidates, with all other tokens taken for one: lower bounds. Networks are
    fitted on the same; one that was fitted on whole entropies would take the drafter to be surer than it is.

    Attributes:
        objective: "rate" for tokens a second, "paper" for tokens a round.
        gammas: the lengths to choose from, whole numbers with `;` between them.
        compression: how the target's weights are kept, "fp16", "int8" or "nf4", or "auto" for what the target says;
            where it says nothing that is "fp16".
        model: a safetensors file with a fitted head, see `talon_strategies.acceptance_head`; none for the one that
            comes with TALON, for the embedded model smollm2-135m, compressed or not, and its shipped drafter `eagle3`.
    """

    name = "speckv"
    purpose = PlannedChain.purpose
    paper = "arXiv 2605.02888"
    offered = OFFERED
    objective: str = attrs.field(default="rate", validator=in_(("rate", "paper")))
    gammas: tuple[int, ...] = attrs.field(default=LENGTHS, converter=_lengths, validator=positive_numbers)
    compression: str = attrs.field(default="auto", validator=in_(("auto", *COMPRESSIONS)))
    model: AcceptanceHead | None = attrs.field(default=None, converter=_head)
    watched: Watched = attrs.field(init=False, eq=False, repr=False, factory=Watched)

    @property
    def length(self) -> int:  # type: ignore[override]  # a field in other policies; here it follows from `gammas`
        return max(self.gammas)

    @property
    def head(self) -> AcceptanceHead:
        """What predicts."""
        return shipped_head(self.name, FEATURES) if self.model is None else self.model

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        one = super().begin(sequence)
        assert isinstance(one, SpecKV)
        notice(self.name, self.head, sequence)
        one.watched.costs, one.watched.context = sequence.costs, sequence.prompt_length
        given = COMPRESSIONS.get(self.compression)
        one.watched.compression = compression_of(sequence.weight_bits) if given is None else given
        return one

    def stops(self, tree: TokenTree, candidates: Candidates) -> bool:
        watched = self.watched
        if len(tree) == 1:
            watched.entropies, watched.best = [], []
        watched.entropies.append(float(entropies_of(candidates.logp[:1])[0]))
        watched.best.append(float(np.exp(candidates.logp[0, 0])))
        return len(tree) >= self.planned

    @property
    def planned(self) -> int:
        """Tokens that the next chain may have."""
        if self.watched.gamma is None:
            return max((gamma for gamma in self.gammas if gamma <= USUAL), default=min(self.gammas))
        return self.watched.gamma

    def plan(self) -> TreePlan:
        return plain_chain(self.length, self.offered, self.planned)

    def drafted(self, layers: Sequence[AskedLayer] | None) -> None:
        if layers:
            self.watched.entropies = [layer.measured(entropies_of).item() for layer in layers]
            self.watched.best = [layer.measured(_best).item() for layer in layers]

    def observe_counts(self, counts: RoundCounts) -> None:
        watched = self.watched
        watched.context = counts.context + counts.new
        if counts.drafted_nodes > 1:
            features = self._asked.copy()
            features[:, : len(SEEN)] = signals(watched.entropies, watched.best)
            shares: list[float] = self.head.accepted(features).tolist()
            costs = self._seconds() if self.objective == "rate" else [1.0] * len(shares)
            rates = [
                (1.0 + share * gamma) / cost for share, gamma, cost in zip(shares, self.gammas, costs, strict=True)
            ]
            watched.gamma = self.gammas[rates.index(max(rates))]

    @cached_property
    def _asked(self) -> FloatArray:
        """`FEATURES` of a chain of each of `gammas`, with 0 for what is seen, shape `(gammas, features)`; read only."""
        unseen = [0.0] * len(SEEN)
        return read_only(np.array([(*unseen, self.watched.compression, gamma) for gamma in self.gammas]))

    def _seconds(self) -> list[float]:
        """Of a round with a chain of each of `gammas`, in passes over the root while nothing is known of passes."""
        costs, context = self.watched.costs, self.watched.context
        layer = layer_price(costs, 1, OFFERED, context)
        return [verify_price(costs, gamma + 1, context) + gamma * layer for gamma in self.gammas]
