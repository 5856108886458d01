"""A small trained network that predicts what is accepted, from what a policy sees of a draft."""

import json
import logging
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from talon_core.basics.logistic import log_sigmoid
from talon_core.errors import first_line, written
from talon_core.policy import SequenceInfo
from talon_core.tree import FloatArray

TENSORS = ("hidden.weight", "hidden.bias", "output.weight", "output.bias")

ORIGIN = "acceptance_head"
"""In the metadata of a file, where there is any: what the head was fitted on, in JSON, its `features` among it."""

LOGGER = logging.getLogger(__name__)

SHIPPED = Path(__file__).parent / "shipped" / "smollm2-135m-eagle3"
"""Heads for the embedded model and its shipped EAGLE-3 drafter; the README.md there tells how they were fitted."""

_SAME = attrs.cmp_using(eq=np.array_equal)


@attrs.frozen
class AcceptanceHead:
    """A network with one hidden layer, ReLU, and the logistic function of its output.

    Attributes:
        source: the file that it was read from, as it was given.
        hidden_weight: shape `(hidden, features)`, float64.
        hidden_bias: shape `(hidden,)`.
        output_weight: shape `(hidden,)`.
        output_bias: of the output, before the logistic function.
        origin: what it was fitted on, as `talon_strategies.fitting` writes it; empty where the file does not say.
    """

    source: str
    hidden_weight: FloatArray = attrs.field(eq=_SAME, hash=False, repr=False)
    hidden_bias: FloatArray = attrs.field(eq=_SAME, hash=False, repr=False)
    output_weight: FloatArray = attrs.field(eq=_SAME, hash=False, repr=False)
    output_bias: float = attrs.field(repr=False)
    origin: Mapping[str, Any] = attrs.field(factory=dict, eq=False, hash=False, repr=False)

    def __str__(self) -> str:
        return self.source

    def log_odds(self, features: Any) -> FloatArray:
        """The predicted log-odds.

        Args:
            features: what it looks at, shape `(..., features)`.

        Returns:
            Shape `(...)`, float64.
        """
        hidden = np.maximum(np.asarray(features, dtype=np.float64) @ self.hidden_weight.T + self.hidden_bias, 0.0)
        odds: FloatArray = hidden @ self.output_weight + self.output_bias
        return odds

    def accepted(self, features: Any) -> FloatArray:
        """The predicted probability, or share, of what is accepted; arguments and shape as for `log_odds`."""
        prob: FloatArray = np.exp(log_sigmoid(self.log_odds(features)))
        return prob

    @classmethod
    def read(cls, file: str, features: Sequence[str]) -> "AcceptanceHead":
        """Read a head from a safetensors file with the tensors `TENSORS`.

        Args:
            file: its path.
            features: what it must look at; the file may say so.

        Raises:
            ValueError: if it cannot be read, or is no such head; the sentence says what one is.
        """
        from safetensors import SafetensorError, safe_open

        shapes = (
            f"a head holds hidden.weight of shape (hidden, {len(features)}), hidden.bias (hidden,), output.weight "
            "(1, hidden) and output.bias (1,), finite floating-point numbers, in a safetensors file"
        )
        try:
            with safe_open(file, framework="np") as opened:
                tensors = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118 - it is no mapping
                origin = json.loads((opened.metadata() or {}).get(ORIGIN, "{}"))
        except (OSError, SafetensorError, LookupError, TypeError, ValueError) as error:
            raise ValueError(f"the head '{file}' cannot be read ({first_line(error)}); {shapes}") from error
        wrong = _fault(tensors, origin, features)
        if wrong:
            raise ValueError(f"the file '{file}' is no head: {wrong}; {shapes}")
        weight, bias, out, last = (tensors[name].astype(np.float64) for name in TENSORS)
        return cls(file, weight, bias, out[0], float(last[0]), origin)

    def to_bytes(self) -> bytes:
        """The head as a safetensors file, which `read` reads."""
        from safetensors.numpy import save

        last = np.array([self.output_bias])
        arrays = (self.hidden_weight, self.hidden_bias, self.output_weight[None], last)
        tensors = {name: np.ascontiguousarray(array) for name, array in zip(TENSORS, arrays, strict=True)}
        return save(tensors, {ORIGIN: json.dumps(self.origin)})


@cache
def shipped_head(policy: str, features: tuple[str, ...]) -> AcceptanceHead:
    """A policy's head for the embedded model and its shipped drafter.

    Args:
        policy: its name.
        features: what the head looks at.
    """
    return AcceptanceHead.read(str(SHIPPED / f"{policy}.safetensors"), features)


def given_head(given: Any, option: str, features: Sequence[str]) -> Any:
    """For the converter of an option that names a head's file; None stays as it is, and so does a head.

    Args:
        given: what the option is set to.
        option: what it is called.
        features: what the head must look at.

    Raises:
        ValueError: if it is no path, or as `AcceptanceHead.read` says.
    """
    if given is None or isinstance(given, AcceptanceHead):
        return given
    if not isinstance(given, str | Path):
        raise ValueError(  # noqa: TRY004 - as for every option
            f"{option} is {written(given)}; it must be the path of a safetensors file, or none"
        )
    return AcceptanceHead.read(str(given), features)


def _fault(tensors: Mapping[str, Any], origin: Any, features: Sequence[str]) -> str | None:
    """What is wrong with a file; None if it holds a head that looks at these features."""
    if set(tensors) != set(TENSORS):
        return f"its tensors are {', '.join(sorted(tensors)) or 'none'}"
    told = origin.get("features", [*features]) if isinstance(origin, dict) else None
    if told != [*features]:
        return f"it was fitted to look at {written(told)}, and not at {', '.join(features)}"
    hidden = tensors["hidden.weight"].shape[0] if tensors["hidden.weight"].ndim else 0
    for name, shape in zip(TENSORS, ((hidden, len(features)), (hidden,), (1, hidden), (1,)), strict=True):
        tensor = tensors[name]
        if tensor.shape != shape or not hidden:
            return f"{name} has shape {tensor.shape}"
        if tensor.dtype.kind != "f" or not np.isfinite(tensor).all():
            return f"{name} does not hold finite floating-point numbers alone"
    return None


def notice(policy: str, head: AcceptanceHead, sequence: SequenceInfo) -> None:
    """Say that a head was fitted on what another drafter offered, as far as drafters' names tell.

    Of each policy, file and drafter that is said once in a process.

    Args:
        policy: the name of the policy that predicts with it.
        head: it.
        sequence: that is to be served.
    """
    fitted = head.origin.get("drafter")
    if sequence.drafter and fitted and fitted != sequence.drafter:
        said_once(policy, head.source, fitted, sequence.drafter)


@cache
def said_once(policy: str, file: str, fitted: str, drafter: str) -> None:
    """Say what `notice` says, but not again."""
    LOGGER.warning(
        "%s: '%s' was fitted on the drafter '%s', and this one is '%s'; fit a head on a trace of it with "
        "python -m talon_strategies.fitting %s",
        policy,
        file,
        fitted,
        drafter,
        policy,
    )
