"""EAGLE-3."""

from typing import TYPE_CHECKING, Any

from talon_core.drafter import Drafter
from talon_core.runtime.embeddings import shared_embedding
from talon_drafters.eagle3 import Eagle3Recipe
from talon_drafters.eagle3.network import Eagle3Config, Eagle3Head
from talon_drafters.eagle3.training import Eagle3Training
from talon_drafters.heads.feature_drafter import FeatureDrafter
from talon_tests.trained_heads import Kind, Rounds, Trained

if TYPE_CHECKING:
    from talon_core.hf.target import HFTarget
    from talon_tests.pretended import Pretended


def drafter(model: Any, target: "HFTarget", pretended: "Pretended") -> Drafter:
    head = Eagle3Head(Eagle3Config(model.config, 48, model.config.vocab_size))
    pretended.move(head)
    return FeatureDrafter(head, shared_embedding(model), target.vocab_size, target.executor())


KIND = Kind(
    "eagle3",
    1,
    Rounds((1, 2, 3), drafter, copies=(1, 1, 1), done=(0, 82)),
    Trained(Eagle3Recipe, Eagle3Training, {"eagle3": {}}, epochs=12, counts_steps=False, last_state=False),
    shipped=(2.1, 25e6),
)
