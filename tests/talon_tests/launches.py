"""How many launches a pass is on a GPU, counted on a CPU."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch.utils._python_dispatch import _disable_current_modes

from talon_core.testing.tape import Tape

FREE = {"aten::_unsafe_view", "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}
"""Operations that launch nothing, besides those that only look at memory in another way."""


class Launches(Tape):
    """Counts what is done while it is entered and is a launch on a GPU; writes nothing down.

    A call of a `TapedBackend` is one, and so is a kernel of Triton's where `tape_launches` is in force.

    Attributes:
        counts: by the operation.
    """

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def note(self, function: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]) -> Any:
        name = function.name() if hasattr(function, "name") else function.__name__
        if not getattr(function, "is_view", False) and name.partition(".")[0] not in FREE:
            self.counts[name] += 1
        with _disable_current_modes():
            return function(*args, **kwargs)
