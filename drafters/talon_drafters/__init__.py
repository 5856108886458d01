"""TALON's own drafters, a plugin like anybody's."""

from talon_core.drafter import DrafterSpec
from talon_core.hookspecs import hookimpl
from talon_drafters.draft_model import DraftModel
from talon_drafters.ngram import Ngram


@hookimpl
def talon_drafters() -> list[type[DrafterSpec]]:
    """The drafters of this distribution."""
    return [DraftModel, Ngram]
