"""Prompt lookup decoding: what followed the same few tokens earlier, as one chain."""

import attrs
from attrs.validators import ge, le

from talon_core.basics.option_checks import whole_number, yes_or_no
from talon_core.drafter import Drafter, DrafterSpec
from talon_core.target import Target


@attrs.frozen
class Pld(DrafterSpec):
    """Prompt lookup decoding: the tokens that followed an earlier place with the same last tokens (Saxena 2023).

    The last `longest` tokens of the text are looked up in the text before them, then fewer, down to `shortest`. What
    followed the first place that is found is proposed as it stands, `length` tokens of it or as many as there are: one
    chain, every token with probability 1. This is what transformers does with `prompt_lookup_num_tokens`, but for its
    `max_matching_ngram_size` of 2; Saxena's own code has 3, and wants a place that all `length` tokens follow. It is
    the published baseline: `ngram` looks every node up again, counts what followed at all places, and knows how sure a
    guess is. The policy that goes with it is `chain:length=10`.

    Attributes:
        longest: most tokens that are looked up.
        shortest: fewest tokens that are looked up.
        length: tokens of the continuation.
        last: take the last place in place of the first.
    """

    name = "pld"
    purpose = "look-ups"
    paper = "Saxena 2023"
    reads_texts = True
    longest: int = attrs.field(default=3, validator=[whole_number, ge(1), le(64)])
    shortest: int = attrs.field(default=1, validator=[whole_number, ge(1)])
    length: int = attrs.field(default=10, validator=[whole_number, ge(1), le(1000)])
    last: bool = attrs.field(default=False, validator=yes_or_no)

    def __attrs_post_init__(self) -> None:
        if self.shortest > self.longest:
            raise ValueError(f"shortest must be at most longest, {self.longest}, not {self.shortest}")

    def open(self, target: Target) -> Drafter:
        """A drafter over the target's vocabulary."""
        from talon_drafters.pld.drafter import open_pld

        return open_pld(self, target.vocab_size)
