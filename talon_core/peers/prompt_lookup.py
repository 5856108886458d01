"""transformers' prompt lookup."""

import attrs
from attrs.validators import ge

from talon_core.basics.option_checks import whole_number
from talon_core.peer import Peer, PeerEngine, PeerSetting
from talon_core.peers.drafted_generate import drafted_generate


@attrs.frozen
class PromptLookup(Peer):
    """transformers' own `generate` with `prompt_lookup_num_tokens`: drafts what followed the same words before.

    Attributes:
        tokens: how many tokens are drafted in each round.
        longest: most tokens that are looked for at once.
    """

    name = "prompt-lookup"
    draws = True
    tokens: int = attrs.field(default=10, validator=[whole_number, ge(1)])
    longest: int = attrs.field(default=2, validator=[whole_number, ge(1)])

    def open(self, setting: PeerSetting) -> PeerEngine:
        return drafted_generate(setting, prompt_lookup_num_tokens=self.tokens, max_matching_ngram_size=self.longest)
