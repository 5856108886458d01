"""The drafter `eagle`: EAGLE-1 and EAGLE-2, a decoder layer over the target's last hidden state."""

from talon_drafters.eagle.options import Eagle

__all__ = ["Eagle"]
