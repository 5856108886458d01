"""The drafter that looks up what followed the same words earlier in prompt and output."""

from typing import Any

import attrs
from attrs.validators import ge, gt, le, lt

from talon_core.basics.option_checks import number, whole_number
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.target import Target


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
    purpose = "look-ups"
    reads_texts = True
    max_match: int = attrs.field(default=16, validator=[whole_number, ge(1), le(256)])
    min_match: int = attrs.field(default=1, validator=[whole_number, ge(1)])
    discount: float = attrs.field(default=0.7, validator=[number, gt(0), lt(1)])
    continuations: int = attrs.field(default=64, validator=[whole_number, ge(1)])
    least: float = attrs.field(default=0.25, validator=[number, ge(0), le(1)])

    def __attrs_post_init__(self) -> None:
        if self.min_match > self.max_match:
            raise ValueError(f"min_match must be at most max_match, {self.max_match}, not {self.min_match}")

    @classmethod
    def rank_for(cls, model: Any) -> int | None:
        return 0

    def open(self, target: Target) -> Drafter:
        """A drafter over the target's vocabulary."""
        from talon_drafters.ngram.drafter import NgramDrafter

        return NgramDrafter(self, target.vocab_size)
