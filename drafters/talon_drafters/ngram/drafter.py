"""The running side of `ngram`: a suffix automaton for each text, and laws that back off from match to match."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, islice
from math import inf, log
from operator import itemgetter, mul
from typing import TYPE_CHECKING

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Frontier, Proposed, Retriever
from talon_core.runtime.open_slots import OpenSlots
from talon_core.target import Behind
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_drafters.ngram.pairs import Pairs
from talon_drafters.ngram.suffix_automaton import Context, SuffixAutomaton

if TYPE_CHECKING:
    from talon_drafters.ngram.options import Ngram

# How fast longer matches become trustworthy; fitted together with the default of `discount`, see `Ngram`.
_EXPONENT = 0.4


@attrs.frozen(eq=False)
class _Shares:
    """A law: the share of each token that was seen, and the rest, which is spread evenly over the vocabulary."""

    seen: dict[int, float]
    rest: float


class _Text:
    """The text of one slot, and where each node of its current tree stands in it.

    Args:
        automaton: of the text; empty.
        vocab_size: the target's.

    Attributes:
        automaton: likewise.
        foreign: tokens of the text outside the vocabulary, never proposed.
        pairs: of its tokens.
    """

    def __init__(self, automaton: SuffixAutomaton, vocab_size: int) -> None:
        self.automaton = automaton
        self.foreign: set[int] = set()
        self._vocab_size = vocab_size
        self._contexts: dict[int, Context] = {}  # by node
        self.pairs = Pairs(vocab_size)
        self._new: list[int] = []  # tokens that were asked about before they have come
        self._behind: Context  # where one stands behind them

    def append(self, tokens: IntArray) -> None:
        """The text goes on; its last token is the next root."""
        outside = tokens[(tokens < 0) | (tokens >= self._vocab_size)]
        self.foreign.update(outside.tolist())
        self.automaton.extend(tokens.tolist())
        self.pairs.append(tokens)
        self._contexts = {0: self.automaton.context()}
        self._new, self._behind = [], self._contexts[0]

    def behind(self, tokens: list[int]) -> Context:
        """Where one stands once these tokens have come; it goes on from where it was asked last."""
        if self._new != tokens[: len(self._new)]:
            self._new, self._behind = [], self._contexts[0]
        for token in tokens[len(self._new) :]:
            self._new.append(token)
            self._behind = self.automaton.follow(self._behind, token)
        return self._behind

    def walk(self, tree: TokenTree, nodes: IntArray) -> list[Context]:
        """Where nodes stand in the text."""
        contexts = self._contexts
        if len(tree) == 1:  # a new tree, whether or not something was committed since the last one
            contexts = self._contexts = {0: contexts[0]}
        for node in nodes.tolist():
            path = []
            while node not in contexts:
                path.append(node)
                node = int(tree.parents[node])
            context = contexts[node]
            for node in reversed(path):
                context = contexts[node] = self.automaton.follow(context, int(tree.tokens[node]))
        return [contexts[node] for node in nodes.tolist()]


class NgramDrafter(Retriever):
    """Keeps one suffix automaton per slot, and where each node of the current tree stands in it.

    A node's place follows from its parent's by one step, so a layer costs the same however deep it is. The cost
    grows with the number of matches (`max_match` at most) and of continuations looked at, not with the text.
    """

    goes_on = True

    def __init__(self, options: "Ngram", vocab_size: int) -> None:
        self._options = options
        self._vocab_size = vocab_size
        discounts = (1 - (1 - options.discount) * length**-_EXPONENT for length in range(1, options.max_match + 1))
        self._discount_up_to = list(accumulate(discounts, mul, initial=1.0))
        self._texts = OpenSlots[_Text]()

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._texts[slot] = _Text(SuffixAutomaton(self._options.max_match), self._vocab_size)
        self._texts[slot].append(prompt)

    def commit(self, committed: Mapping[int, Committed]) -> None:
        for slot, new in committed.items():
            self._texts[slot].append(new.tokens)

    def close(self, slot: int) -> None:
        del self._texts[slot]

    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        return Proposed([self._propose(self._texts[one.slot], one) for one in frontiers])

    def likeliest(self, slot: int, tokens: Sequence[int]) -> float:
        text = self._texts[slot]
        context = text.behind([*tokens[1:]])
        if context.matched < self._options.min_match:
            return -inf
        offered = self._offered(self._shares(text, context), 1)
        return min(log(offered[0][1]), 0.0) if offered else -inf

    def guessable(self, slot: int, least: float) -> Behind:
        """Behind a single token that is the same, what has followed it once has little more than 1 - `discount`."""
        pairs = self._texts[slot].pairs
        once = 1.0 - self._options.discount + 1.0 / self._vocab_size
        return pairs.of_repeated() if least > log(once) else pairs.of_all()

    def look_up(self, frontier: Frontier) -> Sequence[Mapping[int, float]]:
        text = self._texts[frontier.slot]
        return [self._shares(text, context).seen for context in text.walk(frontier.tree, frontier.nodes)]

    def _propose(self, text: "_Text", frontier: Frontier) -> Candidates:
        laws = [self._shares(text, context) for context in text.walk(frontier.tree, frontier.nodes)]
        ranked = [self._offered(law, frontier.width) for law in laws]
        return Candidates.from_rows(frontier.tree, frontier.nodes, ranked, partial(self._law, laws))

    def _offered(self, law: _Shares, width: int) -> list[tuple[int, float]]:
        """The likeliest tokens with their probabilities, best first."""
        floor = law.rest / self._vocab_size
        probs = [(token, share + floor) for token, share in law.seen.items() if share + floor >= self._options.least]
        return sorted(probs, key=itemgetter(1), reverse=True)[:width]

    def _shares(self, known: "_Text", context: Context) -> _Shares:
        text, options, discount_up_to = known.automaton, self._options, self._discount_up_to
        count = text.count
        seen: dict[int, float] = {}
        rest = 1.0
        for matched, shorter, total, following in text.levels(context):
            if matched < options.min_match:
                break
            discount = discount_up_to[matched] / discount_up_to[shorter]
            unit = rest / total
            for token in islice(reversed(following), options.continuations):
                share = unit * (count(following[token]) - discount)
                seen[token] = seen.get(token, 0.0) + share
                rest -= share
        for token in known.foreign:
            rest += seen.pop(token, 0.0)
        return _Shares(seen, rest)

    def _law(self, laws: list[_Shares], row: int) -> FloatArray:
        seen, rest = laws[row].seen, laws[row].rest
        law = np.full(self._vocab_size, rest / self._vocab_size)
        law[list(seen)] += list(seen.values())
        return law
