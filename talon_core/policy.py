"""The interface of tree policies: which candidates join the draft tree."""

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar

import attrs

from talon_core.candidates import Candidates
from talon_core.chains import Chains
from talon_core.choices import Choices
from talon_core.costs import Costs, MeasuredCosts
from talon_core.defaults import EXACT_RULE
from talon_core.drawn import Drawn
from talon_core.tree import FloatArray, IntArray, TokenTree

if TYPE_CHECKING:
    from talon_core.rounds import Round


@attrs.frozen(eq=False)
class Growth:
    """A policy's answer to one layer of candidates.

    Attributes:
        chosen: the candidates that join the tree, as indices into the flattened `(frontier, width)` rectangle, shape
            `(chosen,)`, integer, without repetition. They become the nodes `len(tree)`, `len(tree) + 1`, ... in this
            order.
        frontier: the nodes to draft from next, as indices into the grown tree; each node at most once a round. None
            (the default) means all nodes that have just joined; an empty array ends the drafting.
        drawn: children that were drawn, by frontier row, see `Candidates.draw`. They become the nodes after the chosen
            ones: row by row in the order of this mapping, each different token once, in the order of the draws.

    Choosing and drawing nothing ends the drafting.
    """

    chosen: IntArray
    frontier: IntArray | None = None
    drawn: Mapping[int, Drawn] = attrs.field(factory=dict)


@attrs.frozen(eq=False)
class SequenceInfo:
    """What a policy is told of the sequence that it is to serve.

    Attributes:
        prompt_length: tokens of the prompt.
        max_new_tokens: most tokens that will be emitted.
        temperature: of the request; 0 where it is greedy.
        costs: what this machine takes for passes; it may know nothing yet.
        machine: a place for what policies learn of the machine, not of the text: one for all sequences of an engine, at
            the same time and after each other. What is kept of a text goes into the policy that `begin` returns.
        drafter: the registered name of the drafter; empty where it is not known, or nothing drafts.
        weight_bits: `Target.weight_bits`: 8 or 4 of a target that is quantised; None where it is not known.
        sources: `Drafter.sources`: whom a `SourceChooser` can choose among.
        unread: tokens of the prompt that the drafter has drafted nothing after, so that it may have to read them when
            it is first asked (`Costs.catch_up`): all but the last, or fewer where a text is taken over.
        vocab_size: the target's; of no node are more candidates asked for. None where it is not known.
        runs_on: whether passes of rounds may be run ahead whose trees are said to be chains (`TreePolicy.chains`).
        draws_on: likewise, of chains whose tokens are drawn (`Chains.drawn`).
        rests_on: whether those of rounds may be in which nothing will be drafted (`TreePolicy.rests`).
    """

    prompt_length: int
    max_new_tokens: int
    temperature: float
    costs: Costs = attrs.field(factory=MeasuredCosts)
    machine: MutableMapping[str, Any] = attrs.field(factory=dict)
    drafter: str = ""
    weight_bits: int | None = None
    unread: int = 0
    sources: tuple[str, ...] = ()
    vocab_size: int | None = None
    runs_on: bool = False
    draws_on: bool = False
    rests_on: bool = False

    @property
    def greedy(self) -> bool:
        """Whether each token is the most likely one."""
        return self.temperature == 0

    def within(self) -> "SequenceInfo":
        """What a policy is told that another one asks: no pass is run ahead by what it says of rounds to come."""
        return attrs.evolve(self, runs_on=False, draws_on=False, rests_on=False)


class TreePolicy(ABC):
    """Decides the shape of one draft tree; the engine calls `width` and `grow` once per layer, then `finish`.

    A round goes like this. The tree is the root alone and the frontier is the root. The engine asks `width`, has
    the drafter propose that many next tokens for each frontier node, and hands them to `grow`, which says which of
    them join the tree and which nodes are drafted from next; and so on, until `width` is 0, `grow` chooses nothing, the
    frontier is empty, the tree has `draft_budget` nodes, or no deeper token could be used. `finish` then says what is
    sent to the target. Between rounds `observe` tells what became of it. Each sequence is served by a policy of its
    own, which `begin` makes.

    A policy sees small NumPy arrays, never a model. It cannot change what is decoded, only how fast: the engine
    checks every answer and refuses a wrong one with an error that names the policy. One thing it cannot see: whether a
    policy that draws kept its draws for what came out of them. `talon certify` does.

    Subclasses are `attrs.frozen` classes whose fields are their options; they set `name` and say their `budget`. What a
    policy remembers from round to round is in an object of its own, in a field with `init=False, eq=False` and a
    `factory`, which is made anew for each sequence.
    """

    name: ClassVar[str]
    """What the policy is called in the registry: lower case, with dashes."""

    purpose: ClassVar[str] = ""
    """What it is for, in a few words, under which `talon list` shows it with others; without, under "other"."""

    hooks: ClassVar[tuple[str, ...]] = ()
    """Further methods that its trees hang on: a subclass that overrides one grows other trees, and where trees of many
    texts are grown at once it is asked for its own."""

    paper: ClassVar[str] = ""
    """Where it was published, as "arXiv 2601.07353", or what program it is from; empty if it is new."""

    children: ClassVar[str] = "deterministic"
    """How children come about, a key of `talon_core.drawn.KINDS`: "deterministic" if the drafter's laws decide."""

    default_rule: ClassVar[str] = EXACT_RULE
    """The registered rule to use with these trees where the user names none."""

    budget: int
    """Most nodes of a finished tree, the root included, at most 65,536; an attrs field or a property."""

    @property
    def draft_budget(self) -> int:
        """Most nodes of the tree while it is drafted; more than `budget` where `finish` selects."""
        return self.budget

    def width(self, tree: TokenTree) -> int:
        """How many candidates per frontier node are wanted next; by default as many as there is room for.

        0 ends the drafting before the drafter is asked; at the root it makes the round one of plain decoding.
        """
        return self.draft_budget - len(tree)

    @abstractmethod
    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        """Choose which candidates join the tree, and which nodes are drafted from next.

        Args:
            tree: every node so far, parents first. `tree.path_logp` has shape `(nodes,)`: the drafter's natural
                log-probability of the path from the root. Read only.
            candidates: for each frontier node its best next tokens; `candidates.path_logp` has shape
                `(frontier, width)`. At least one is real, not padding.
            choices: the only randomness, for policies that draw. It tells nothing of what the rule will draw.

        Returns:
            What joins and what is drafted from next. An empty choice ends the drafting.
        """

    def finish(self, tree: TokenTree) -> TokenTree:
        """The tree to verify, at most `budget` nodes: by default everything that was drafted."""
        return tree

    def begin(self, sequence: SequenceInfo) -> "TreePolicy":
        """The policy that serves one sequence: by default one of equal options, with nothing remembered.

        Override it to choose options by the sequence, as `return attrs.evolve(self, temperature=...)`. Its budgets may
        be smaller than these, by which memory is reserved, and never larger.

        Args:
            sequence: what is known of it.
        """
        one: Any = self
        fresh: TreePolicy = attrs.evolve(one) if attrs.has(type(self)) else copy.deepcopy(self)
        return fresh

    def rests(self) -> int:
        """In how many rounds behind this one nothing will be drafted either, whatever this one and they bring.

        Asked where a round's tree is the root alone, also where nobody was asked for it (`overlooks`). The target may
        run the passes of such rounds ahead of them, which takes less time than one by one, and a policy is not asked
        for their trees, but told what became of them. By default 0: nobody knows.

        Returns:
            A whole number, at least 0; it may be more than there will be.
        """
        return 0

    def overlooks(self) -> float | None:
        """How likely a drafter's best guess after the root has to be, for anything to be drafted; None if not known.

        Asked before a round and before its pass, where no other sequence takes part. A drafter that need not run a pass
        for it says how likely its best guess is (`Drafter.likeliest`). Where that is less, a round's tree is the root
        alone: neither policy nor drafter is asked for it, and the passes of such rounds may be run ahead of them.
        `observe` tells what became of it. By default None.

        Returns:
            A natural log-probability by the drafter's own laws: less likely guesses are left out. Infinity where none
            is likely enough.
        """
        return None

    def chains(self) -> Chains | None:
        """That the trees of the next round, and of some behind it, are chains, whatever they bring; None if not.

        Asked before a round is drafted, in which no other sequence takes part. Passes of such rounds may be run
        ahead of them, which takes less time than one by one, as nothing else is done in between. When such a round
        comes the policy is asked for its tree all the same, and told what became of it: then it has to do what it has
        said, or what was run was in vain. By default None: nobody knows.

        A policy that also has `chain_came` is not asked for trees that were run ahead. What it says has to fit its
        budget, with the root.
        """
        return None

    def chain_came(self, logp: FloatArray, nodes: int) -> None:  # noqa: B027 - most say nothing of trees to come
        """The tree of the round that begins is one of the chains that were said; `observe` will tell what became of it.

        Called in the place of `width`, `grow` and `finish` where the round was run ahead; a policy that overrides it
        has to mean what `chains` says. Where a round was not run ahead it is asked for its tree, as always.

        Args:
            logp: natural log-probabilities of the candidates after the root and after each node that was drafted from,
                best first, at most as many as were asked for, minus infinity for padding, shape `(layers, width)`,
                float64.
            nodes: drafted tokens in the tree: the first candidate of each of so many layers, or what was drawn there,
                one behind the other.
        """

    def observe(self, round_: "Round") -> None:  # noqa: B027 - likewise
        """Called after each round with its tree, what was accepted and what the parts took, in seconds; a copy.

        Where sequences share a pass, the tree that was verified may be smaller than the one that `finish` returned.
        """
