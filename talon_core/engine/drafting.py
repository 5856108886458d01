"""Growing draft trees: asks the policies, asks the drafter, and checks both of them at every step."""

from collections.abc import Callable, Sequence
from time import perf_counter

import attrs
import numpy as np
from numpy.typing import NDArray

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.costs import MeasuredCosts
from talon_core.drafter import Drafter, Frontier
from talon_core.drawn import fault
from talon_core.engine.checked_drafter import checked_proposal
from talon_core.engine.faults import Faults
from talon_core.engine.growing import DraftLimits, Growing
from talon_core.errors import PluginError, blaming, is_whole, naming, written
from talon_core.policy import TreePolicy
from talon_core.rounds import Span
from talon_core.tree import FloatArray, IntArray, TokenTree
from talon_core.tree_arrays import floats, ints

__all__ = ["DraftLimits", "Drafted", "Wanted", "draft_tree", "draft_trees"]

_KINDS = {"iu": "integers", "f": "floating-point numbers"}
_NO_LOGP = "that is not a finite number of at most 0 (padding has token -1 and minus infinity)"
LOGP_SLACK = 1e-3  # a drafter's half-precision log-probability may come out slightly above 0


@attrs.frozen(eq=False)
class Drafted:
    """A finished tree and what it took.

    Attributes:
        tree: what is sent to the target.
        drafted: the tree as it was drafted, before `TreePolicy.finish` selected from it.
        draft_passes: forward passes of a draft model, shared by all that were drafted with it.
        spans: of the drafter, likewise, and of this sequence's policy, the checks included.
    """

    tree: TokenTree
    drafted: TokenTree
    draft_passes: int = 0
    spans: tuple[Span, ...] = ()


@attrs.frozen(eq=False)
class Wanted:
    """A tree that is to be drafted.

    Attributes:
        slot: of the sequence.
        policy: its own.
        root: its last committed token.
        limits: what bounds the tree besides its policy.
        choices: the policy's randomness.
    """

    slot: int
    policy: TreePolicy
    root: int
    limits: DraftLimits
    choices: Choices


def _checked(given: Candidates, growing: Growing, width: int, drafter: Drafter) -> Candidates:
    """A copy of the drafter's answer, if it keeps its contract."""

    def fail(what: str) -> PluginError:
        return PluginError(f"{naming('drafter', drafter)} {what}")

    if not isinstance(given, Candidates):
        raise fail(f"returned {type(given).__name__} from propose; it must propose one Candidates per frontier")
    with blaming("drafter", drafter, "propose"):
        frontier, law_of = given.frontier, given.law
        raw = {"tokens": given.tokens, "logp": given.logp, "path_logp": given.path_logp}
    for what, array in raw.items():
        kinds = "iu" if what == "tokens" else "f"
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
            dtype = getattr(array, "dtype", type(array).__name__)
            raise fail(f"returned {what} of type {dtype}; it must be a NumPy array of {_KINDS[kinds]}")
    tokens, logp, path_logp = ints(raw["tokens"]), floats(raw["logp"]), np.asarray(raw["path_logp"], np.float64)
    rows = len(growing.frontier)
    if tokens.ndim != 2 or tokens.shape != logp.shape or tokens.shape != path_logp.shape or len(tokens) != rows:
        raise fail(
            f"returned tokens, logp and path_logp of shapes {tokens.shape}, {logp.shape} and {path_logp.shape}; "
            f"all must be ({rows}, width), one row for each frontier node"
        )
    if not 1 <= tokens.shape[1] <= width:
        raise fail(f"returned {tokens.shape[1]} candidates per node; between 1 and {width} were asked for")
    if not np.array_equal(frontier, growing.frontier):
        raise fail("returned candidates for other nodes than the frontier's")
    vocab_size = growing.limits.vocab_size
    if tokens.min() < -1 or tokens.max() >= vocab_size:
        bad = int(tokens.min() if tokens.min() < -1 else tokens.max())
        raise fail(f"proposed token {bad}; the target's vocabulary has ids 0 to {vocab_size - 1}")
    padding, highest = tokens < 0, logp.max()  # NaN if there is one
    if not highest <= LOGP_SLACK or ((logp == -np.inf) != padding).any():
        raise fail(f"gave a candidate a log-probability {_NO_LOGP}")
    if highest > 0:  # clipped, so that no path scores above its parent's
        logp = floats(np.minimum(logp, 0.0))
    along = growing.tree.path_logp[growing.frontier][:, None] + logp
    if not np.array_equal(path_logp, along):
        _check_paths(path_logp, along, ~padding, fail)
    _check_rows(tokens, logp, fail)

    def law(row: int) -> FloatArray:
        if not is_whole(row) or not 0 <= row < rows:
            raise ValueError(f"there is no frontier row {written(row)}; there are rows 0 to {rows - 1}")
        with blaming("drafter", drafter, "law"):
            own = law_of(row)
        if not isinstance(own, np.ndarray) or own.dtype.kind != "f" or own.shape != (vocab_size,):
            what = f"shape {own.shape} and type {own.dtype}" if isinstance(own, np.ndarray) else type(own).__name__
            raise fail(
                f"gave a law of {what}; it must be a NumPy array of shape ({vocab_size},), the target's vocabulary, "
                "of floating-point numbers"
            )
        wrong = fault(own)
        if wrong is not None:
            raise fail(f"gave a law that {wrong}")
        return floats(own)

    return Candidates(growing.frontier, tokens, logp, floats(along), law)


def _check_paths(
    path_logp: FloatArray, along: FloatArray, real: NDArray[np.bool_], fail: Callable[[str], PluginError]
) -> None:
    """Refuse path scores that are not those of the parents with `logp` added, up to half-precision rounding."""
    if not (np.isfinite(path_logp) == real).all():
        raise fail(f"gave a candidate a path_logp {_NO_LOGP}")
    off = np.abs(path_logp[real] - along[real]) > _slack(along[real])
    if off.any():
        wrong = int(off.argmax())
        raise fail(
            f"gave a candidate a path_logp of {path_logp[real][wrong]:.6g} where its parent's and its logp add up to "
            f"{along[real][wrong]:.6g}; path_logp is tree.path_logp[frontier][:, None] + logp"
        )


def _check_rows(tokens: IntArray, logp: FloatArray, fail: Callable[[str], PluginError]) -> None:
    """Refuse rows that are not sorted, the padding at their end, or hold a token twice."""
    if tokens.shape[1] == 1:
        return
    rising = logp[:, 1:] > logp[:, :-1]
    if rising.any():
        before, after = logp[:, :-1][rising], logp[:, 1:][rising]
        wrong = ~(after - before <= _slack(after))
        if wrong.any():
            at = int(wrong.argmax())
            raise fail(
                f"gave a row in which a candidate of logp {after[at]:.6g} stands behind one of {before[at]:.6g}; "
                "rows are sorted by falling logp, padding at their end"
            )
    ranked = np.sort(tokens, axis=1)
    again = (ranked[:, 1:] == ranked[:, :-1]) & (ranked[:, 1:] >= 0)
    if again.any():
        raise fail(f"proposed token {ranked[:, 1:][again][0]} twice for one node; each token stands in a row once")


def _slack(logp: FloatArray) -> FloatArray:
    """What rounding to bfloat16 may do to numbers of this size, twice."""
    return 0.01 * (1.0 + np.abs(logp))


def draft_trees(
    wanted: Sequence[Wanted],
    drafter: Drafter,
    faults: Faults,
    measured: MeasuredCosts,
    now: Callable[[], float] = perf_counter,
) -> dict[int, Drafted]:
    """Draft one tree for each of some sequences, layer by layer, together.

    Args:
        wanted: each of another slot.
        drafter: has been told everything committed so far.
        faults: gets what fails: an error of a policy, or in what the drafter offers it, ends its own tree alone.
        measured: is told what layers take.
        now: the clock, in seconds.

    Returns:
        The finished trees, by slot.
    """
    growing: dict[int, Growing] = {}
    for tree in wanted:
        with faults.of([tree.slot]):
            growing[tree.slot] = Growing(tree.policy, tree.root, tree.limits, now)
    choices = {tree.slot: tree.choices for tree in wanted}
    passes = 0
    layers: dict[int, list[Span]] = {slot: [] for slot in growing}  # of the drafter
    while True:
        frontiers: list[Frontier] = []
        for slot, own in growing.items():
            with faults.of([slot]):
                if len(own.frontier) and slot not in faults:
                    frontiers.append(Frontier(slot, own.tree.copied(own.shown_draws), own.frontier.view(), own.width()))
        if not frontiers:
            break
        with faults.of([one.slot for one in frontiers]):
            started = now()
            with blaming("drafter", drafter, "propose"):
                proposed = drafter.propose([*frontiers])
            layer = Span("draft", started, now())
            for one in frontiers:
                layers[one.slot].append(layer)
            rows, width = sum(len(one.nodes) for one in frontiers), max(one.width for one in frontiers)
            measured.drafted(rows, width, layer.seconds)
            offered, count = checked_proposal(drafter, proposed, len(frontiers))
            passes += count
            for one, candidates in zip(frontiers, offered, strict=True):
                with faults.of([one.slot]):
                    own = growing[one.slot]
                    own.grow(_checked(candidates, own, one.width, drafter), choices[one.slot])
    drafted = {}
    for slot, own in growing.items():
        with faults.of([slot]):
            if slot not in faults:
                finished = own.finish()
                drafted[slot] = Drafted(finished, own.tree, passes, (*layers[slot], *own.spans))
    return drafted


def draft_tree(policy: TreePolicy, drafter: Drafter, root: int, limits: DraftLimits, choices: Choices) -> Drafted:
    """`draft_trees` for a single sequence, in slot 0.

    Raises:
        PluginError: if the policy or the drafter breaks its contract; the message names it.
    """
    faults = Faults()
    drafted = draft_trees([Wanted(0, policy, root, limits, choices)], drafter, faults, MeasuredCosts())
    if faults:
        raise faults[0]
    return drafted[0]
