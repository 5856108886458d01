"""Python that C asks between passes whether further ones are wanted."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from talon_core.target import Wanted

_WHOLE = ctypes.c_int64
CALLED = ctypes.CFUNCTYPE(_WHOLE, ctypes.POINTER(_WHOLE), _WHOLE)
"""`Asked` of `parts.h`."""


class Asked:
    """`wanted` as C calls it, with the tokens that each pass or round has brought.

    Args:
        wanted: it, which raises nothing; None where nobody is to be asked.

    Attributes:
        at: where it is, as long as this lives; null where nobody is to be asked.
    """

    def __init__(self, wanted: Wanted | None) -> None:
        self._wanted = wanted
        self._new: list[int] = []
        self._called = CALLED(self._call)
        self.at = None if wanted is None else ctypes.cast(self._called, ctypes.c_void_p).value

    def _call(self, tokens: Any, count: int) -> int:
        assert self._wanted is not None
        self._new += tokens[:count]
        return self._wanted(self._new)
