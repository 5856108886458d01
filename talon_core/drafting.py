"""Growing draft trees: asks the policies, asks the drafter, and checks both of them at every step."""

from collections.abc import Sequence
from time import perf_counter

import attrs
import numpy as np

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.drafter import Drafter
from talon_core.drawn import fault
from talon_core.errors import PluginError, blaming, naming
from talon_core.growing import DraftLimits, Growing, checked_budget
from talon_core.policy import TreePolicy
from talon_core.tree import FloatArray, TokenTree, read_only

__all__ = ["DraftLimits", "Drafted", "checked_budget", "draft_tree", "draft_trees"]

_KINDS = {"iu": "integers", "f": "floating-point numbers"}
LOGP_SLACK = 1e-3  # a drafter's half-precision log-probability may come out slightly above 0


@attrs.frozen(eq=False)
class Drafted:
    """A finished tree and what it took.

    Attributes:
        tree: what is sent to the target.
        drafted: the tree as it was drafted, before `TreePolicy.finish` selected from it.
        draft_seconds: time in the drafter, of the whole batch.
        policy_seconds: time in this sequence's policy, the checks included.
    """

    tree: TokenTree
    drafted: TokenTree
    draft_seconds: float
    policy_seconds: float


def _checked(candidates: Candidates, growing: Growing, width: int, drafter: Drafter, choices: Choices) -> Candidates:
    """The drafter's answer, if it keeps its contract; read only, so that no policy can change what was checked.

    Its laws are copies, so that no drafter can change one after something was drawn from it. `choices` are those of
    the policy.
    """

    def fail(what: str) -> PluginError:
        return PluginError(f"{naming('drafter', drafter)} {what}")

    if not isinstance(candidates, Candidates):
        raise fail(f"returned {type(candidates).__name__} from propose; it must return one Candidates per tree")
    tokens, logp, path_logp = candidates.tokens, candidates.logp, candidates.path_logp
    rows = len(growing.frontier)
    for what, array, kinds in (("tokens", tokens, "iu"), ("logp", logp, "f"), ("path_logp", path_logp, "f")):
        if not isinstance(array, np.ndarray) or array.dtype.kind not in kinds:
            dtype = getattr(array, "dtype", type(array).__name__)
            raise fail(f"returned {what} of type {dtype}; it must be a NumPy array of {_KINDS[kinds]}")
    if tokens.ndim != 2 or tokens.shape != logp.shape or tokens.shape != path_logp.shape or len(tokens) != rows:
        raise fail(
            f"returned tokens, logp and path_logp of shapes {tokens.shape}, {logp.shape} and {path_logp.shape}; "
            f"all must be ({rows}, width), one row for each frontier node"
        )
    if not 1 <= tokens.shape[1] <= width:
        raise fail(f"returned {tokens.shape[1]} candidates per node; between 1 and {width} were asked for")
    if not np.array_equal(candidates.frontier, growing.frontier):
        raise fail("returned candidates for other nodes than the frontier's")
    if tokens.min() < -1 or tokens.max() >= growing.limits.vocab_size:
        bad = int(tokens.min() if tokens.min() < -1 else tokens.max())
        raise fail(f"proposed token {bad}; the target's vocabulary has ids 0 to {growing.limits.vocab_size - 1}")
    real = tokens >= 0
    finite = np.isfinite(path_logp) & (logp <= LOGP_SLACK)
    if not (finite == real).all() or np.isnan(logp).any():
        raise fail(
            "gave a candidate a log-probability that is not a finite number of at most 0 "
            "(padding has token -1 and minus infinity)"
        )
    if (logp > 0).any():  # clipped, so that no path scores above its parent's
        logp = np.minimum(logp, 0.0)
        path_logp = growing.tree.path_logp[growing.frontier][:, None] + logp

    def law(row: int) -> FloatArray:
        with blaming("drafter", drafter, "law"):
            own: FloatArray = candidates.law(row)
        if np.shape(own) != (growing.limits.vocab_size,):
            raise fail(f"gave a law of shape {np.shape(own)}; it must be ({growing.limits.vocab_size},), the target's")
        wrong = fault(own)
        if wrong is not None:
            raise fail(f"gave a law that {wrong}")
        copy = np.array(own, dtype=np.float64)
        copy.flags.writeable = False
        return copy

    return Candidates(
        frontier=read_only(growing.frontier),
        tokens=read_only(tokens),
        logp=read_only(logp),
        path_logp=read_only(path_logp),
        choices=choices,
        law=law,
    )


def draft_trees(
    policies: Sequence[TreePolicy],
    drafter: Drafter,
    roots: Sequence[int],
    limits: Sequence[DraftLimits],
    choices: Sequence[Choices],
    own: Sequence[Choices] | None = None,
) -> list[Drafted]:
    """Draft one tree per sequence.

    Args:
        policies: one per sequence.
        drafter: has been told everything committed so far.
        roots: the last committed token of each sequence.
        limits: what bounds each tree besides its policy.
        choices: for each policy its randomness, in `Candidates.choices`.
        own: the drafter's own randomness, for each sequence; by default that of the policies.

    Raises:
        PluginError: if a policy or the drafter breaks its contract; the message names it.
    """
    growing = [Growing(*of) for of in zip(policies, roots, limits, strict=True)]
    draft_seconds = 0.0
    while any(len(one.frontier) for one in growing):
        widths = [one.width() if len(one.frontier) else 1 for one in growing]
        started = perf_counter()
        trees, frontiers = [one.tree for one in growing], [read_only(one.frontier) for one in growing]
        with blaming("drafter", drafter, "propose"):
            proposed = drafter.propose(trees, frontiers, widths, choices if own is None else own)
        draft_seconds += perf_counter() - started
        if not isinstance(proposed, list | tuple) or len(proposed) != len(growing):
            count = f"{len(proposed)} items" if isinstance(proposed, list | tuple) else type(proposed).__name__
            raise PluginError(
                f"{naming('drafter', drafter)} returned {count} from propose; it must return a list of "
                f"{len(growing)} Candidates, one per tree"
            )
        for one, candidates, width, drawing in zip(growing, proposed, widths, choices, strict=True):
            if len(one.frontier):
                one.grow(_checked(candidates, one, width, drafter, drawing))
    return [Drafted(one.finish(), one.tree, draft_seconds, one.seconds) for one in growing]


def draft_tree(
    policy: TreePolicy,
    drafter: Drafter,
    root: int,
    limits: DraftLimits,
    choices: Choices,
) -> Drafted:
    """`draft_trees` for a single sequence."""
    return draft_trees([policy], drafter, [root], [limits], [choices])[0]
