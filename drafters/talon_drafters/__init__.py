"""TALON's own drafters, a plugin like anybody's: each is a folder, and stands here in its import and in the lists."""

from talon_core.drafter import DrafterSpec
from talon_core.hookspecs import hookimpl
from talon_core.recipe import Recipe
from talon_drafters.conflayers import ConfLayers
from talon_drafters.datastore import Datastore
from talon_drafters.draft_model import DraftModel
from talon_drafters.eagle import Eagle
from talon_drafters.eagle3 import Eagle3, Eagle3Recipe
from talon_drafters.hybrid import HybridSpec
from talon_drafters.hydra import Hydra, HydraRecipe
from talon_drafters.lookahead import Lookahead
from talon_drafters.medusa import Medusa, MedusaRecipe
from talon_drafters.ngram import Ngram
from talon_drafters.pld import Pld


@hookimpl
def talon_drafters() -> list[type[DrafterSpec]]:
    """The drafters of this distribution."""
    return [
        ConfLayers,
        Datastore,
        DraftModel,
        Eagle,
        Eagle3,
        HybridSpec,
        Hydra,
        Lookahead,
        Medusa,
        Ngram,
        Pld,
    ]


@hookimpl
def talon_recipes() -> list[type[Recipe]]:
    """The training recipes of this distribution."""
    return [
        Eagle3Recipe,
        HydraRecipe,
        MedusaRecipe,
    ]
