"""The drafter `conflayers`: the target itself, without those of its layers that change least."""

from talon_drafters.conflayers.options import ConfLayers

__all__ = ["ConfLayers"]
