"""The drafter `ngram`: what followed the same words earlier in prompt and output."""

from talon_drafters.ngram.options import Ngram

__all__ = ["Ngram"]
