"""What drafters share that look up, once a round, how the text may go on."""

from talon_drafters.lookup.drafter import Lookup, LookupDrafter
from talon_drafters.lookup.trie import Trie

__all__ = ["Lookup", "LookupDrafter", "Trie"]
