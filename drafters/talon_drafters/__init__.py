"""TALON's own drafters, a plugin like anybody's."""

from talon_core.drafter import DrafterSpec
from talon_core.hookspecs import hookimpl
from talon_core.recipe import Recipe
from talon_drafters.draft_model import DraftModel
from talon_drafters.eagle import Eagle
from talon_drafters.eagle3 import Eagle3
from talon_drafters.hydra import Hydra
from talon_drafters.medusa import Medusa
from talon_drafters.ngram import Ngram
from talon_drafters.training.recipes import Eagle3Recipe, HydraRecipe, MedusaRecipe


@hookimpl
def talon_drafters() -> list[type[DrafterSpec]]:
    """The drafters of this distribution."""
    return [DraftModel, Eagle, Eagle3, Hydra, Medusa, Ngram]


@hookimpl
def talon_recipes() -> list[type[Recipe]]:
    """The training recipes of this distribution."""
    return [Eagle3Recipe, HydraRecipe, MedusaRecipe]
