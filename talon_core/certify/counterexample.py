"""Why a certificate was refused: a small world, where the two laws part, and the round in which it happens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import attrs
import numpy as np

from talon_core.certify.exact import Law, ancestral_law, distance
from talon_core.certify.worlds import World, described
from talon_core.choices import Choices, enumerate_outcomes
from talon_core.decoding.decoder import Decoder
from talon_core.plugins.specs import spelled
from talon_core.request import Request
from talon_core.tree import TokenTree

if TYPE_CHECKING:
    from talon_core.certify.trial import Examined
    from talon_core.table import TableTarget

Text = tuple[int, ...]

MOST_LINES = 24
"""Lines of a round's outcomes that are shown, the likeliest first."""


@attrs.frozen(eq=False)
class Outcome:
    """One way in which a round may go.

    Attributes:
        prob: its probability.
        tree: the verified tree.
        tokens: what the round emits.
    """

    prob: float
    tree: TokenTree
    tokens: Text


@attrs.frozen(eq=False)
class Counterexample:
    """A world in which the emitted law is not the target's.

    Attributes:
        world: the world.
        policy: the policy with the world's options.
        error: the largest difference of the two probabilities of a text.
        broke: what a part raised, or the decoder refused; None if the laws differ.
        text: the shortest text after which the laws of the next token differ.
        expected: the target's law of the token after `text`, shape `(vocab,)`.
        emitted: the law with which it comes out; its sum is less than 1 where probability is lost.
        start: the text after which the round begins in which the error is made; None if no round alone makes it.
        outcomes: how that round may go, the likeliest first.
    """

    world: World
    policy: str
    error: float
    broke: str | None = None
    text: Text = ()
    expected: Sequence[float] = ()
    emitted: Sequence[float] = ()
    start: Text | None = None
    outcomes: Sequence[Outcome] = ()

    def lines(self) -> list[str]:
        """The counterexample in words, line by line."""
        lines = ["", "the world:", *(f"  {line}" for line in described(self.world, self.policy)), ""]
        if self.broke is not None:
            return [*lines, "what went wrong:", f"  {self.broke}", ""]
        lines.append(f"the laws part after {_spelled(self.text)}; the next token is")
        lines.append(f"  {'token':>5}  {'target':>8}  {'emitted':>8}")
        for token, (p, emitted) in enumerate(zip(self.expected, self.emitted, strict=True)):
            lines.append(f"  {token:>5}  {p:8.5f}  {emitted:8.5f}")
        lines.append("")
        if self.start is None:
            return [*lines, "no round is wrong by itself: something is carried over from one round to the next", ""]
        lines.append(f"the round that begins after {_spelled(self.start)} (* marks a drawn child)")
        lines.append(f"  {'probability':>11}  {'emits':<10}  tree")
        for one in self.outcomes[:MOST_LINES]:
            emits = " ".join(map(str, one.tokens))
            lines.append(f"  {one.prob:11.5f}  {emits:<10}  {on_one_line(one.tree)}")
        left = len(self.outcomes) - MOST_LINES
        return [*lines, *([f"  and {left} less likely ones"] if left > 0 else []), ""]


def _spelled(text: Text) -> str:
    return f"the new tokens {' '.join(map(str, text))}" if text else "the prompt"


def on_one_line(tree: TokenTree) -> str:
    """A small tree: a node's children in brackets after it, drawn ones marked, in their order."""

    def node(number: int) -> str:
        drawn = tree.drawn.get(number)
        order = drawn.tokens.tolist() if drawn is not None else []
        children = [
            node(child) + ("*" if int(tree.tokens[child]) in order else "")
            for child in np.flatnonzero(tree.parents == number).tolist()
        ]
        again = f" drawn {' '.join(map(str, order))}" if len(order) > len(set(order)) else ""
        return f"{tree.tokens[number]}" + (f"({' '.join(children)}{again})" if children else "")

    return node(0)


def explain(world: World, decoder: Decoder, examined: Examined, tolerance: float) -> Counterexample:
    """What to show of a world in which something is wrong."""
    policy = spelled(decoder.policy) if decoder.policy is not None else "none"
    if examined.broke is not None:
        return Counterexample(world, policy, examined.error, examined.broke)
    text = _parting(examined.emitted, examined.expected, world.vocab_size, tolerance)
    expected, emitted = (_next(law, text, world.vocab_size) for law in (examined.expected, examined.emitted))
    found = Counterexample(world, policy, examined.error, None, text, expected, emitted)
    for length in range(len(text) + 1):
        outcomes = _round(decoder, _after(world.request, text[:length]))
        if _is_wrong(world.make_target(), _after(world.request, text[:length]), outcomes, tolerance):
            return attrs.evolve(found, start=text[:length], outcomes=outcomes)
    return found


def _parting(emitted: Law, expected: Law, vocab_size: int, tolerance: float) -> Text:
    """The shortest text after which the laws of the next token differ."""
    beginnings = {text[:length] for text in {*emitted, *expected} for length in range(len(text))}
    wrong = [
        text
        for text in beginnings
        if _far(_next(emitted, text, vocab_size), _next(expected, text, vocab_size), tolerance)
    ]
    return min(wrong, key=lambda text: (len(text), text)) if wrong else ()


def _far(one: Sequence[float], other: Sequence[float], tolerance: float) -> bool:
    return bool(np.abs(np.subtract(one, other)).max() > tolerance)


def _next(law: Law, text: Text, vocab_size: int) -> list[float]:
    """The law of the token after a text; what is lost before it counts as nothing."""
    begun = [0.0] * vocab_size
    for whole, prob in law.items():
        if len(whole) > len(text) and whole[: len(text)] == text:
            begun[whole[len(text)]] += prob
    total = sum(begun) if text else 1.0
    return [prob / total if total > 0 else 0.0 for prob in begun]


def _after(request: Request, text: Text) -> Request:
    """What is left to decode after a text."""
    ids = np.append(request.ids, np.array(text, dtype=np.int64))
    return attrs.evolve(request, ids=ids, max_new_tokens=request.max_new_tokens - len(text))


def _round(decoder: Decoder, request: Request) -> list[Outcome]:
    """How the first round of a request may go; outcomes that look the same are added up."""

    def experiment(choices: Choices) -> tuple[TokenTree, Text]:
        generation = decoder.run(request, choices)
        round_ = next(generation)
        generation.close()
        return round_.tree, tuple(round_.tokens.tolist())

    probs: dict[tuple[str, Text], float] = defaultdict(float)
    trees: dict[tuple[str, Text], TokenTree] = {}
    for prob, (tree, tokens) in enumerate_outcomes(experiment):
        probs[on_one_line(tree), tokens] += prob
        trees[on_one_line(tree), tokens] = tree
    outcomes = [Outcome(prob, trees[look], look[1]) for look, prob in probs.items()]
    return sorted(outcomes, key=lambda one: -one.prob)


def _is_wrong(target: TableTarget, request: Request, outcomes: Sequence[Outcome], tolerance: float) -> bool:
    """Whether this round alone, with the target's own tokens after it, changes the law."""
    emitted: Law = defaultdict(float)
    for one in outcomes:
        ended = one.tokens[-1] in request.eos or len(one.tokens) >= request.limit(target)
        rest = {(): 1.0} if ended else ancestral_law(target, _after(request, one.tokens))
        for text, prob in rest.items():
            emitted[one.tokens + text] += one.prob * prob
    return distance(emitted, ancestral_law(target, request)) > tolerance
