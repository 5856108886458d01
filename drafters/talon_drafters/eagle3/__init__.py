"""The drafter `eagle3`: a decoder layer over low, middle and high states of the target; and its recipe."""

from talon_drafters.eagle3.options import Eagle3
from talon_drafters.eagle3.recipe import Eagle3Recipe

__all__ = ["Eagle3", "Eagle3Recipe"]
