"""What drafters with heads have in common in their options."""

FORMS = ("auto", "stored", "q8_0")
"""In which a head's matrices may be kept: see `talon_drafters.heads.weights.keep_weights`."""
