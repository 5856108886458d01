"""The exact law of a text, composed of the laws of its rounds, each enumerated once for the text before it."""

from collections import defaultdict
from collections.abc import Iterator

import attrs
import numpy as np

from talon_core.certify.exact import Law, LawsAfter, law_after
from talon_core.choices import Choices, ScriptedChoices, enumerate_outcomes
from talon_core.decoding.decoder import Decoder
from talon_core.drafter import Part
from talon_core.engine.drafting import DraftLimits, draft_tree
from talon_core.engine.sequence import Sequence
from talon_core.engine.walking import walked
from talon_core.laws import Laws, check_node
from talon_core.request import Request
from talon_core.rule import Accepted
from talon_core.table import TableTarget
from talon_core.tree import FloatArray, TokenTree

Text = tuple[int, ...]


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


class Rounds:
    """The rounds of a generation, for a policy and a rule without memory. What they have in common is computed once.

    Args:
        decoder: its target is a table, and its drafter looks at nothing but each tree's own paths.
        request: the whole request.
        laws: the target's laws that are known; gets others.
    """

    def __init__(self, decoder: Decoder, request: Request, laws: LawsAfter | None = None) -> None:
        assert isinstance(decoder.target, TableTarget)
        self._decoder, self._request, self._target = decoder, request, decoder.target
        self._policy = decoder.engine.policy_for(request)
        self._laws: LawsAfter = {} if laws is None else laws
        self._drafts: dict[tuple[int, DraftLimits], list[tuple[float, TokenTree]]] = {}

    def after(self, text: Text) -> Iterator[RoundOutcome]:
        """How the round after some new tokens may go.

        The tree is drafted once for each outcome of the policy's draws, and walked once for each of the rule's.
        """
        rule, vocab_size = self._decoder.rule, self._target.vocab_size
        sequence = self._sequence(text)
        for prob, tree in self._trees(sequence):
            laws = _KnownLaws(self._laws, self._target, sequence.request, tree, text)

            def walk(choices: Choices, tree: TokenTree = tree, laws: _KnownLaws = laws) -> Accepted:
                return walked(rule, tree, laws, choices, vocab_size, laws.failures)

            for share, accepted in enumerate_outcomes(walk):
                tokens, reason = sequence.cut(tree, accepted)
                new = tuple(tokens.tolist())
                yield RoundOutcome(prob * share, tree, new, len(accepted.path) - 1, reason is not None)

    def _sequence(self, text: Text) -> Sequence:
        """The sequence as it is after some new tokens."""
        before = attrs.evolve(
            self._request,
            ids=np.append(self._request.ids, np.array(text, dtype=np.int64)),
            max_new_tokens=self._request.max_new_tokens - len(text),
        )
        limit = self._decoder.limit(before)
        sequence = Sequence(before, ScriptedChoices([]), limit, self._decoder.children)
        acceptor = self._decoder.engine.parts.acceptors.of(before, sequence.choices)
        sequence.start(self._policy, acceptor, self._target.device, len(before.ids) + limit, 0.0)
        return sequence

    def _trees(self, sequence: Sequence) -> Iterator[tuple[float, TokenTree]]:
        """Every tree that may be drafted for a sequence, with its probability: one for each outcome of the draws.

        They depend on the root and on the limits alone, as drafter and policy look at nothing else.
        """
        drafter = self._decoder.engine.parts.drafter
        limits = sequence.limits(self._target.vocab_size, drafter.max_depth)
        known = self._drafts.get((sequence.root, limits))
        if known is not None:
            yield from known
            return
        known = []
        for one in enumerate_outcomes(lambda choices: self._draft(sequence, limits, choices)):
            known.append(one)
            yield one  # at once: there may be far too many
        self._drafts[sequence.root, limits] = known

    def _draft(self, sequence: Sequence, limits: DraftLimits, choices: Choices) -> TokenTree:
        drafter, ids = self._decoder.engine.parts.drafter, sequence.request.ids
        drafter.open(0, ids.copy(), len(ids) + sequence.limit)
        drafter.read({0: Part(0, len(ids) - 1)})
        drafted = draft_tree(self._policy, drafter, sequence.root, limits, choices)
        drafter.close(0)
        return drafted.tree


class _KnownLaws(Laws):
    """A table's laws at a verified tree, each computed once for the text it follows, in whatever tree that stands.

    Args:
        known: those that are known, by the new tokens before them; gets others.
        target: the table.
        request: as it is before the round.
        tree: the verified tree.
        text: the new tokens before its root.

    Attributes:
        failures: as in `WarpedLaws`.
    """

    def __init__(self, known: LawsAfter, target: TableTarget, request: Request, tree: TokenTree, text: Text) -> None:
        self._known, self._target, self._request, self._tree, self._text = known, target, request, tree, text
        self.failures: list[BaseException] = []

    def at(self, node: int) -> FloatArray:
        check_node(self._tree, node)
        path = self._tree.tokens[self._tree.path(node)[1:]].tolist()
        before = (*self._text, *path)
        if before not in self._known:
            try:
                law = law_after(self._target, [*self._request.ids.tolist(), *path], self._request.sampling)
            except Exception as error:
                self.failures.append(error)
                raise
            self._known[before] = law
        return self._known[before]

    def ends(self, token: int) -> bool:
        return token in self._request.eos


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


def composed_law(decoder: Decoder, request: Request, most: int, laws: LawsAfter | None = None) -> Enumerated | None:
    """The exact law of a generation's tokens, for a policy and a rule without memory.

    Without memory, the law of a round depends on the tokens before it alone, so each round is enumerated once for each
    of them. Whole generations have the same law (`emitted_law`), in many more outcomes.

    Args:
        decoder: as for `Rounds`.
        request: what to decode.
        most: outcomes that are too many.
        laws: as for `Rounds`.

    Returns:
        None if there are too many outcomes.
    """
    law: Law = defaultdict(float)
    outcomes, accepting = 0, False
    waiting: dict[Text, float] = {(): 1.0}
    rounds = Rounds(decoder, request, laws)
    while waiting:
        text = min(waiting, key=len)  # all ways to a text are known once the shorter ones are done
        prob = waiting.pop(text)
        for one in rounds.after(text):
            outcomes += 1
            if outcomes > most:
                return None
            accepting |= one.accepted > 0
            into, longer = law if one.finished else waiting, text + one.tokens
            into[longer] = into.get(longer, 0.0) + prob * one.prob
    return Enumerated(law, outcomes, accepting)
