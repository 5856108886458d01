"""The exact law of a text, composed of the laws of its rounds, each enumerated once for the text before it."""

from collections import defaultdict
from collections.abc import Iterator
from copy import copy

import attrs
import numpy as np

from talon_core.certify.exact import Law, LawsAfter, law_after
from talon_core.certify.kept import as_often_as_wanted
from talon_core.choices import Choices, ScriptedChoices, enumerate_outcomes
from talon_core.decoding.decoder import Decoder
from talon_core.drafter import Part
from talon_core.engine.growing import DraftLimits, Growing
from talon_core.engine.offers import Offers
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


@attrs.frozen(eq=False)
class _Draft:
    """A tree that is being drafted, and what may become of it.

    Attributes:
        tree: so far.
        longer: by what is drafted from next, the same with the layer after it, in every way in which the policy's draws
            can come out, each with its probability; each is worked out when somebody first goes on to it.
    """

    tree: Growing
    longer: dict[bytes, Iterator[tuple[float, "_Draft"]]] = attrs.field(factory=dict, init=False)


@attrs.frozen(eq=False)
class _Walks:
    """How a rule may walk a tree.

    Attributes:
        laws: the target's at the nodes where the rule has looked, in that order, as bytes.
        outcomes: each with its probability.
    """

    laws: dict[int, bytes]
    outcomes: list[tuple[float, Accepted]]


class Rounds:
    """The rounds of a generation, for a policy and a rule without memory. What they have in common is computed once.

    A policy sees the root, what is drafted and its own draws, and is not told how deep it may draft: a layer is drafted
    once for what stands above it. A rule sees the tree and the laws at its nodes: it walks once for equal ones.

    Args:
        decoder: its target is a table, and its drafter looks at nothing but each tree's own paths.
        request: the whole request, without stop conditions of the user's.
        laws: the target's laws that are known; gets others.
    """

    def __init__(self, decoder: Decoder, request: Request, laws: LawsAfter | None = None) -> None:
        assert isinstance(decoder.target, TableTarget)
        self._decoder, self._request, self._target = decoder, request, decoder.target
        self._drafter = decoder.engine.parts.drafter
        self._policy = decoder.engine.policy_for(request)
        self._limit = decoder.limit(request)
        self._prompt: list[int] = request.ids.tolist()
        self._laws: LawsAfter = {} if laws is None else laws
        self._sequences: dict[tuple[int, int], Sequence] = {}
        self._drafts: dict[int, _Draft] = {}
        self._trees: dict[Sequence, Iterator[tuple[float, TokenTree]]] = {}
        self._walks: dict[TokenTree, list[_Walks]] = defaultdict(list)

    def after(self, text: Text) -> Iterator[RoundOutcome]:
        """How the round after some new tokens may go."""
        place = text[-1] if text else self._prompt[-1], len(text)
        if place not in self._sequences:
            sequence = self._sequences[place] = self._sequence(text)
            self._trees[sequence] = as_often_as_wanted(self._drafted(sequence))
        sequence = self._sequences[place]
        for prob, tree in copy(self._trees[sequence]):
            for share, accepted in self._walked(tree, text):
                tokens, reason = sequence.cut(tree, accepted)
                new = tuple(tokens.tolist())
                yield RoundOutcome(prob * share, tree, new, len(accepted.path) - 1, reason is not None)

    def _sequence(self, text: Text) -> Sequence:
        """The sequence as it is after some new tokens, or others that are as many and have the same last one."""
        before = attrs.evolve(self._request, ids=np.array([*self._prompt, *text], dtype=np.int64))
        limit = self._limit - len(text)
        sequence = Sequence(before, ScriptedChoices([]), limit, self._decoder.children)
        acceptor = self._decoder.engine.parts.acceptors.of(before, sequence.choices)
        sequence.start(self._policy, acceptor, None, len(before.ids) + limit, 0.0)
        return sequence

    def _drafted(self, sequence: Sequence) -> Iterator[tuple[float, TokenTree]]:
        """Every tree that may be drafted for a sequence, with its probability: one for each outcome of the draws."""
        ids, root = sequence.request.ids, sequence.root
        self._drafter.open(0, ids.copy(), len(ids) + sequence.limit)
        self._drafter.read({0: Part(0, len(ids) - 1)})
        limits = sequence.limits(self._target.vocab_size, self._drafter.max_depth)
        if root not in self._drafts:
            self._drafts[root] = _Draft(Growing(self._policy, root, limits))
        yield from self._finished(self._drafts[root], limits)
        self._drafter.close(0)

    def _finished(self, draft: _Draft, limits: DraftLimits) -> Iterator[tuple[float, TokenTree]]:
        """Every tree that may become of one, with its probability."""
        tree = draft.tree if draft.tree.limits is limits else draft.tree.within(limits)
        frontier = tree.frontier.tobytes()
        if frontier not in draft.longer:
            draft.longer[frontier] = as_often_as_wanted(self._longer(tree))
        ends = True
        for prob, longer in copy(draft.longer[frontier]):
            ends = False
            for share, finished in self._finished(longer, limits):
                yield prob * share, finished
        if ends:
            yield 1.0, tree.finish()

    def _longer(self, tree: Growing) -> Iterator[tuple[float, _Draft]]:
        """A tree with one more layer, in every way in which the draws can come out; none where it is to be finished."""
        asked, offers = tree.asked(), Offers(self._drafter)
        if asked is None:
            return
        proposed = offers.ask([asked], [tree.shown_draws])
        candidates = offers.checked(proposed.candidates[0], asked, tree.limits.vocab_size)

        def grown(choices: Choices) -> _Draft:
            longer = tree.within(tree.limits)
            longer.grow(candidates, choices)
            return _Draft(longer)

        yield from enumerate_outcomes(grown)

    def _walked(self, tree: TokenTree, text: Text) -> Iterator[tuple[float, Accepted]]:
        """How the rule may walk a tree after a text, each way with its probability."""
        laws = _KnownLaws(self._laws, self._target, self._request, tree, text)
        for known in self._walks[tree]:
            if all(laws.at(node).tobytes() == law for node, law in known.laws.items()):
                yield from known.outcomes
                return
        looked = _KnownLaws(self._laws, self._target, self._request, tree, text)

        def walk(choices: Choices) -> Accepted:
            return walked(self._decoder.rule, tree, looked, choices, self._target.vocab_size, looked.failures)

        outcomes = []
        for one in enumerate_outcomes(walk):
            outcomes.append(one)
            yield one
        self._walks[tree].append(_Walks({node: law.tobytes() for node, law in looked.seen.items()}, outcomes))


class _KnownLaws(Laws):
    """A table's laws at a verified tree, each computed once for the text it follows, in whatever tree that stands.

    Args:
        known: those that are known, by the new tokens before them; gets others.
        target: the table.
        request: the whole request.
        tree: the verified tree.
        text: the new tokens before its root.

    Attributes:
        failures: as in `SequenceLaws`.
        seen: the laws that were asked for, by node.
    """

    def __init__(self, known: LawsAfter, target: TableTarget, request: Request, tree: TokenTree, text: Text) -> None:
        self._known, self._target, self._request, self._tree, self._text = known, target, request, tree, text
        self.failures: list[BaseException] = []
        self.seen: dict[int, FloatArray] = {}

    def at(self, node: int) -> FloatArray:
        check_node(self._tree, node)
        if node not in self.seen:
            self.seen[node] = self._after((*self._text, *self._tree.tokens[self._tree.path(node)[1:]].tolist()))
        return self.seen[node]

    def _after(self, text: Text) -> FloatArray:
        if text not in self._known:
            try:
                self._known[text] = law_after(
                    self._target, [*self._request.ids.tolist(), *text], self._request.sampling
                )
            except Exception as error:
                self.failures.append(error)
                raise
        return self._known[text]

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
    waiting: dict[int, Law] = defaultdict(dict, {0: {(): 1.0}})  # by length
    rounds = Rounds(decoder, request, laws)
    while waiting:
        for text, prob in waiting.pop(min(waiting)).items():  # all ways to a text are known once the shorter are done
            for one in rounds.after(text):
                outcomes += 1
                if outcomes > most:
                    return None
                accepting |= one.accepted > 0
                longer = text + one.tokens
                into = law if one.finished else waiting[len(longer)]
                into[longer] = into.get(longer, 0.0) + prob * one.prob
    return Enumerated(law, outcomes, accepting)
