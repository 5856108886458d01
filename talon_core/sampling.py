"""How the next token is chosen from the target's logits, with the processors of `transformers`."""

from collections.abc import Callable, Sequence

import attrs
from torch import Tensor

from talon_core.basics.numerals import fault_of_temperature

Processor = Callable[[Tensor, Tensor], Tensor]
"""`processor(ids (1, length) int64, scores (1, vocab)) -> scores (1, vocab)`, as `transformers.LogitsProcessor`."""


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
class Temperature:
    """The processor that divides scores by a temperature, as `transformers.TemperatureLogitsWarper` does.

    Attributes:
        temperature: above 0.
    """

    temperature: float

    def __call__(self, ids: Tensor, scores: Tensor) -> Tensor:
        return scores / self.temperature


def temperature_sampling(temperature: float, processors: Sequence[Processor] = ()) -> Sampling:
    """Sampling at a temperature after `processors`; temperature 0 is greedy."""
    fault = fault_of_temperature(temperature)
    if fault is not None:
        raise ValueError(f"temperature is {temperature}; {fault}")
    if temperature == 0:
        return Sampling(False, tuple(processors))
    return Sampling(True, (*processors, Temperature(temperature)), temperature)
