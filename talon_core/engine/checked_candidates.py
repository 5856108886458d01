"""What a drafter has answered to one frontier, checked: whatever is wrong is an error that names the drafter."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.drafter import Frontier
from talon_core.drawn import fault
from talon_core.errors import PluginError, blaming, is_whole, naming, written
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import floats, ints

_KINDS = {"iu": "integers", "f": "floating-point numbers"}
_NO_LOGP = "that is not a finite number of at most 0 (padding has token -1 and minus infinity)"
LOGP_SLACK = 1e-3  # a drafter's half-precision log-probability may come out slightly above 0


def checked_candidates(
    drafter: object, given: object, tree: TokenTree, nodes: IntArray, vocab_size: int, width: int
) -> Candidates:
    """A copy of a drafter's answer to one frontier, if it keeps its contract.

    Args:
        drafter: whom errors name, itself or its options.
        given: the answer.
        tree: as in `Frontier`, and so are `nodes` and `width`.
        nodes: shape `(frontier,)`.
        vocab_size: the target's.
        width: the most candidates a node.

    Raises:
        PluginError: if it does not; the message names the drafter. A law is checked when it is asked for.
    """

    def fail(what: str) -> PluginError:
        return PluginError(f"{naming('drafter', drafter)} {what}")

    if not isinstance(given, Candidates):
        raise fail(f"returned {type(given).__name__} from propose; it must propose one Candidates per frontier")
    with blaming("drafter", drafter, "propose"):
        frontier, law_of = given.frontier, given.law
        raw_tokens, raw_logp, raw_paths = given.tokens, given.logp, given.path_logp
    for what, array, kinds in ("tokens", raw_tokens, "iu"), ("logp", raw_logp, "f"), ("path_logp", raw_paths, "f"):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
            dtype = getattr(array, "dtype", type(array).__name__)
            raise fail(f"returned {what} of type {dtype}; it must be a NumPy array of {_KINDS[kinds]}")
    tokens, logp, path_logp = ints(raw_tokens), floats(raw_logp), np.asarray(raw_paths, np.float64)
    rows = len(nodes)
    if tokens.ndim != 2 or tokens.shape != logp.shape or tokens.shape != path_logp.shape or len(tokens) != rows:
        raise fail(
            f"returned tokens, logp and path_logp of shapes {tokens.shape}, {logp.shape} and {path_logp.shape}; "
            f"all must be ({rows}, width), one row for each frontier node"
        )
    if not 1 <= tokens.shape[1] <= width:
        raise fail(f"returned {tokens.shape[1]} candidates per node; between 1 and {width} were asked for")
    if np.asarray(frontier).tolist() != nodes.tolist():
        given_nodes = written(np.asarray(frontier).tolist())
        raise fail(f"returned candidates for other nodes than the frontier's: {given_nodes}, not {nodes.tolist()}")
    lowest, top = tokens.item(tokens.argmin()), tokens.item(tokens.argmax())  # of so few sooner found than by `min`
    if lowest < -1 or top >= vocab_size:
        bad = lowest if lowest < -1 else top
        raise fail(f"proposed token {bad}; the target's vocabulary has ids 0 to {vocab_size - 1}")
    padding, highest = tokens < 0, logp.item(logp.argmax())  # NaN if there is one
    if not highest <= LOGP_SLACK or not _same(logp == -np.inf, padding):
        raise fail(f"gave a candidate a log-probability {_NO_LOGP}")
    if highest > 0:  # clipped, so that no path scores above its parent's
        logp = floats(np.minimum(logp, 0.0))
    along = tree.path_logp[nodes][:, None] + logp
    if not _same(path_logp, along):
        _check_paths(path_logp, along, ~padding, fail)
    if tokens.shape[1] > 1:
        _check_rows(tokens, logp, fail)

    def law(row: int) -> FloatArray:
        if not is_whole(row) or not 0 <= row < rows:
            raise ValueError(f"there is no frontier row {written(row)}; there are rows 0 to {rows - 1}")
        with blaming("drafter", drafter, "law"):
            own = law_of(row)
        return checked_law(drafter, own, vocab_size)

    return Candidates(nodes, tokens, logp, floats(along), law)


def checked_law(drafter: object, given: object, vocab_size: int) -> FloatArray:
    """A drafter's law of a next token, shape `(vocab,)`, float64.

    Args:
        drafter: whom errors name.
        given: what it has said.
        vocab_size: the target's.

    Raises:
        PluginError: if it is none; the message names the drafter.
    """
    if not isinstance(given, np.ndarray) or given.dtype.kind != "f" or given.shape != (vocab_size,):
        what = f"shape {given.shape} and type {given.dtype}" if isinstance(given, np.ndarray) else type(given).__name__
        raise PluginError(
            f"{naming('drafter', drafter)} gave a law of {what}; it must be a NumPy array of shape ({vocab_size},), "
            "the target's vocabulary, of floating-point numbers"
        )
    wrong = fault(given)
    if wrong is not None:
        raise PluginError(f"{naming('drafter', drafter)} gave a law that {wrong}")
    return floats(given)


def plainly_fine(
    offered: Sequence[object], asked: Sequence[Frontier], above: Sequence[FloatArray], vocab_size: int
) -> tuple[IntArray, FloatArray] | None:
    """A copy of a drafter's answers to several frontiers in one rectangle, if nothing about them needs a closer look.

    Args:
        offered: the answers.
        asked: the frontiers, as the engine knows them.
        above: log-probabilities of the paths to their nodes, shape `(frontier,)` each.
        vocab_size: the target's.

    Returns:
        As `rectangle` does; None where `checked_candidates` has to look at each answer, and perhaps refuses one.
    """
    fine = [given for given, one in zip(offered, asked, strict=True) if _is_plain(given, one)]
    if len(fine) < len(offered):
        return None
    candidates: list[Any] = fine
    tokens, logp = rectangle([one.tokens for one in candidates], [one.logp for one in candidates])
    _, path_logp = rectangle([one.tokens for one in candidates], [one.path_logp for one in candidates])
    agree = (path_logp == np.concatenate(above)[:, None] + logp).all() and ((logp == -np.inf) == (tokens == -1)).all()
    right = agree and tokens.min() >= -1 and tokens.max() < vocab_size and logp.max() <= 0
    if not right or (logp[:, 1:] > logp[:, :-1]).any() or len(repeated(tokens)):
        return None
    return tokens, logp


def _is_plain(given: object, asked: Frontier) -> bool:
    """Whether an answer is arrays of the usual types and of the right shapes."""
    if type(given) is not Candidates:
        return False
    arrays = given.tokens, given.logp, given.path_logp
    if not all(type(array) is np.ndarray for array in (given.frontier, *arrays)):
        return False
    shape = given.tokens.shape
    if len(shape) != 2 or shape[0] != len(asked.nodes) or not 1 <= shape[1] <= asked.width:
        return False
    if any(array.shape != shape for array in arrays) or [array.dtype.kind for array in arrays] != ["i", "f", "f"]:
        return False
    return bool(given.frontier.tolist() == asked.nodes.tolist())


def rectangle(tokens: Sequence[IntArray], logp: Sequence[FloatArray]) -> tuple[IntArray, FloatArray]:
    """Tokens and log-probabilities of several frontiers behind each other, padded to one width.

    Args:
        tokens: shape `(frontier, width)` each, of any width.
        logp: likewise.

    Returns:
        New arrays of shape `(rows, width)`, int64 and float64.
    """
    width, rows = max(one.shape[1] for one in tokens), sum(len(one) for one in tokens)
    if all(one.shape[1] == width for one in tokens):
        return np.concatenate(tokens, dtype=np.int64), np.concatenate(logp, dtype=np.float64)
    all_tokens, all_logp, first = np.full((rows, width), -1), np.full((rows, width), -np.inf), 0
    for own, score in zip(tokens, logp, strict=True):
        end = first + len(own)
        all_tokens[first:end, : own.shape[1]], all_logp[first:end, : own.shape[1]] = own, score
        first = end
    return all_tokens, all_logp


def _same(one: NDArray[Any], other: NDArray[Any]) -> bool:
    """Whether arrays of one shape and type hold the same bits, which is several times sooner known than of numbers."""
    return one.tobytes() == other.tobytes()


def _check_paths(
    path_logp: FloatArray, along: FloatArray, real: NDArray[np.bool_], fail: Callable[[str], PluginError]
) -> None:
    """Refuse path scores that are not those of the parents with `logp` added, up to half-precision rounding."""
    if not (np.isfinite(path_logp) == real).all():
        raise fail(f"gave a candidate a path_logp {_NO_LOGP}")
    off = np.abs(path_logp[real] - along[real]) > rounding(along[real])
    if off.any():
        wrong = int(off.argmax())
        raise fail(
            f"gave a candidate a path_logp of {path_logp[real][wrong]:.6g} where its parent's and its logp add up to "
            f"{along[real][wrong]:.6g}; path_logp is tree.path_logp[frontier][:, None] + logp"
        )


def _check_rows(tokens: IntArray, logp: FloatArray, fail: Callable[[str], PluginError]) -> None:
    """Refuse rows of several that are not sorted, the padding at their end, or hold a token twice."""
    rising = rises(logp)
    if rising.any():
        row, place = np.unravel_index(rising.argmax(), rising.shape)
        raise fail(
            f"gave a row in which a candidate of logp {logp[row, place + 1]:.6g} stands behind one of "
            f"{logp[row, place]:.6g}; rows are sorted by falling logp, padding at their end"
        )
    again = repeated(tokens)
    if len(again):
        raise fail(f"proposed token {again[0]} twice for one node; each token stands in a row once")


def repeated(tokens: IntArray) -> IntArray:
    """The tokens, but for padding, that stand in a row of these more than once; shape `(repeated,)`."""
    ranked = np.sort(tokens, axis=1)
    twice: IntArray = ranked[:, 1:][ranked[:, 1:] == ranked[:, :-1]]
    real: IntArray = twice[twice >= 0]
    return real


def rises(logp: FloatArray) -> NDArray[np.bool_]:
    """Where a candidate is likelier than the one before it in its row, by more than rounding explains.

    Args:
        logp: shape `(rows, width)`.

    Returns:
        Shape `(rows, width - 1)`.
    """
    rising = logp[:, 1:] > logp[:, :-1]
    if rising.any():
        before, after = logp[:, :-1][rising], logp[:, 1:][rising]
        rising[rising] = ~(after - before <= rounding(after))
    return rising


def rounding(logp: FloatArray) -> FloatArray:
    """What rounding to bfloat16 may do to numbers of this size, twice."""
    return 0.01 * (1.0 + np.abs(logp))
