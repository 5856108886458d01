"""The drafter `hydra`: heads that also read the tokens drafted before them; and its recipe."""

from talon_drafters.hydra.options import Hydra
from talon_drafters.hydra.recipe import HydraRecipe

__all__ = ["Hydra", "HydraRecipe"]
