"""Lookahead decoding: the target makes n-grams of its own, in the passes that verify."""

import attrs
from attrs.validators import ge, le

from talon_core.basics.option_checks import whole_number, yes_or_no
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.target import Target


@attrs.frozen
class Lookahead(DrafterSpec):
    """Lookahead decoding (Fu et al., arXiv 2402.02057): n-grams out of Jacobi iteration in the target's own passes.

    A pool holds n-grams by their first token. After the last token of the text it offers what followed that token in
    up to `guesses` of them, the newest, `ngram - 1` tokens each. The law at a node is the share of these n-grams that
    go on with each token, so that the policy verifies all of them where its budget allows.

    Beside every tree a window of `window` columns and `ngram - 1` levels is run (section 3; our `ngram` is their N,
    `window` their W, `guesses` their G). Level 0 is a row of guesses at the tokens to come, tokens of the prompt in the
    beginning. Each pass adds a level: the target's most likely token after each column, also where the text is drawn.
    When all levels are there, each column with the token before it is an n-gram for the pool, level 0 goes, and the
    window moves on by one token. No node of the window is ever accepted; in each pass it costs
    `(window - 1) + (ngram - 2) * window` rows.

    Attributes:
        window: columns; 0 for none, so that the pool has nothing but n-grams of the text.
        ngram: tokens of an n-gram, the one that it is found by included.
        guesses: n-grams that are kept for each first token.
        text: also put the n-grams of prompt and output into the pool.
    """

    name = "lookahead"
    purpose = "look-ups"
    paper = "arXiv 2402.02057"
    window: int = attrs.field(default=3, validator=[whole_number, ge(0), le(64)])
    ngram: int = attrs.field(default=3, validator=[whole_number, ge(3), le(16)])
    guesses: int = attrs.field(default=4, validator=[whole_number, ge(1), le(64)])
    text: bool = attrs.field(default=True, validator=yes_or_no)

    def __attrs_post_init__(self) -> None:
        if not self.window and not self.text:
            raise ValueError("window is 0 and text is false, so that no n-gram would ever be found; set one of them")

    @property
    def reads_texts(self) -> bool:  # type: ignore[override]  # the pool of a text needs nothing else
        return not self.window

    def open(self, target: Target) -> Drafter:
        """A drafter over the target's vocabulary."""
        from talon_drafters.lookahead.drafter import open_lookahead

        return open_lookahead(self, target.vocab_size)
