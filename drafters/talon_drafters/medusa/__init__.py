"""The drafter `medusa`: heads that each guess one token further ahead from the same state; and its recipe."""

from talon_drafters.medusa.options import Medusa
from talon_drafters.medusa.recipe import MedusaRecipe

__all__ = ["Medusa", "MedusaRecipe"]
