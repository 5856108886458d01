"""What a trace has to teach: what was offered along the target's own text, and what of it the target went on with."""

from collections.abc import Callable, Iterator, Mapping, Sequence

import attrs
import numpy as np

from talon_core.trace.columns import NO_ROW, Rows, TextTrace
from talon_core.tree import FloatArray, IntArray
from talon_strategies import specdec_plus_plus, speckv, taps
from talon_strategies.entropy import OFFERED, entropies_of


@attrs.frozen(eq=False)
class Examples:
    """What was seen, and what came of it.

    Attributes:
        features: shape `(examples, features)`.
        accepted: the share that was accepted, in [0, 1], shape `(examples,)`.
        believed: what the drafter's own probabilities promise, shape `(examples,)`.
    """

    features: FloatArray
    accepted: FloatArray
    believed: FloatArray

    @classmethod
    def together(cls, some: Sequence["Examples"]) -> "Examples":
        """Several as one; at least one."""
        return cls(*(np.concatenate(arrays) for arrays in zip(*(attrs.astuple(one) for one in some), strict=True)))


Reader = Callable[[TextTrace, Rows, int | None], Examples]
"""`reader(text, its rows, bits of the target's weights)`."""


@attrs.frozen(eq=False)
class OnText:
    """The rows at nodes that stand on the target's own text, wherever a round may begin.

    Attributes:
        rows: of the trace, shape `(nodes,)`.
        depths: of their candidates, 1 below a root, likewise.
        comes: the token that the target went on with, likewise.
    """

    rows: IntArray
    depths: IntArray
    comes: IntArray

    @classmethod
    def of(cls, text: TextTrace, rows: Rows) -> "OnText":
        """Those of a text."""
        found = np.array([*_along(text, rows)], dtype=np.int64)
        return cls(*found.reshape(-1, 3).T)


def _along(text: TextTrace, rows: Rows) -> Iterator[tuple[int, int, int]]:
    new = text.ids[text.prompt_tokens :].tolist()
    for position in range(len(new)):
        row = rows.root(position)
        for depth, token in enumerate(new[position:], start=1):
            if row == NO_ROW:
                break
            yield row, depth, token
            (row,) = rows.find(position, [row], [token])


def of_candidates(text: TextTrace, rows: Rows, weight_bits: int | None) -> Examples:
    """For `taps`: each of the best candidates at each node on the text, and whether it is the one that came."""
    along = OnText.of(text, rows)
    tokens, logp = rows.offered(along.rows, OFFERED)
    known = tokens >= 0
    features = taps.examined(logp, along.depths)
    comes = tokens == along.comes[:, None]
    return Examples(features[known], comes[known].astype(np.float64), np.exp(logp[known]))


def of_best(text: TextTrace, rows: Rows, weight_bits: int | None) -> Examples:
    """For `specdec-plus-plus`: the best candidate at each node on the text, and whether it is the one that came."""
    along = OnText.of(text, rows)
    tokens, logp = rows.offered(along.rows, OFFERED)
    best = np.exp(np.column_stack([logp, np.full(len(logp), -np.inf)])[:, :2])
    features = np.column_stack([best, entropies_of(logp), along.depths.astype(np.float64)])
    known = tokens[:, 0] >= 0
    comes = tokens[:, 0] == along.comes
    return Examples(features[known], comes[known].astype(np.float64), best[known, 0])


def speckv_lengths() -> tuple[int, ...]:
    """The lengths of chains that `speckv` chooses from where the user names none."""
    return tuple(int(length) for length in speckv.LENGTHS.split(";"))


def of_chains(text: TextTrace, rows: Rows, weight_bits: int | None) -> Examples:
    """For `speckv`: each chain of each length, and the accepted share of the chains of each length in the round after.

    Chains that the end of the text cuts are left out: how much of them would have been accepted is not known.
    """
    lengths = speckv_lengths()
    new = text.ids[text.prompt_tokens :].tolist()
    chains = [_chain(rows, position, new, max(lengths)) for position in range(len(new))]
    code = speckv.compression_of(weight_bits)
    features, shares, believed = [], [], []
    for position, before in enumerate(chains):
        for length in lengths:
            after = position + min(before.accepted, length) + 1
            if not len(before.best) or after >= len(new):
                continue
            seen = speckv.signals(before.entropies[:length].tolist(), before.best[:length].tolist())
            for gamma in lengths:
                if after + gamma < len(new):
                    features.append((*seen, code, gamma))
                    shares.append(min(chains[after].accepted, gamma) / gamma)
                    believed.append(np.cumprod(before.best[:gamma]).sum() / gamma)
    shape = (len(features), len(speckv.FEATURES))
    return Examples(np.reshape(features, shape), np.array(shares, dtype=np.float64), np.array(believed, np.float64))


@attrs.frozen(eq=False)
class _Chain:
    """The drafter's best chain at a position: its entropies, probabilities, and how many of its tokens came."""

    entropies: FloatArray
    best: FloatArray
    accepted: int


def _chain(rows: Rows, position: int, new: Sequence[int], length: int) -> _Chain:
    found: list[int] = []
    row, accepted, on_text = rows.root(position), 0, True
    while row != NO_ROW and len(found) < length:
        token = int(rows.offered([row], 1)[0][0, 0])
        if token < 0:
            break
        found.append(row)
        place = position + len(found) - 1
        on_text = on_text and place < len(new) and new[place] == token
        accepted += on_text
        (row,) = rows.find(position, [row], [token])
    _, logp = rows.offered(found, OFFERED)
    return _Chain(entropies_of(logp), np.exp(logp[:, 0]) if found else np.empty(0), accepted)


@attrs.frozen
class Kind:
    """A policy's head.

    Attributes:
        features: what it looks at.
        read: its examples in a text.
        depth: how many layers a trace must have at each position.
    """

    features: tuple[str, ...]
    read: Reader
    depth: int = 1


KINDS: Mapping[str, Kind] = {
    "taps": Kind(taps.FEATURES, of_candidates),
    "speckv": Kind(speckv.FEATURES, of_chains, depth=max(speckv_lengths())),
    "specdec-plus-plus": Kind(specdec_plus_plus.FEATURES, of_best),
}
"""The policies whose heads can be fitted, by name."""
