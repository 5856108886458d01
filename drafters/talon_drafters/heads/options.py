"""Options that drafters with heads have in common."""

from typing import Any

import attrs
from attrs.validators import in_

FORMS = ("auto", "stored", "q8_0")
"""In which a head's matrices may be kept: see `talon_drafters.heads.weights.keep_weights`."""


def weights_option() -> Any:
    """The option that says in which form a head's matrices are kept."""
    return attrs.field(default="auto", validator=in_(FORMS))
