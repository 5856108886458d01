"""The drafter that looks up what followed the same words earlier in prompt and output."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import accumulate, islice
from math import log
from operator import itemgetter, mul
from typing import Any

import attrs
import numpy as np
from attrs.validators import ge, gt, le, lt

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, DrafterSpec, Frontier, Proposed
from talon_core.target import Target
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_drafters.ngram.suffix_automaton import Context, SuffixAutomaton

# How fast longer matches become trustworthy; fitted together with the default of `discount`, see `Ngram`.
_EXPONENT = 0.4


@attrs.frozen
class Ngram(DrafterSpec):
    """Looks up what followed the longest matches earlier in prompt and output; needs no model and no training.

    At a node of the draft tree the text is the prompt, the output so far and the path from the root to the node. Its
    suffixes are looked up in prompt and output, longest match first. Going from `k - 1` matching tokens to `k`
    usually leaves fewer places, and what followed at these is counted: `N_k(c)` times the token `c`, `N_k` times
    anything, `T_k` different tokens. The law backs off from each match to the shorter one below it,

        P_k(c) = max(N_k(c) - D_k, 0) / N_k + D_k T_k / N_k * P_j(c),    D_k = d_(j+1) ... d_k,

    where `j < k` is the longest match that finds more places than `k` does; below the shortest match `P` is uniform
    over the vocabulary. This is interpolated absolute discounting; that a match answers for all lengths that find the
    same places, with the product of their discounts, is how the sequence memoizer integrates contexts out (Wood et
    al. 2009, "A stochastic memoizer for sequence data", with concentration 0). Unlike there, shorter matches count
    occurrences instead of the longer contexts that led to them, so that one count per state of a suffix automaton
    is enough. Discounts grow with the length, because a longer match more surely goes on as the last one:

        d_k = 1 - (1 - discount) * k ** -0.4

    If everything that matches was seen once and goes on alike, the defaults give that continuation probability 0.30
    after 1 matching token, 0.46 after 2, 0.70 after 5, 0.85 after 10 and 0.92 after 16; seen three times, 0.77 after 1
    and 0.95 after 10. Disagreeing shorter matches take their part. Only the `continuations` most recently seen tokens
    of each match are looked at, which keeps the time per node independent of the length of the text; the others' share
    goes to shorter matches. Of equally likely tokens the one of the longest, then most recent match comes first.

    `discount`, the exponent and `max_match` maximise the likelihood of 47,000 tokens that SmolLM2-135M-Instruct wrote
    after at least one matching token (answers about Python's manual, grade-school sums and general questions, half of
    them greedy, half at temperature 0.7); a bonus for recency did not help.
    There a unique continuation that was seen once came true in 26, 51, 70, 83 and 91% of cases after 1, 2, 5, 10 and 16
    matching tokens, and candidates given probabilities of 0.3 to 0.4, 0.6 to 0.7 and 0.9 to 0.95 in 27, 60 and 91%.

    With a chain policy this is prompt lookup decoding (Saxena 2023), except that the match is looked up again at every
    token of the chain.

    Attributes:
        max_match: longest match that is told apart, in tokens.
        min_match: shortest match that is used, in tokens.
        discount: what is taken from every count after one matching token, in (0, 1); more means less confidence.
        continuations: how many different tokens are looked at after each match, the most recent ones.
        least: the smallest probability of a continuation that is offered to the policy, in [0, 1]; the law keeps them
            all. Less likely ones, mostly guesses from a single matching token, cost a verified node more than they
            bring; 0 offers everything.
    """

    name = "ngram"
    max_match: int = attrs.field(default=16, validator=[ge(1), le(256)])
    min_match: int = attrs.field(default=1, validator=ge(1))
    discount: float = attrs.field(default=0.7, validator=[gt(0), lt(1)])
    continuations: int = attrs.field(default=64, validator=ge(1))
    least: float = attrs.field(default=0.25, validator=[ge(0), le(1)])

    def __attrs_post_init__(self) -> None:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match must be at most max_match, {self.max_match}, not {self.min_match}")

    @classmethod
    def rank_for(cls, model: Any) -> int | None:
        return 0

    def open(self, target: Target) -> "NgramDrafter":
        """A drafter over the target's vocabulary."""
        return NgramDrafter(self, target.vocab_size)


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
    """

    def __init__(self, automaton: SuffixAutomaton, vocab_size: int) -> None:
        self.automaton = automaton
        self.foreign: set[int] = set()
        self._vocab_size = vocab_size
        self._contexts: dict[int, Context] = {}  # by node

    def append(self, tokens: IntArray) -> None:
        """The text goes on; its last token is the next root."""
        outside = tokens[(tokens < 0) | (tokens >= self._vocab_size)]
        self.foreign.update(outside.tolist())
        self.automaton.extend(tokens.tolist())
        self._contexts = {0: self.automaton.context()}

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


class NgramDrafter(Drafter):
    """Keeps one suffix automaton per slot, and where each node of the current tree stands in it.

    A node's place follows from its parent's by one step, so a layer costs the same however deep it is. The cost
    grows with the number of matches (`max_match` at most) and of continuations looked at, not with the text.
    """

    def __init__(self, options: Ngram, vocab_size: int) -> None:
        self._options = options
        self._vocab_size = vocab_size
        discounts = (1 - (1 - options.discount) * length**-_EXPONENT for length in range(1, options.max_match + 1))
        self._discount_up_to = list(accumulate(discounts, mul, initial=1.0))
        self._texts: dict[int, _Text] = {}  # by slot

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

    def _propose(self, text: "_Text", frontier: Frontier) -> Candidates:
        laws = [self._shares(text, context) for context in text.walk(frontier.tree, frontier.nodes)]
        ranked = [self._offered(law, frontier.width) for law in laws]
        width = max(map(len, ranked), default=0) or 1
        tokens = np.full((len(laws), width), -1, dtype=np.int64)
        logp = np.full((len(laws), width), -np.inf)
        for row, offered in enumerate(ranked):
            if offered:
                tokens[row, : len(offered)] = [token for token, _ in offered]
                logp[row, : len(offered)] = [log(prob) for _, prob in offered]
        return Candidates(
            frontier=frontier.nodes,
            tokens=tokens,
            logp=logp,
            path_logp=frontier.tree.path_logp[frontier.nodes][:, None] + logp,
            law=partial(self._law, laws),
        )

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
