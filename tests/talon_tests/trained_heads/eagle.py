"""EAGLE."""

from typing import TYPE_CHECKING, Any

from transformers import LlamaConfig

from talon_core.drafter import FINAL_STATE, Drafter
from talon_core.runtime.embeddings import shared_embedding
from talon_drafters.eagle.network import EagleHead
from talon_drafters.heads.feature_drafter import FeatureDrafter
from talon_tests.trained_heads import LAYER, Kind, Rounds

if TYPE_CHECKING:
    from talon_core.hf.target import HFTarget
    from talon_tests.pretended import Pretended


def drafter(model: Any, target: "HFTarget", pretended: "Pretended") -> Drafter:
    config = LlamaConfig(**LAYER, vocab_size=model.config.vocab_size)
    head = EagleHead(config, 1, True, model.get_output_embeddings())
    pretended.move(head)
    return FeatureDrafter(head, shared_embedding(model), target.vocab_size, target.executor())


KIND = Kind("eagle", 0, Rounds((FINAL_STATE,), drafter, copies=(1, 1, 1), done=(0, 65)))
