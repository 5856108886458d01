"""The exact law of a text, composed of the laws of its rounds, each enumerated once for the text before it."""

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import attrs
import numpy as np
from torch import Tensor

from talon_core.certify.exact import Law
from talon_core.choices import Choices, enumerate_outcomes
from talon_core.decoding.decoder import Decoder
from talon_core.drafter import Part
from talon_core.engine.drafting import Drafted, draft_tree
from talon_core.engine.sequence import Sequence, walked
from talon_core.engine.warping import WarpedLaws
from talon_core.laws import Laws, check_node
from talon_core.policy import TreePolicy
from talon_core.request import Request
from talon_core.rule import Accepted
from talon_core.target import Target
from talon_core.tree import FloatArray, IntArray, TokenTree, read_only

Text = tuple[int, ...]


def is_memoryless(part: object) -> bool:
    """Whether a policy or rule has no place to remember a round in: plain options alone, and nobody tells it of rounds.

    A part that keeps something elsewhere, as in a variable of its module, looks the same from here; so `certify` also
    enumerates whole generations, in some of its worlds.
    """
    cls: Any = type(part)
    if isinstance(part, TreePolicy) and cls.observe is not TreePolicy.observe:
        return False
    if not attrs.has(cls) or not is_frozen(part):
        return False
    return all(_is_plain(getattr(part, field.name)) for field in attrs.fields(cls))


def is_frozen(part: Any) -> bool:
    """Whether an object's attributes cannot be set."""
    try:
        setattr(part, "name", part.name)  # noqa: B010 - the assignment is what is tested
    except attrs.exceptions.FrozenInstanceError:
        return True
    except AttributeError:
        return False
    return False


def _is_plain(value: object) -> bool:
    """Whether it can never be another: a number, a text, or such in a tuple."""
    if isinstance(value, tuple | frozenset):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, int | float | str)


@attrs.frozen(eq=False)
class RoundOutcome:
    """One way in which a round may go.

    Attributes:
        prob: its probability.
        tree: the verified tree.
        tokens: what the round emits.
        accepted: drafted tokens that were accepted.
        finished: whether the text ends with it.
    """

    prob: float
    tree: TokenTree
    tokens: Text
    accepted: int
    finished: bool


class _KnownLaws(Laws):
    """The laws at a verified tree, each computed once for the text it follows, in whatever tree that stands.

    Args:
        laws: computes them.
        tree: the verified tree.
        text: the new tokens before its root.
        known: those that are known, by the text before them.
    """

    def __init__(self, laws: Laws, tree: TokenTree, text: Text, known: dict[Text, FloatArray]) -> None:
        self._laws, self._tree, self._text, self._known = laws, tree, text, known

    def at(self, node: int) -> FloatArray:
        check_node(self._tree, node)
        path = []
        above = int(node)
        while above > 0:
            path.append(int(self._tree.tokens[above]))
            above = int(self._tree.parents[above])
        before = (*self._text, *reversed(path))
        if before not in self._known:
            self._known[before] = read_only(self._laws.at(node))
        return self._known[before]

    def ends(self, token: int) -> bool:
        return self._laws.ends(token)


def rounds_after(
    decoder: Decoder, request: Request, text: Text, known: dict[Text, FloatArray]
) -> Iterator[RoundOutcome]:
    """How the round after some new tokens may go, for a policy and a rule without memory.

    The tree is drafted once for each outcome of the policy's draws, and walked once for each of the rule's.

    Args:
        decoder: its target takes tables.
        request: the whole request.
        text: the new tokens before the round.
        known: the target's laws that are known, by the new tokens before them; grows.
    """
    before = attrs.evolve(
        request,
        ids=np.append(request.ids, np.array(text, dtype=np.int64)),
        max_new_tokens=request.max_new_tokens - len(text),
    )
    limit, vocab_size = decoder.limit(before), decoder.target.vocab_size
    policy = decoder.engine.policy_for(request)

    def drafted(choices: Choices) -> tuple[Sequence, TokenTree]:
        sequence = Sequence(before, choices, limit, decoder.children)
        sequence.start(policy, decoder.target.device, len(before.ids) + limit, 0.0)
        return sequence, _draft(decoder, sequence).tree

    for prob, (sequence, tree) in enumerate_outcomes(drafted):
        laws = sequence.laws(tree, _logits(decoder.target, before.ids, tree))

        def walk(choices: Choices, tree: TokenTree = tree, laws: WarpedLaws = laws) -> Accepted:
            return walked(decoder.rule, tree, _KnownLaws(laws, tree, text, known), choices, vocab_size, laws.failures)

        for share, accepted in enumerate_outcomes(walk):
            tokens, reason = sequence.cut(tree, accepted)
            yield RoundOutcome(prob * share, tree, tuple(tokens.tolist()), len(accepted.path) - 1, reason is not None)


def _logits(target: Target, ids: IntArray, tree: TokenTree) -> Tensor:
    target.open(0, len(ids) + len(tree))
    target.read({0: ids[:-1]})
    logits = target.verify({0: tree}).outputs[0].logits
    target.close(0)
    return logits


def _draft(decoder: Decoder, sequence: Sequence) -> Drafted:
    drafter, ids = decoder.engine.parts.drafter, sequence.request.ids
    drafter.open(0, ids.copy(), len(ids) + sequence.limit)
    drafter.read({0: Part(0, len(ids) - 1)})
    limits = sequence.limits(decoder.target.vocab_size, drafter.max_depth)
    drafted = draft_tree(sequence.policy, drafter, sequence.root, limits, sequence.policy_choices)
    drafter.close(0)
    return drafted


@attrs.frozen(eq=False)
class Enumerated:
    """The law of a text, and what it took to compute it.

    Attributes:
        law: of the whole text.
        outcomes: rounds or generations that were enumerated, one for every way in which their draws could come out.
        accepting: whether something drafted could be accepted.
    """

    law: Law
    outcomes: int
    accepting: bool


def composed_law(decoder: Decoder, request: Request, most: int) -> Enumerated | None:
    """The exact law of a generation's tokens, for a policy and a rule without memory.

    Without memory, the law of a round depends on the tokens before it alone, so each round is enumerated once for each
    of them. Whole generations have the same law (`emitted_law`), in many more outcomes.

    Args:
        decoder: what to decode with.
        request: what to decode.
        most: outcomes that are too many.

    Returns:
        None if there are too many outcomes.
    """
    law: Law = defaultdict(float)
    outcomes, accepting = 0, False
    waiting: dict[Text, float] = {(): 1.0}
    known: dict[Text, FloatArray] = {}
    while waiting:
        text = min(waiting, key=len)  # all ways to a text are known once the shorter ones are done
        prob = waiting.pop(text)
        for one in rounds_after(decoder, request, text, known):
            outcomes += 1
            if outcomes > most:
                return None
            accepting |= one.accepted > 0
            into, longer = law if one.finished else waiting, text + one.tokens
            into[longer] = into.get(longer, 0.0) + prob * one.prob
    return Enumerated(law, outcomes, accepting)
