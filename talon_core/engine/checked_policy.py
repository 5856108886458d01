"""What a tree policy says of itself, checked: whatever is wrong is an error that names the policy."""

from collections.abc import Callable
from functools import cache, partial
from math import inf

from talon_core.basics.overriding import overrides
from talon_core.chains import Chains
from talon_core.drawn import KINDS, ChildrenKind
from talon_core.errors import PluginError, blaming, described, is_whole, naming, written
from talon_core.forest_learner import Together, asked_together
from talon_core.policy import SequenceInfo, TreePolicy
from talon_core.rounds import Round
from talon_core.source_chooser import SourceChooser
from talon_core.tree import FloatArray

MOST_NODES = 65_536
"""The largest budget: far beyond what pays, and small enough to compute with."""


def checked_budget(policy: TreePolicy, which: str = "budget") -> int:
    """A policy's `budget` or `draft_budget`.

    Raises:
        PluginError: if it is not a whole number of at least 1.
        ValueError: if it is more than `MOST_NODES`, which is what a user has asked for.
    """
    try:  # and no `blaming`, as it is asked for every tree
        budget = policy.budget if which == "budget" else policy.draft_budget
    except (PluginError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise PluginError(f"{naming('tree policy', policy)} raised {described(error, which)}") from error
    if type(budget) is int and 1 <= budget <= MOST_NODES:  # nearly always
        return budget
    if not is_whole(budget) or budget < 1:
        raise PluginError(
            f"{naming('tree policy', policy)} has a {which} of {written(budget)}; "
            "it must be a whole number of nodes, at least 1"
        )
    if budget > MOST_NODES:
        raise ValueError(
            f"{naming('tree policy', policy)} has a {which} of {budget} nodes; it must be at most {MOST_NODES}"
        )
    return int(budget)


def checked_budgets(policy: TreePolicy, reserved: tuple[int, int] | None = None) -> tuple[int, int]:
    """A policy's `budget` and `draft_budget`; raises as `checked_budget`.

    Args:
        policy: it.
        reserved: both as they were when memory was reserved: they may not have grown.
    """
    budgets = checked_budget(policy), checked_budget(policy, "draft_budget")
    if reserved is not None and (budgets[0] > reserved[0] or budgets[1] > reserved[1]):
        raise PluginError(
            f"{naming('tree policy', policy)} has a budget of {budgets[0]} nodes and a draft_budget of {budgets[1]}; "
            f"when its sequence began they were {reserved[0]} and {reserved[1]}, by which memory was reserved"
        )
    return budgets


def begun(policy: TreePolicy, sequence: SequenceInfo) -> TreePolicy:
    """The policy that serves a sequence.

    Raises:
        PluginError: if what `begin` returns is none of its kind; the message names the policy.
    """
    with blaming("tree policy", policy, "begin"):
        own = policy.begin(sequence)
    if not isinstance(own, TreePolicy):
        raise PluginError(
            f"{naming('tree policy', policy)} returned {written(own)} from begin; it must return the policy that "
            "serves the sequence, as attrs.evolve(self)"
        )
    for which in ("budget", "draft_budget"):
        most, taken = checked_budget(policy, which), checked_budget(own, which)
        if taken > most:
            raise PluginError(
                f"{naming('tree policy', policy)} returned a policy with a {which} of {taken} nodes from begin; its "
                f"own is {most}, by which memory was reserved"
            )
    return own


def checked_growers(policy: TreePolicy, children: str | None) -> tuple[Together, ...]:
    """The policy that serves a sequence, as one that is asked together with those of others; nothing if it cannot be.

    Args:
        policy: it.
        children: the kind of trees that its rule was found exact for; None for what the policy says of itself.

    Raises:
        PluginError: if it fails to say so; the message names it.
    """
    if isinstance(policy, SourceChooser):
        return ()
    own = checked_children(policy)
    with blaming("tree policy", policy, "learns_nothing"):
        able = asked_together(policy) if children in (None, own) else None
    return () if able is None else (able,)


def every_source() -> int | None:
    """All sources of a drafter are asked together, and one that has none is asked as it is."""
    return None


def source_of(policy: TreePolicy, sources: int) -> Callable[[], int | None]:
    """What says which of a drafter's sources is asked for a policy's next tree; None for all of them.

    Args:
        policy: it.
        sources: how many there are.

    Returns:
        A function that is called before each tree. It raises a PluginError that names the policy if what that says is
        none.
    """
    if sources and isinstance(policy, SourceChooser):
        return partial(_checked_source, policy, sources)
    return every_source


def _checked_source(policy: SourceChooser, sources: int) -> int | None:
    with blaming("tree policy", policy, "source"):
        given = policy.source()
    if given is not None and not (is_whole(given) and 0 <= given < sources):
        raise PluginError(
            f"{naming('tree policy', policy)} returned {written(given)} from source; it must be None, or a whole "
            f"number from 0 to {sources - 1}, as there are {sources} sources"
        )
    return None if given is None else int(given)


def _says(policy: TreePolicy, method: str) -> bool:
    """Whether a policy has a method of its own, in the place of that of `TreePolicy` which says that nobody knows."""
    return getattr(type(policy), method, None) is not getattr(TreePolicy, method)


def never_rests() -> int:
    """Nobody knows whether anything will be drafted in the next round."""
    return 0


def resting(policy: TreePolicy) -> Callable[[], int]:
    """What says in how many rounds to come a policy drafts nothing.

    Returns:
        A function that is called where a tree is the root alone. It raises a PluginError that names the policy if what
        that says is none.
    """
    return partial(_checked_rests, policy) if _says(policy, "rests") else never_rests


def _checked_rests(policy: TreePolicy) -> int:
    with blaming("tree policy", policy, "rests"):
        given = policy.rests()
    if not is_whole(given) or given < 0:
        raise PluginError(
            f"{naming('tree policy', policy)} returned {written(given)} from rests; it must be in how many rounds to "
            "come nothing is drafted, a whole number of at least 0"
        )
    return int(given)


def never_overlooks() -> float | None:
    """Nobody knows how likely a guess has to be."""
    return None


def overlooking(policy: TreePolicy) -> Callable[[], float | None]:
    """What says how likely a drafter's best guess has to be, for a policy to draft anything.

    Returns:
        A function that is called before a round. It raises a PluginError that names the policy if what that says is
        none.
    """
    return partial(_checked_overlooks, policy) if _says(policy, "overlooks") else never_overlooks


def _checked_overlooks(policy: TreePolicy) -> float | None:
    with blaming("tree policy", policy, "overlooks"):
        given: object = policy.overlooks()
    if given is None or (isinstance(given, float) and (given <= 0.0 or given == inf)):
        return given
    raise PluginError(
        f"{naming('tree policy', policy)} returned {written(given)} from overlooks; it must return a log-probability, "
        "a float of at most 0, or infinity where no guess is likely enough, or None"
    )


def no_chains() -> Chains | None:
    """Nobody knows what trees to come will be."""
    return None


def chaining(policy: TreePolicy) -> Callable[[], Chains | None]:
    """What says whether trees of rounds to come are chains.

    Returns:
        A function that is called before a round. It raises a PluginError that names the policy if what that says is
        none.
    """
    return partial(_checked_chains, policy) if _says(policy, "chains") else no_chains


def fixed_chaining(policy: TreePolicy) -> Callable[[], Chains | None]:
    """As `chaining`, of chains of fixed tokens alone."""
    said = chaining(policy)
    return said if said is no_chains else partial(_fixed, said)


def _fixed(said: Callable[[], Chains | None]) -> Chains | None:
    chains = said()
    return chains if chains is not None and chains.drawn is None else None


def _checked_chains(policy: TreePolicy) -> Chains | None:
    with blaming("tree policy", policy, "chains"):
        given = policy.chains()
    if given is not None and not isinstance(given, Chains):
        raise PluginError(
            f"{naming('tree policy', policy)} returned {written(given)} from chains; it must return Chains, or None "
            "where trees to come may be others"
        )
    return given


def follower(policy: TreePolicy) -> Callable[[FloatArray, int], None] | None:
    """What tells a policy of a tree that was run ahead; None for one that has to be asked for it.

    That is one without `chain_came`, and one of which a subclass has changed any other method, and that not.
    """
    cls = type(policy)
    if getattr(cls, "chain_came", None) is TreePolicy.chain_came:
        return None
    return None if _is_changed(cls) else partial(_follow, policy)


@cache
def _is_changed(cls: type[TreePolicy]) -> bool:
    """Whether a subclass has changed any method below the class that has `chain_came`."""
    methods = [name for name in dir(cls) if not name.startswith("__") and callable(getattr(cls, name))]
    return overrides(cls, methods, "chain_came")


def _follow(policy: TreePolicy, logp: FloatArray, nodes: int) -> None:
    with blaming("tree policy", policy, "chain_came"):
        policy.chain_came(logp, nodes)


def teller(policy: TreePolicy) -> Callable[[Round], None]:
    """What tells a policy what became of its trees; one that does not listen is not told.

    Returns:
        A function that is called after each round. It raises a PluginError that names the policy if that fails.

    Raises:
        PluginError: if it fails to say whether it listens; the message names the policy.
    """
    return partial(_tell, policy) if listens(policy) else _tell_nobody


def _tell(policy: TreePolicy, round_: Round) -> None:
    with blaming("tree policy", policy, "observe"):
        policy.observe(round_.copied())


def _tell_nobody(round_: Round) -> None:
    """Nobody listens."""


def listens(policy: TreePolicy) -> bool:
    """Whether a policy wants to be told of rounds.

    Raises:
        PluginError: if it fails to say so; the message names it.
    """
    with blaming("tree policy", policy, "observe"):
        return getattr(policy.observe, "__func__", None) is not TreePolicy.observe


def checked_kind(policy: TreePolicy) -> ChildrenKind:
    """What a policy's trees may hold.

    Raises:
        PluginError: if there is no such kind.
    """
    return KINDS[checked_children(policy)]


def checked_children(policy: TreePolicy) -> str:
    """A policy's `children`, a key of `KINDS`.

    Raises:
        PluginError: if there is no such kind.
    """
    with blaming("tree policy", policy, "children"):
        children = policy.children
    if not isinstance(children, str) or children not in KINDS:
        raise PluginError(
            f"{naming('tree policy', policy)} says that its children are {written(children)}; "
            f"kinds are {', '.join(KINDS)}"
        )
    return children
