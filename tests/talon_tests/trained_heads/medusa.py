"""Medusa."""

from typing import TYPE_CHECKING, Any

from talon_core.drafter import FINAL_STATE, Drafter
from talon_drafters.medusa import MedusaRecipe
from talon_drafters.medusa.drafter import MedusaDrafter
from talon_drafters.medusa.files import ReadMedusa
from talon_drafters.medusa.network import MedusaConfig, MedusaHeads
from talon_drafters.medusa.training import MedusaTraining
from talon_tests.trained_heads import Kind, Rounds, Trained

if TYPE_CHECKING:
    from talon_core.hf.target import HFTarget
    from talon_tests.pretended import Pretended


def drafter(model: Any, target: "HFTarget", pretended: "Pretended") -> Drafter:
    heads = MedusaHeads(MedusaConfig(48, model.config.vocab_size)).eval().requires_grad_(False)
    pretended.move(heads)
    return MedusaDrafter(ReadMedusa(heads, None), target)


KIND = Kind(
    "medusa",
    2,
    Rounds((FINAL_STATE,), drafter, copies=(1, 1, 1), done=(0, 36), waits=False),
    Trained(MedusaRecipe, MedusaTraining, {"medusa": {}}, epochs=30),
    shipped=(1.6, 8e6),
)
