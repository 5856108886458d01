"""How deep the sequences of a batch draft: by what that has brought them lately, and by what it takes."""

import math
from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

import attrs
import numpy as np

from talon_core.allocation import Allocator, NextRound, Planner
from talon_core.costs import LEAST, Costs, Line
from talon_core.errors import PluginError, blaming, is_number, is_whole, naming, written
from talon_core.rounds import Round, Span, seconds_together
from talon_core.tree import FloatArray

NAME = "best-rate"
"""Under which its memory is kept."""

DEEPEST = 8
"""Layers that are told apart; what is deeper counts with the last of them."""

MEMORY = 0.9
"""What a round still counts for after the next one."""

STALE = 0.1
"""What is left of it when all draft again after others were left out."""

PRIOR = 1.0
"""Rounds of a text for which the mean of all texts counts."""

ENOUGH = 8
"""Drafts, of whichever texts, before it is decided whether others follow."""

GROWS = {"draft": ("reading", "layer"), "policy": ("begin", "width", "grow", "finish", "end")}
"""What of a round grows its tree, by part."""

WAITS = (8, 64)
"""Rounds in which somebody drafts less than his policy would, before all draft again: at first at least, and at most.

At first as many as there are sequences, as trying takes longer with more of them.
"""


def _zeros() -> FloatArray:
    return np.zeros(DEEPEST)


@attrs.define(eq=False)
class Brought:
    """What drafting has brought in the latest rounds, layer by layer; each array has shape `(DEEPEST,)`.

    Attributes:
        tokens: expected of the nodes that were verified and worth it.
        nodes: that were.
        rounds: in which the layer could be drafted.
    """

    tokens: FloatArray = attrs.field(factory=_zeros)
    nodes: FloatArray = attrs.field(factory=_zeros)
    rounds: FloatArray = attrs.field(factory=_zeros)

    def add(self, tokens: FloatArray, nodes: FloatArray, rounds: FloatArray) -> None:
        """What one more round has brought; where `rounds` is 0, nothing could be drafted."""
        fades = np.where(rounds > 0, MEMORY, 1.0)
        self.tokens = fades * self.tokens + tokens
        self.nodes = fades * self.nodes + nodes
        self.rounds = fades * self.rounds + rounds

    def age(self) -> None:
        """It is long ago."""
        self.tokens, self.nodes, self.rounds = STALE * self.tokens, STALE * self.nodes, STALE * self.rounds


@attrs.define(eq=False)
class Text:
    """What is known of a text.

    Attributes:
        brought: by its own drafts.
        latest: the round that was learnt from last.
        layers: that it might draft in the round after that.
    """

    brought: Brought = attrs.field(factory=Brought)
    latest: Round | None = None
    layers: int = DEEPEST


@attrs.define(eq=False)
class Known:
    """What is known of all texts and of the machine.

    Attributes:
        brought: by the drafts of all texts; `rounds` are those of each text.
        drafts: there have been.
        accepted: drafted tokens of the latest rounds that were.
        expected: of them, by the drafter's probabilities.
        layer: seconds of a layer of drafting, by sequences that take part; these may be many at once.
        waited: rounds since all drafted.
        wait: such rounds before all draft again.
        batch: the power of two that the sequences of the latest round reached.
        layers: that were best when something was learnt last, by slot.
    """

    brought: Brought = attrs.field(factory=Brought)
    drafts: int = 0
    accepted: float = 1.0
    expected: float = 1.0
    layer: Line = attrs.field(factory=partial(Line, beyond=math.inf))
    waited: int = 0
    wait: int = WAITS[0]
    batch: int = 0
    layers: Mapping[int, int] = attrs.field(factory=dict)

    def learn(self, latest: Mapping[int, Round], texts: Mapping[int, Text], least: float) -> None:
        """Take note of the rounds of texts that could draft in them.

        Args:
            latest: these rounds, by slot.
            texts: what is known of each.
            least: the path probability from which on a node is worth its time.
        """
        spans: dict[int, list[Span]] = {slot: drafting(round_) for slot, round_ in latest.items()}
        asked = [[span for span in own if span.work == "layer"] for own in spans.values()]
        if any(asked):
            self.layer.add(sum(map(bool, asked)), seconds_together(spans.values()) / max(map(len, asked)))
        self.drafts += len(latest)
        self.accepted, self.expected = MEMORY * self.accepted, MEMORY * self.expected
        every = np.zeros((3, DEEPEST))
        for slot, round_ in latest.items():
            text, tree = texts[slot], round_.tree
            prob = np.exp(np.minimum(tree.path_logp[1:], 0.0))
            self.accepted, self.expected = self.accepted + round_.accepted, self.expected + float(prob.sum())
            places, worth = np.minimum(tree.depths[1:], DEEPEST) - 1, prob >= least
            tokens, nodes = (np.bincount(places, weights, DEEPEST) for weights in (prob * worth, worth))
            own = np.stack([tokens, nodes, np.arange(DEEPEST) < text.layers])
            text.brought.add(*own)
            every += own
        self.brought.add(*every)


def drafting(round_: Round) -> list[Span]:
    """What it took to grow the tree: the drafter's layers, what it read for them, and its policy."""
    return [span for span in round_.spans if span.work in GROWS.get(span.part, ())]


def best_layers(round_: NextRound) -> dict[int, int]:
    """How deep each text drafts: as deep, and of the texts that gain most as many, as make the most tokens a second.

    Now and then all of them draft, one layer deeper than is best: the less often, the longer nothing came of it.
    """
    known: Known = round_.machine.setdefault(NAME, Known())
    texts: dict[int, Text] = {slot: place.setdefault(NAME, Text()) for slot, place in round_.texts.items()}
    new: dict[int, Round] = {}
    for slot, latest in round_.latest.items():
        if latest is not None and latest is not texts[slot].latest and texts[slot].layers:
            new[slot] = latest
        texts[slot].latest = latest
    if new or known.layers.keys() != texts.keys() or None in round_.latest.values():
        passes = _passes(round_)
        if new:
            known.learn(new, texts, passes.least)
        known.layers = _best(known, texts, passes)
    layers = known.layers
    if round_.batch.bit_length() != known.batch:  # what pays may have changed
        known.batch, known.wait = round_.batch.bit_length(), min(max(round_.batch, WAITS[0]), WAITS[1])
    if all(count >= DEEPEST for count in layers.values()):
        known.waited = 0
    else:
        known.waited += 1
        if known.waited > known.wait:
            known.waited, known.wait = 0, min(2 * known.wait, WAITS[1])
            layers = dict.fromkeys(layers, 1 + max(layers.values()))
            for brought in (known.brought, *(text.brought for text in texts.values())):
                brought.age()
    for slot, count in layers.items():
        texts[slot].layers = min(count, DEEPEST)
    return {slot: count for slot, count in layers.items() if count < DEEPEST}


@attrs.frozen(eq=False)
class Passes:
    """What the next pass takes.

    Attributes:
        batch: sequences that share it.
        nodes: of some passes, rising, from `batch` on, shape `(sizes,)`.
        seconds: of these, likewise; not a number where nothing is known.
    """

    batch: int
    nodes: FloatArray
    seconds: FloatArray

    @property
    def least(self) -> float:
        """The path probability from which on a node is worth its time, at the speed of plain decoding."""
        doubled = np.interp(2 * self.batch, self.nodes, self.seconds)
        return float(doubled / self.seconds[0] - 1.0) if self.seconds[0] > 0 else 0.0


def _passes(round_: NextRound) -> Passes:
    nodes = round_.batch * 2 ** np.arange(0.0, 4.25, 0.25)
    told = [pass_seconds(round_.costs, round(size), round_.context, round_.batch) for size in nodes.tolist()]
    return Passes(round_.batch, nodes, np.array(told, dtype=np.float64))  # None becomes NaN


def _best(known: Known, texts: Mapping[int, Text], passes: Passes) -> dict[int, int]:
    usual, slots = known.brought, np.array([*texts])
    if not known.layer.known or known.drafts < ENOUGH or not np.isfinite(passes.seconds).all():
        return dict.fromkeys(texts, DEEPEST)
    rounds = np.array([text.brought.rounds for text in texts.values()]) + PRIOR  # (texts, layers), as are the next ones
    prior = PRIOR / np.maximum(usual.rounds, 1.0)
    tokens = np.array([text.brought.tokens for text in texts.values()]) + prior * usual.tokens
    nodes = np.array([text.brought.nodes for text in texts.values()]) + prior * usual.nodes
    tokens = np.cumsum(tokens / rounds, axis=1) * min(known.accepted / known.expected, 1.0)
    order = np.argsort(-tokens, axis=0, kind="stable")
    gained = np.cumsum(np.take_along_axis(tokens, order, axis=0), axis=0)
    added = np.cumsum(np.take_along_axis(np.cumsum(nodes / rounds, axis=1), order, axis=0), axis=0)
    layer = np.array([known.layer.at(count) for count in range(1, 1 + len(texts))])  # by the texts that draft
    seconds = np.interp(passes.batch + added, passes.nodes, passes.seconds) + np.outer(layer, np.arange(1, 1 + DEEPEST))
    rates = np.where(usual.rounds > 0, (passes.batch + gained) / np.maximum(seconds, LEAST), 0.0)
    count, deep = np.unravel_index(rates.argmax(), rates.shape)
    layers = dict.fromkeys(texts, 0)
    if rates[count, deep] * passes.seconds[0] > passes.batch:
        layers |= dict.fromkeys(slots[order[: 1 + count, deep]].tolist(), 1 + int(deep))
    for slot, text in texts.items():
        if not text.brought.rounds[0]:  # it might be one that gains much
            layers[slot] = max(1, *layers.values())
    return layers


def pass_seconds(costs: Costs, nodes: int, context: int, batch: int) -> float | None:
    """What a pass of the target takes; None where the costs do not know. Arguments as for `Costs.verify`.

    Raises:
        PluginError: if the costs raise; the message names them.
    """
    with blaming("costs", costs, "verify"):
        answer: Any = costs.verify(nodes, context, batch)
    return float(answer) if is_number(answer) and math.isfinite(answer) and answer >= 0 else None


def by_slot(allocator: Allocator, answer: Any, asked: Collection[int]) -> Mapping[int, Any]:
    """An allocator's answer, if it is a mapping of slots that it was asked about.

    Raises:
        PluginError: if it is not; the message names the allocator.
    """
    if not isinstance(answer, Mapping):
        raise PluginError(f"{naming('allocator', allocator)} answered {written(answer)}; it must be a mapping by slot")
    for slot in answer:
        if slot not in asked:
            raise PluginError(
                f"{naming('allocator', allocator)} answered for slot {written(slot)}; it was asked about "
                f"{', '.join(map(str, sorted(asked))) or 'none'}"
            )
    return answer


def planned(planner: Planner, round_: NextRound) -> Mapping[int, int]:
    """What a planner answers, checked.

    Raises:
        PluginError: if it raises or answers nonsense; the message names it.
    """
    with blaming("allocator", planner, "layers"):
        answer: Any = planner.layers(round_)
    checked = by_slot(planner, answer, round_.latest)
    for slot, layers in checked.items():
        if not is_whole(layers) or layers < 0:
            raise PluginError(
                f"{naming('allocator', planner)} gave slot {slot} {written(layers)} layers; "
                "it must be a whole number of at least 0"
            )
    return checked
