"""The drafter `lookahead`: n-grams that the target itself makes, by Jacobi iteration beside its trees."""

from talon_drafters.lookahead.options import Lookahead

__all__ = ["Lookahead"]
