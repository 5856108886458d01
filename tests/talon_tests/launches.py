"""How many launches a pass is on a GPU, counted on a CPU."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_iter

from talon_core.testing.tape import Tape

FREE = {"aten::_unsafe_view", "aten::empty", "aten::empty_like", "aten::empty_strided", "aten::new_empty"}
"""Operations that launch nothing, besides those that only look at memory in another way."""


def is_launch(function: Any, given: Any, made: Any) -> bool:
    """Whether an operation of torch is a launch.

    What may look at memory in another way is one where it has made memory: in inference mode other types, and what
    is brought into order, come as such operations.

    Args:
        function: the operation, or what stands for a kernel.
        given: its arguments.
        made: what came out of it.
    """
    if function.name().partition(".")[0] in FREE:
        return False
    before = {one.untyped_storage()._cdata for one in tree_iter(given) if isinstance(one, Tensor)}
    memory = [one.untyped_storage()._cdata for one in tree_iter(made) if isinstance(one, Tensor)]
    return not getattr(function, "is_view", False) or any(one not in before for one in memory)


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
        with _disable_current_modes():
            out = function(*args, **kwargs)
        if not hasattr(function, "name"):
            self.counts[function.__name__] += 1
        elif is_launch(function, (args, kwargs), out):
            self.counts[function.name()] += 1
        return out
