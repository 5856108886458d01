"""The interface of acceptance rules: which path through a verified tree is kept."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Set
from typing import TYPE_CHECKING, Any, ClassVar, Final, Literal, get_args

import attrs
import numpy as np

from talon_core.choices import Choices
from talon_core.errors import PluginError, blaming, naming, written
from talon_core.laws import Laws
from talon_core.tree import IntArray, TokenTree

if TYPE_CHECKING:
    from torch import Tensor


Lossless = bool | Literal["claimed", "measured"]
"""Whether the output has the target's law: True, False, or "claimed": a plugin says so, and nothing has shown it.

Of a peer's output (`talon_core.peer`) it is "measured": as far as outputs were compared, and no further."""

CLAIMED: Final = "claimed"
MEASURED: Final = "measured"


DrawnOrder = Literal["in-turn", "leaves-first"]
"""In which order drawn children are tested, as `AcceptanceRule.tests`."""


@attrs.frozen(eq=False)
class Accepted:
    """The outcome of a walk.

    Attributes:
        path: accepted nodes, the root's 0 first, each the parent of the next, shape `(path,)`, int64.
        token: the token that follows the last of them. The round emits the path's tokens, without the root's, and
            this one.
        features: where the drafter asked for them, the target's hidden states at these nodes, shape
            `(path, features)`; None from a rule, which knows of none.
        laws_on_host: as `Round.laws_on_host`; 0 from a rule, which does not count what it asks for.
        numbers: where the target has tested drawn children by itself, or has run the round ahead, how many numbers it
            has used; 0 from a rule.
    """

    path: IntArray
    token: int
    features: "Tensor | None" = None
    laws_on_host: int = 0
    numbers: int = 0


class AcceptanceRule(ABC):
    """Decides how far a verified tree is accepted, without changing the law of the output.

    The engine calls `walk` once per round and sequence. A rule asks for the target's law only at nodes that it
    visits: the law is warped by the user's processors with the true prefix of that node, when it is asked for. How
    the children of a node were drawn is in `tree.drawn`.
    """

    name: ClassVar[str]
    """What the rule is called in the registry: lower case, with dashes."""

    purpose: ClassVar[str] = ""
    """As `TreePolicy.purpose`."""

    paper: ClassVar[str] = ""
    """As `TreePolicy.paper`."""

    exact_for: ClassVar[frozenset[str]]
    """The kinds of trees (`TreePolicy.children`) for which the output keeps the target's law; {"any"} for all."""

    lossy: ClassVar[bool] = False
    """It changes the law of the output, whatever the tree; it takes trees of any kind, and only where the user says
    `lossy=True`."""

    looks_ahead: ClassVar[bool] = False
    """It asks for laws at nodes that it may reject in the end. A logits processor that remembers what it has seen
    would be misled, so the engine refuses those of transformers that do."""

    follows_argmax: ClassVar[bool] = False
    """At temperature 0 it follows the target's most likely token for as long as the tree holds it, and no longer.

    Where a target can do that by itself on its device, it is not asked then.
    """

    follows_target: ClassVar[bool] = False
    """Each token it accepts or emits is a draw from the target's law there, and it draws nothing else. So a seed gives
    the same text whatever the tree is, and the engine may verify a smaller one where sequences share a pass.

    Where it says `follows_argmax` too, and the target can draw by itself, it is not asked: the target goes as far as
    the tree holds what was drawn."""

    tests: ClassVar[DrawnOrder | None] = None
    """How it tests drawn children, where that and draws from the target's law are all that it does; None where it does
    anything else.

    - "in-turn": at a node each child c in the order of the draws is accepted with probability min(1, r(c) / q(c)). Here
      r is the target's law, and q the law of the draws. A rejection makes r norm((r - q)+), and where children were
      drawn without replacement, q loses c. Where all were rejected the token is drawn from r.
    - "leaves-first": a node is tested when all below it are rejected, as `talon_strategies.rules.traversal` writes it.

    Where the target can draw by itself on its device, it is not asked: the target makes the same tests with the same
    numbers.

    This, `follows_argmax` and `follows_target` are said of a walk: a class with a `walk` of its own inherits none of
    them."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        walks = _says(cls, "walk")
        for claim in ("follows_argmax", "follows_target", "tests"):
            if _says(cls, claim) > walks:  # of another walk, which a target may do in the rule's place
                setattr(cls, claim, getattr(AcceptanceRule, claim))

    @abstractmethod
    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        """Walk down from the root.

        Args:
            tree: the verified tree.
            laws: the target's warped law at each of its nodes.
            choices: the only randomness; independent of how the tree was made, and of all that policies and drafters
                were given.

        Returns:
            The accepted path and the token after it. The walk must end at a token for which `laws.ends` is true.
        """


def _says(cls: type[AcceptanceRule], name: str) -> int:
    """How far up its bases a class has an attribute from."""
    return next(place for place, base in enumerate(cls.__mro__) if name in vars(base))


def fault_of_claims(rule: "AcceptanceRule | type[AcceptanceRule]") -> str | None:
    """What is wrong with what a rule says of itself, as the end of a sentence about it; None if nothing is."""
    kinds: Any = getattr(rule, "exact_for", frozenset())  # a rule that does not say it is exact for nothing
    if not isinstance(kinds, Set | tuple | list) or not all(isinstance(kind, str) for kind in kinds):
        return f"has exact_for = {written(kinds)}; it must be a frozenset of kinds of trees, as frozenset({{'any'}})"
    for claim in ("lossy", "looks_ahead", "follows_argmax", "follows_target"):
        said: Any = getattr(rule, claim)
        if not isinstance(said, bool):
            return f"has {claim} = {written(said)}; it must be True or False"
    order: Any = getattr(rule, "tests", None)
    if order is not None and order not in get_args(DrawnOrder):
        return f"has tests = {written(order)}; it must be None or one of {', '.join(map(repr, get_args(DrawnOrder)))}"
    return None


def check_claims(rule: AcceptanceRule) -> None:
    """Refuse a rule whose class attributes say nothing that can be understood.

    Raises:
        PluginError: if there is one; the message names the rule.
    """
    with blaming("rule", rule, "its class attributes"):
        wrong = fault_of_claims(rule)
    if wrong is not None:
        raise PluginError(f"{naming('rule', rule)} {wrong}")


def descend(tree: TokenTree, laws: Laws, draw: Callable[[int], int]) -> Accepted:
    """Draw the next token at a node, go to the child that holds it, and so on until there is none.

    Args:
        tree: the verified tree.
        laws: says which tokens end the text.
        draw: `draw(node)` draws the token after `node`. If its law is the target's at that node, given all that was
            drawn before, the output keeps the target's law.
    """
    path = [0]
    while True:
        token = draw(path[-1])
        child = tree.child(path[-1], token)
        if child is None or laws.ends(token):
            return Accepted(np.array(path, dtype=np.int64), token)
        path.append(child)
