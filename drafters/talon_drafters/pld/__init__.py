"""The drafter `pld`: prompt lookup decoding, as it was published."""

from talon_drafters.pld.options import Pld

__all__ = ["Pld"]
