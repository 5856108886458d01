"""The drafter `ngram`: what followed the same words earlier in prompt and output."""

from talon_drafters.ngram.drafter import Ngram

__all__ = ["Ngram"]
