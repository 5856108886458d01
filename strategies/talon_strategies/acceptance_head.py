"""A small trained network that predicts whether a drafted token is accepted, from what a policy sees of it."""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np

from talon_core.errors import first_line
from talon_core.tree import FloatArray

FEATURES = ("probability", "second", "entropy", "depth")
"""What the network looks at, in this order: the token's probability after its parent; that of the second best candidate
there, 0 if there is none; the entropy of what is offered there, in nats, see `talon_strategies.entropy`; the token's
depth, 1 for the first one."""

TENSORS = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")

SHAPES = (
    f"a head holds hidden.weight of shape (hidden, {len(FEATURES)}), hidden.bias (hidden,), output.weight (1, hidden) "
    "and output.bias (1,), finite floating-point numbers, in a safetensors file"
)

_SAME = attrs.cmp_using(eq=np.array_equal)


@attrs.frozen
class AcceptanceHead:
    """A network with one hidden layer, ReLU, and the logistic function of its output.

    Attributes:
        source: the file that it was read from, as it was given.
        hidden_weight: shape `(hidden, 4)`, float64; a column for each of `FEATURES`.
        hidden_bias: shape `(hidden,)`.
        output_weight: shape `(hidden,)`.
        output_bias: of the output, before the logistic function.
    """

    source: str
    hidden_weight: FloatArray = attrs.field(eq=_SAME, hash=False, repr=False)
    hidden_bias: FloatArray = attrs.field(eq=_SAME, hash=False, repr=False)
    output_weight: FloatArray = attrs.field(eq=_SAME, hash=False, repr=False)
    output_bias: float = attrs.field(repr=False)

    def __str__(self) -> str:
        return self.source

    def accepted(self, features: Any) -> float:
        """The predicted probability that a token is accepted if those before it are.

        Args:
            features: `FEATURES` of the token, shape `(4,)`.
        """
        hidden = np.maximum(self.hidden_weight @ np.asarray(features, dtype=np.float64) + self.hidden_bias, 0.0)
        return float(0.5 * (1.0 + np.tanh(0.5 * (self.output_weight @ hidden + self.output_bias))))

    @classmethod
    def read(cls, file: str) -> "AcceptanceHead":
        """Read a head from a safetensors file with the tensors `TENSORS`.

        Raises:
            ValueError: if it cannot be read, or is no head; the sentence says what one is.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        try:
            tensors = load_file(file)
        except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"the head '{file}' cannot be read ({first_line(error)}); {SHAPES}") from error
        wrong = _fault(tensors)
        if wrong:
            raise ValueError(f"the file '{file}' is no head: {wrong}; {SHAPES}")
        weight, bias, out, last = (tensors[name].astype(np.float64) for name in TENSORS)
        return cls(file, weight, bias, out[0], float(last[0]))


def _fault(tensors: Mapping[str, Any]) -> str | None:
    """What is wrong with the tensors of a file; None if they are a head's."""
    if set(tensors) != set(TENSORS):
        return f"its tensors are {', '.join(sorted(tensors)) or 'none'}"
    hidden = tensors["hidden.weight"].shape[0] if tensors["hidden.weight"].ndim else 0
    for name, shape in zip(TENSORS, ((hidden, len(FEATURES)), (hidden,), (1, hidden), (1,)), strict=True):
        tensor = tensors[name]
        if tensor.shape != shape or not hidden:
            return f"{name} has shape {tensor.shape}"
        if tensor.dtype.kind != "f" or not np.isfinite(tensor).all():
            return f"{name} does not hold finite floating-point numbers alone"
    return None
