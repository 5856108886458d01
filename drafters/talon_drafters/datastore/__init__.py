"""The drafter `datastore`: what followed the same words in a corpus of the user's own."""

from talon_drafters.datastore.options import Datastore

__all__ = ["Datastore"]
