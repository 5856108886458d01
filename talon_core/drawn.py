"""Drawn children: which of a node's children came out of a draw, from which law, and in which order."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import attrs
import numpy as np

from talon_core.basics import records
from talon_core.tree_arrays import FloatArray, IntArray, floats, ints


@attrs.frozen(eq=False)
class Drawn:
    """How children of one node were drawn. Its other children are fixed: chosen, whatever is drawn.

    A rule that tests a drawn child by p/q is exact only if the child follows the law that is written here. So whatever
    decides that a draw is made, or kept, must not look at what comes out of it, nor of later draws under the same node,
    nor at what stands below.

    Attributes:
        tokens: what was drawn, in this order, shape `(draws,)`, int64, at least one; with replacement a token may
            come several times, and is one node nevertheless.
        law: the law of the first draw, shape `(vocab,)`, float64, summing to 1. Empty in the records of rounds that are
            over: nobody tests these children again, and laws are large.
        replacement: every draw is from `law` and independent (i.i.d.). Otherwise each is from `law` without the
            tokens before it, renormalised.
        logp: by how much `path_logp` of each draw's node differs from its parent's, shape `(draws,)`, float64; by
            default the natural logarithm of its probability under `law`.

    Raises:
        ValueError: if nothing was drawn, the shapes do not fit, or a token could not be drawn.
    """

    tokens: IntArray = attrs.field(converter=ints)
    law: FloatArray = attrs.field(converter=floats)
    replacement: bool = False
    logp: FloatArray = attrs.field(converter=attrs.converters.optional(floats), default=None)

    def __attrs_post_init__(self) -> None:
        if self.tokens.ndim != 1 or self.law.ndim != 1 or not len(self.tokens):
            raise ValueError(
                f"drawn tokens and their law have one axis each, and there is at least one token; "
                f"got shapes {self.tokens.shape} and {self.law.shape}"
            )
        if self.logp is not None and self.logp.shape != self.tokens.shape:
            raise ValueError(f"logp has shape {self.logp.shape} for {len(self.tokens)} drawn tokens")
        if not len(self.law) and self.logp is not None:
            return  # a record
        if self.tokens.min() < 0 or self.tokens.max() >= len(self.law):
            raise ValueError(f"drawn tokens {self.tokens.tolist()} are not all among the law's {len(self.law)} tokens")
        prob = self.law[self.tokens]
        if not (prob > 0).all():
            raise ValueError(
                f"token {self.tokens[int((prob <= 0).argmax())]} cannot be drawn: its law gives it nothing"
            )
        if not self.replacement and len(set(self.tokens.tolist())) != len(self.tokens):
            raise ValueError(f"tokens {self.tokens.tolist()} were drawn without replacement, and one of them twice")
        if self.logp is None:
            object.__setattr__(self, "logp", floats(np.log(prob)))

    @property
    def nodes(self) -> IntArray:
        """The tokens that become nodes: each once, at its first draw; shape `(nodes,)`, int64."""
        return self.tokens[self.firsts]

    @property
    def firsts(self) -> IntArray:
        """At which draw each of `nodes` came out first, ascending, shape `(nodes,)`, int64."""
        if not self.replacement:
            return np.arange(len(self.tokens))  # they are all different
        first: dict[int, int] = {}
        for at, token in enumerate(self.tokens.tolist()):
            first.setdefault(token, at)
        return np.array([*first.values()], dtype=np.int64)

    def copied(self) -> "Drawn":
        """The same draws as an object of its own: whatever is done to it, this one stays as it is."""
        copy = object.__new__(Drawn)  # they were checked when this one was made
        for name in ("tokens", "law", "logp"):
            object.__setattr__(copy, name, getattr(self, name).view())
        object.__setattr__(copy, "replacement", self.replacement)
        return copy

    def as_dict(self) -> dict[str, Any]:
        """It as plain data, for JSON; `from_dict` reads it."""
        return records.fields_as_plain(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Drawn":
        """What `as_dict` gave, as it was.

        Raises:
            ValueError: if it is no such thing; the sentence names the field and the value.
        """
        found: Drawn = records.make(cls, data, READERS)
        return found

    def first(self, draws: int) -> "Drawn":
        """The first so many draws alone."""
        return attrs.evolve(self, tokens=self.tokens[:draws], logp=self.logp[:draws])

    def without_law(self) -> "Drawn":
        """What came out alone, as a record."""
        return attrs.evolve(self, law=NO_LAW)


def believed(law: FloatArray) -> FloatArray:
    """A law as it was told."""
    return law


class DrawnLater(Mapping[int, Drawn]):
    """The draws of a chain by node, each node's one child, whose laws are computed when somebody asks for them.

    Args:
        tokens: what was drawn under each node, from the root on.
        logp: their log-probabilities, as `Drawn.logp`.
        law: tells the law of the draw under a node, shape `(vocab,)`, float64, summing to 1.
        checked: looks at what that has told; raises an error, or returns it.
    """

    def __init__(
        self,
        tokens: Sequence[int],
        logp: Sequence[float],
        law: Callable[[int], FloatArray],
        checked: Callable[[FloatArray], FloatArray] = believed,
    ) -> None:
        self.law = law
        self._checked = checked
        self._drawn = [*zip(tokens, logp, strict=True)]
        self._asked: dict[int, Drawn] = {}

    def __getitem__(self, node: int) -> Drawn:
        if node not in self._asked:
            if node not in self:
                raise KeyError(node)
            self._asked[node] = self._with(node, self._checked(self.law(node)))
        return self._asked[node]

    def __contains__(self, node: object) -> bool:
        return node in range(len(self))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def __len__(self) -> int:
        return len(self._drawn)

    def without_laws(self) -> dict[int, Drawn]:
        """What came out alone, as records."""
        return {node: self._with(node, NO_LAW) for node in self}

    def _with(self, node: int, law: FloatArray) -> Drawn:
        token, logp = self._drawn[node]
        return Drawn([token], law, logp=[logp])


READERS: Mapping[str, records.Reader] = {
    "tokens": records.wholes,
    "law": records.numbers,
    "replacement": records.flag,
    "logp": records.numbers,
}

NO_LAW: FloatArray = floats(np.empty(0))


LAW_SLACK = 1e-6
"""How far from 1 a law may sum; far more than adding a large vocabulary in double precision does."""


def fault(law: FloatArray) -> str | None:
    """Why an array, shape `(vocab,)`, is no law, as the end of a sentence about it; None if it is one."""
    least, total = law.min(), law.sum()
    if np.isnan(total):
        return "holds NaN"
    if least < 0:
        return f"gives token {int(law.argmin())} {least:.6g}; no probability is negative"
    if abs(total - 1) > LAW_SLACK:
        return f"sums to {total:.6g}; a law sums to 1"
    return None


def without(law: FloatArray, tokens: Any) -> FloatArray:
    """A law given that none of some tokens comes out.

    Args:
        law: shape `(vocab,)`, float64.
        tokens: one token, or an array of them.

    Returns:
        The law, shape `(vocab,)`, summing to 1; all zeros if nothing else can come out.
    """
    rest = law.copy()
    rest[tokens] = 0.0
    total = rest.sum()
    if total > 0:
        rest /= total
    return rest


def sharpened(law: FloatArray, temperature: float) -> FloatArray:
    """A law, shape `(vocab,)`, at a temperature: in proportion to `law ** (1 / temperature)`."""
    if temperature == 1.0:
        return law
    some = np.flatnonzero(law > 0)  # often few of the vocabulary
    powers = (law[some] / law.max()) ** (1.0 / temperature)
    sharp: FloatArray = np.zeros_like(law)
    sharp[some] = powers / powers.sum()
    return sharp


@attrs.frozen
class ChildrenKind:
    """What trees of one kind may hold.

    Attributes:
        fixed: whether a node may have fixed children beside drawn ones, or alone.
        most: most draws under one node; None for any number.
        replacement: whether draws are with replacement; None where it makes no difference.
    """

    fixed: bool
    most: int | None
    replacement: bool | None = None


KINDS: Mapping[str, ChildrenKind] = {
    "deterministic": ChildrenKind(fixed=True, most=0),
    "sampled": ChildrenKind(fixed=True, most=0),
    "iid": ChildrenKind(fixed=False, most=None, replacement=True),
    "without-replacement": ChildrenKind(fixed=False, most=None, replacement=False),
    "hybrid": ChildrenKind(fixed=True, most=1),
    "sampled-chain": ChildrenKind(fixed=False, most=1),
}
"""Kinds of trees by how children came about (`TreePolicy.children`, `AcceptanceRule.exact_for`).

- "deterministic": fixed by the drafter's laws.
- "sampled": drawn, but the tree does not say how.
- "iid": all children of a node drawn independently from one law.
- "without-replacement": all drawn, none twice.
- "hybrid": fixed children, and at most one drawn from the law without them.
- "sampled-chain": one drawn child.
"""
