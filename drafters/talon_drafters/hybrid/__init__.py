"""The drafter `hybrid`: what several drafters offer, models and look-ups, in one tree."""

from talon_drafters.hybrid.options import HybridSpec

__all__ = ["HybridSpec"]
