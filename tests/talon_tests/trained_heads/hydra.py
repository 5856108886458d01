"""Hydra."""

from typing import TYPE_CHECKING, Any

from talon_core.drafter import FINAL_STATE, Drafter
from talon_drafters.hydra import HydraRecipe
from talon_drafters.hydra.drafter import HydraDrafter
from talon_drafters.hydra.files import ReadHydra
from talon_drafters.hydra.network import HydraConfig, HydraHeads
from talon_drafters.hydra.training import HydraTraining
from talon_tests.trained_heads import LAYER, Kind, Rounds, Trained

if TYPE_CHECKING:
    from talon_core.hf.target import HFTarget
    from talon_tests.pretended import Pretended


def drafter(model: Any, target: "HFTarget", pretended: "Pretended") -> Drafter:
    """With a prefix layer."""
    heads = HydraHeads(HydraConfig(48, model.config.vocab_size, prefix=LAYER)).eval().requires_grad_(False)
    pretended.move(heads)
    return HydraDrafter(ReadHydra(heads, None), target)


KIND = Kind(
    "hydra",
    3,
    # tokens of a layer, and in front of them states
    Rounds((FINAL_STATE,), drafter, copies=(2, 1, 1), done=(0, 51)),
    Trained(
        HydraRecipe,
        HydraTraining,
        {"hydra": {}, "hydra-prefix": {"prefix": True}},
        epochs=12,
        anywhere={"prefix": True},
    ),
    shipped=(1.7, 8e6),
)
