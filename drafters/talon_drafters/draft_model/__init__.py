"""The drafter `draft-model`: a smaller causal LM, or the target itself with layers left out."""

from talon_drafters.draft_model.options import DraftModel

__all__ = ["DraftModel"]
