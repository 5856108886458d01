"""How the next token is chosen from the target's logits, with the processors of `transformers`."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from talon_core.basics.numerals import fault_of_temperature

if TYPE_CHECKING:
    from torch import Tensor

OF_TRANSFORMERS = "transformers.generation.logits_process"
"""The module of the processors that transformers makes."""

Processor = Callable[["Tensor", "Tensor"], "Tensor"]
"""`processor(ids (1, length) int64, scores (1, vocab)) -> scores (1, vocab)`, as `transformers.LogitsProcessor`."""


class ArrayProcessor(ABC):
    """A processor that needs no torch.

    Where the target's scores are NumPy arrays, and all processors of the request are of this kind, they are called with
    such arrays, the ids and the scores, and return one. Elsewhere they are called with tensors, as all others are.
    """

    @abstractmethod
    def __call__(self, ids: Any, scores: Any) -> Any:
        """Scores, shape `(1, vocab)`, of the kind that was given."""


def of_arrays(processors: Sequence[Processor]) -> list[ArrayProcessor] | None:
    """The processors, if all of them can be called with NumPy arrays."""
    found = [processor for processor in processors if isinstance(processor, ArrayProcessor)]
    return found if len(found) == len(processors) else None


@attrs.frozen
class Sampling:
    """How the next token is chosen from the target's logits.

    Attributes:
        do_sample: draw from the law; False takes the most likely token (temperature 0).
        processors: applied in this order, each to the scores of the one before; temperature, top-k, top-p and the
            like are processors too.
        temperature: what the processors make of it, for who wants to know.
    """

    do_sample: bool = False
    processors: tuple[Processor, ...] = ()
    temperature: float = 1.0


@attrs.frozen
class Temperature(ArrayProcessor):
    """The processor that divides scores by a temperature, as `transformers.TemperatureLogitsWarper` does.

    Attributes:
        temperature: above 0.
    """

    temperature: float

    def __call__(self, ids: Any, scores: Any) -> Any:
        return scores / self.temperature


def temperature_sampling(temperature: float, processors: Sequence[Processor] = ()) -> Sampling:
    """Sampling at a temperature after `processors`; temperature 0 is greedy."""
    fault = fault_of_temperature(temperature)
    if fault is not None:
        raise ValueError(f"temperature is {temperature}; {fault}")
    if temperature == 0:
        return Sampling(False, tuple(processors))
    return Sampling(True, (*processors, Temperature(temperature)), temperature)
