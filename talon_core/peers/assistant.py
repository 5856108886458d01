"""transformers' assisted generation."""

import attrs
from attrs.validators import ge, le

from talon_core.basics.option_checks import number, whole_number, yes_or_no
from talon_core.peer import Peer, PeerEngine, PeerSetting
from talon_core.peers.drafted_generate import drafted_generate

SCHEDULES = ("constant", "heuristic", "heuristic_transient")


@attrs.frozen
class Assistant(Peer):
    """transformers' own `generate` with `assistant_model`: a small model of the same vocabulary drafts a chain.

    Attributes:
        model: an embedded model, a folder, a GGUF file or a Hugging Face id.
        tokens: how many tokens are drafted in each round, at first.
        schedule: how that number changes: "constant", "heuristic" or "heuristic_transient".
        confidence: drafting stops where the small model is less sure than this.
        trust_remote_code: run code that the small model's folder brings.
    """

    name = "assistant"
    draws = True
    model: str
    tokens: int = attrs.field(default=20, validator=[whole_number, ge(1)])
    schedule: str = attrs.field(default="constant", validator=attrs.validators.in_(SCHEDULES))
    confidence: float = attrs.field(default=0.4, validator=[number, ge(0), le(1)])
    trust_remote_code: bool = attrs.field(default=False, validator=yes_or_no)

    def open(self, setting: PeerSetting) -> PeerEngine:
        from talon_core.models.loading import load_model
        from talon_core.runtime.embeddings import vocabulary_size

        draft, _ = load_model(self.model, trust_remote_code=self.trust_remote_code, dequantize=True)
        own, others = (vocabulary_size(each) for each in (setting.model, draft))
        if own != others:
            raise ValueError(
                f"the assistant '{self.model}' has a vocabulary of {others} tokens, and the model one of {own}; it "
                "must have the same"
            )
        draft = draft.to(device=setting.model.device, dtype=setting.model.dtype)
        draft.generation_config.num_assistant_tokens = self.tokens
        draft.generation_config.num_assistant_tokens_schedule = self.schedule
        draft.generation_config.assistant_confidence_threshold = self.confidence
        return drafted_generate(setting, assistant_model=draft)
