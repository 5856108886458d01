"""Growing a tree: what the engine asks, what bounds it, and what it refuses from a policy or a drafter, in words."""

from itertools import count, pairwise
from time import perf_counter
from types import SimpleNamespace

import attrs
import numpy as np
import pytest
import torch

from talon_core.choices import SeededChoices
from talon_core.costs import MeasuredCosts
from talon_core.drafter import Proposed, Reading
from talon_core.drawn import Drawn, without
from talon_core.engine.checked_policy import checked_budget
from talon_core.engine.drafting import FEW_HEARD, DraftLimits, Wanted, draft_tree, draft_trees
from talon_core.engine.faults import Faults
from talon_core.engine.offers import Offers
from talon_core.errors import PluginError
from talon_core.policy import Growth, TreePolicy
from talon_core.testing import TableDrafter
from talon_core.tree import TokenTree
from talon_strategies import SpecInfer

VOCAB = 4
NOTHING = np.zeros(0, dtype=np.int64)
LIMITS = DraftLimits(VOCAB, max_depth=6)
DRAFTER = TableDrafter([[0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 1.0, 0.0]])


@attrs.frozen
class Policy(TreePolicy):
    """Does in each method what it is told to, and by default the sensible thing."""

    name = "hostile"
    budget: object = 7
    drafted: object = None
    wide: object = None
    grows: object = None
    finishes: object = None

    @property
    def draft_budget(self):
        return self.budget if self.drafted is None else self.drafted

    def width(self, tree):
        return 2 if self.wide is None else self.wide(tree)

    def grow(self, tree, candidates, choices):
        if self.grows is None:
            return Growth(candidates.best(min(2, self.draft_budget - len(tree))))
        return self.grows(tree, candidates)

    def finish(self, tree):
        return tree if self.finishes is None else self.finishes(tree)


@attrs.frozen
class Broken(Policy):
    """Its budget cannot even be asked for."""

    @property
    def draft_budget(self):
        raise ZeroDivisionError("no budget today")


def draft(policy, drafter=DRAFTER, limits=LIMITS, root=0):
    return draft_tree(policy, drafter, root, limits, SeededChoices(0))


def wanted(slot, policy, root=0, limits=LIMITS):
    return Wanted(slot, policy, root, limits, SeededChoices(0))


def draft_all(wanted, drafter):
    """The trees in the order of what was wanted; raises what fails."""
    faults = Faults()
    drafted = draft_trees(wanted, Offers(drafter), faults, MeasuredCosts())
    for error in faults.values():
        raise error
    return [drafted[one.slot] for one in wanted]


def raising(error):
    def method(*_):
        raise error

    return method


def twice_from_the_root(tree, candidates):
    return Growth(candidates.best(1), frontier=np.array([0]))


def twice_from_a_child(tree, candidates):
    return Growth(candidates.best(2), frontier=np.array([len(tree), len(tree)]))


def again_from_a_child(tree, candidates):
    return Growth(candidates.best(1), frontier=np.array([1]))


def chosen(value):
    return lambda tree, candidates: Growth(value)


def next_from(value):
    return lambda tree, candidates: Growth(candidates.best(1), frontier=value)


def tree_of(tokens, parents, path_logp=None):
    return lambda tree: TokenTree(
        tokens=tokens, parents=parents, path_logp=[0.0] * len(tokens) if path_logp is None else path_logp
    )


def law_of(row):
    return lambda tree, candidates: Growth(np.flatnonzero(candidates.law(row)[:1]))


def overwrite(tree, candidates):
    candidates.tokens[:] = 10**6
    return Growth(np.array([0]))


HOSTILE_POLICIES = {
    "budget of the wrong type": (Policy(budget="7"), "has a budget of '7'; it must be a whole number of nodes"),
    "budget of zero": (Policy(budget=0), "has a budget of 0; it must be a whole number of nodes, at least 1"),
    "fractional draft budget": (Policy(drafted=7.5), "has a draft_budget of 7.5"),
    "budget that raises": (Broken(), "raised ZeroDivisionError in draft_budget: no budget today"),
    "width that raises": (Policy(wide=raising(KeyError("w"))), "raised KeyError in width: 'w'"),
    "width of the wrong type": (Policy(wide=lambda tree: "wide"), "returned 'wide' from width; it must be a number"),
    "width of nothing": (Policy(wide=lambda tree: [None][0]), "returned None from width; it must be a number of cand"),
    "width that is not a number": (
        Policy(wide=lambda tree: float("nan")),
        "returned nan from width; it must be a number of candidates",
    ),
    "grow that raises": (Policy(grows=raising(RuntimeError("oh"))), "raised RuntimeError in grow: oh"),
    "grow that returns nothing": (
        Policy(grows=lambda *_: None),
        "returned NoneType from grow; it must return a Growth",
    ),
    "grow that returns indices": (Policy(grows=lambda *_: np.array([0])), "returned ndarray from grow"),
    "chosen None": (Policy(grows=chosen(None)), "it must be one-dimensional and hold integers"),
    "chosen ragged": (Policy(grows=chosen([[0], [0, 1]])), "it must be one-dimensional and hold integers"),
    "chosen by a tensor that learns": (
        Policy(grows=lambda *_: Growth(torch.zeros(1, requires_grad=True))),
        "raised RuntimeError in grow: Can't call numpy.. on Tensor that requires grad",
    ),
    "frontier by a tensor that learns": (
        Policy(grows=lambda tree, candidates: Growth([0], torch.ones(1, requires_grad=True))),
        "raised RuntimeError in grow: Can't call numpy.. on Tensor that requires grad",
    ),
    "budget of True": (Policy(budget=True), "has a budget of True; it must be a whole number of nodes"),
    "chosen of two axes": (Policy(grows=chosen([[0]])), r"as an array of shape \(1, 1\)"),
    "chosen scores": (Policy(grows=chosen([0.0])), "type float64; it must be one-dimensional and hold integers"),
    "chosen by a mask": (Policy(grows=chosen([True, False])), "type bool; it must be"),
    "chosen below 0": (Policy(grows=chosen([-1])), "chose candidate -1; there are candidates 0 to 1"),
    "chosen past the end": (Policy(grows=chosen([2])), "chose candidate 2; there are candidates 0 to 1"),
    "chosen past every integer": (Policy(grows=chosen(np.array([2**64 - 1], dtype=np.uint64))), "chose candidate -1"),
    "chosen twice": (Policy(grows=chosen([0, 0])), "chose the same candidate twice; each may join the tree once"),
    "too many nodes": (
        Policy(budget=2, grows=lambda tree, candidates: Growth(candidates.best(2))),
        "grew its tree to 3 nodes, the root included; its draft_budget is 2",
    ),
    "law of a row past the frontier": (Policy(grows=law_of(1)), "in grow: there is no frontier row 1; there are rows"),
    "law of a row below 0": (Policy(grows=law_of(-1)), "in grow: there is no frontier row -1; there are rows 0"),
    "law of no row": (Policy(grows=law_of("0")), "in grow: there is no frontier row '0'; there are rows 0 to 0"),
    "overwrites what was checked": (Policy(grows=overwrite), "raised ValueError in grow: .*read-only"),
    "overwrites the tree": (
        Policy(grows=lambda tree, candidates: tree.tokens.fill(0)),
        "raised ValueError in grow: .*read-only",
    ),
    "frontier of two axes": (Policy(grows=next_from([[1]])), r"returned a frontier of shape \(1, 1\)"),
    "frontier of fractions": (Policy(grows=next_from([0.5])), "and type float64, not node indices"),
    "frontier ragged": (Policy(grows=next_from([[1], []])), "returned a frontier of shape"),
    "frontier outside the tree": (Policy(grows=next_from([2])), "wants to draft from a node outside its tree of 2"),
    "frontier below 0": (Policy(grows=next_from([-1])), "wants to draft from a node outside its tree of 2"),
    "drafts twice from the root": (Policy(grows=twice_from_the_root), "wants to draft from a node twice"),
    "drafts twice at once": (Policy(grows=twice_from_a_child), "wants to draft from a node twice"),
    "drafts twice later": (Policy(grows=again_from_a_child), "wants to draft from a node twice"),
    "finish that raises": (Policy(finishes=raising(IndexError("7"))), "raised IndexError in finish: 7"),
    "finish that returns nodes": (
        Policy(finishes=lambda tree: [0]),
        "returned list from finish; it must return a TokenTree",
    ),
    "finish keeps too many": (
        Policy(budget=2, drafted=7),
        "finished a tree of 7 nodes, the root included; its budget is 2",
    ),
    "finish changes the root": (
        Policy(finishes=tree_of([1], [-1])),
        "changed the root's token from 0 to 1",
    ),
    "finish drops the root": (Policy(finishes=lambda tree: tree.keep([1])), "raised ValueError in finish: the root"),
    "unclosed tree": (
        Policy(finishes=lambda tree: tree.keep([0, len(tree) - 1])),
        "raised ValueError in finish: node . is kept without its parent",
    ),
    "child before its parent": (
        Policy(finishes=tree_of([0, 1, 2], [-1, 2, 0])),
        "raised ValueError in finish: node 1 has parent 2: a parent must stand before its child",
    ),
    "token past the vocabulary": (Policy(finishes=tree_of([0, VOCAB], [-1, 0])), "token outside the vocabulary of 4"),
    "token below 0": (Policy(finishes=tree_of([0, -1], [-1, 0])), "token outside the vocabulary of 4"),
    "NaN scores": (
        Policy(finishes=tree_of([0, 1], [-1, 0], [0.0, np.nan])),
        "finished a tree with a score that is not finite",
    ),
    "too deep": (
        Policy(budget=20, finishes=tree_of([0] * 8, range(-1, 7))),
        "finished a tree deeper than 6, the deepest that can be emitted",
    ),
}


@pytest.mark.parametrize("case", HOSTILE_POLICIES)
def test_a_hostile_policy_is_named_with_what_it_did(case):
    policy, complaint = HOSTILE_POLICIES[case]
    with pytest.raises(PluginError, match=rf"^tree policy 'hostile' \({__name__}\.\w+\) .*{complaint}"):
        draft(policy)


def kinded(kind, **methods):
    """A policy whose trees are of some kind."""
    return attrs.frozen(type("Kinded", (Policy,), {"children": kind, "__module__": __name__}))(**methods)


def draws(*of, chosen=(), row=0, **fields):
    """Chooses the candidates `chosen` and draws `of` for a frontier row, from DRAFTER's law if no other is given."""

    def grow(tree, candidates):
        law = candidates.law(0) if row else candidates.law(row)
        return Growth(np.array(chosen, dtype=np.int64), drawn={row: Drawn(of, **{"law": law, **fields})})

    return grow


def returned(drawn):
    return lambda tree, candidates: Growth(NOTHING, drawn=drawn)


def both(tree, candidates):
    """The best candidate, and a draw from what is left."""
    law = without(candidates.law(0), candidates.tokens[0, 0])
    return Growth(np.array([0]), frontier=[], drawn={0: Drawn([int(law.argmax())], law)})


def once(grow):
    """Grows one layer only."""
    return lambda tree, candidates: grow(tree, candidates) if len(tree) == 1 else Growth(NOTHING)


def redrawn(**changes):
    """Finishes the tree with its root's draws changed."""

    def finish(tree):
        drawn = {**tree.drawn, 0: attrs.evolve(tree.drawn[0], **changes)}
        return TokenTree(tree.tokens, tree.parents, tree.path_logp, drawn)

    return finish


def undrawn(tree):
    return TokenTree(tree.tokens, tree.parents, tree.path_logp)


def moved(tree):
    """What was drawn under the root now stands under its first child as well."""
    drawn = tree.drawn[0]
    return tree.extend(drawn.nodes, np.ones(len(drawn.nodes), dtype=np.int64), np.zeros(len(drawn.nodes)), {1: drawn})


LAW = DRAFTER.law_after([0])  # .7, .1, .1, .1
ONE = once(draws(0))
TWO = once(draws(0, 3))
HOSTILE_DRAWERS = {
    "unknown kind": (kinded("wild"), "says that its children are 'wild'; kinds are deterministic, sampled, iid, with"),
    "kind that is no text": (kinded(["iid"]), r"says that its children are \['iid'\]; kinds are"),
    "deterministic and draws": (Policy(grows=ONE), "drew 1 children of one node; its children are deterministic"),
    "sampled and says how": (kinded("sampled", grows=ONE), "drew 1 children of one node; its children are sampled"),
    "two draws in a hybrid group": (kinded("hybrid", grows=TWO), "drew 2 children of one node; its children are hybr"),
    "two draws in a chain": (kinded("sampled-chain", grows=TWO), "drew 2 children of one node; its children are samp"),
    "fixed in a chain": (kinded("sampled-chain", grows=both), "chose fixed candidates; its children are sampled-chain"),
    "fixed beside i.i.d.": (kinded("iid"), "chose fixed candidates; its children are iid, so all of them are drawn"),
    "fixed beside others": (kinded("without-replacement", grows=both), "chose fixed candidates; .* so all of them are"),
    "i.i.d. without replacement": (kinded("iid", grows=TWO), "drew without replacement; its children are iid"),
    "without replacement, but with": (
        kinded("without-replacement", grows=once(draws(0, 0, replacement=True))),
        "drew with replacement; its children are without-replacement",
    ),
    "law of another vocabulary": (
        kinded("iid", grows=draws(0, law=[0.5, 0.5])),
        "drew from a law of 2 tokens; the vocabulary has 4",
    ),
    "law of less than 1": (
        kinded("iid", grows=draws(0, law=LAW / 2)),
        "drew from a law that sums to 0.5; a law sums to 1",
    ),
    "law below 0": (
        kinded("iid", grows=draws(0, law=[1.5, -0.5, 0, 0])),
        "drew from a law that gives token 1 -0.5;",
    ),
    "law of NaN": (
        kinded("iid", grows=draws(0, law=[1.0, np.nan, 0, 0])),
        "drew from a law that holds NaN",
    ),
    "law that gives a fixed child something": (
        kinded("hybrid", grows=draws(3, chosen=[0])),
        "drew from a law that gives token 0, a fixed child of the same node, 0.7; take fixed children out of the law",
    ),
    "score that is not finite": (
        kinded("iid", grows=draws(0, logp=[-np.inf])),
        "gave a drawn child a score that is not finite",
    ),
    "row past the frontier": (kinded("iid", grows=draws(0, row=1)), "drew for frontier row 1; there are rows 0 to 0"),
    "row below 0": (kinded("iid", grows=draws(0, row=-1)), "drew for frontier row -1; there are rows 0 to 0"),
    "draws as a list": (kinded("iid", grows=returned([])), "returned draws as list; they are a mapping from frontier"),
    "draws that are none": (
        kinded("iid", grows=returned({0: [1]})),
        "returned a draw 0: list; it must be a frontier ro",
    ),
    "row that is no number": (
        kinded("iid", grows=returned({"0": Drawn([0], LAW)})),
        "returned a draw '0': Drawn; it must be a frontier row and a Drawn",
    ),
    "row that is no number, but False": (
        kinded("iid", grows=returned({False: Drawn([0], LAW)})),
        "returned a draw False: Drawn; it must be a frontier row and a Drawn",
    ),
    "more draws than its budget": (
        kinded("without-replacement", budget=2, grows=TWO),
        "grew its tree to 3 nodes, the root included; its draft_budget is 2",
    ),
    "impossible draw": (
        kinded("iid", grows=draws(1, law=np.eye(4)[0])),
        "raised ValueError in grow: token 1 cannot be",
    ),
    "finish forgets the draws": (
        kinded("without-replacement", grows=TWO, finishes=undrawn),
        "finished a tree that does not say how its children were drawn; use TokenTree.keep",
    ),
    "finish forgets a chain's": (
        kinded("sampled-chain", grows=ONE, finishes=undrawn),
        "finished a tree that does not say how its children were drawn",
    ),
    "finish changes the law": (
        kinded("without-replacement", grows=TWO, finishes=redrawn(law=[0.25] * 4)),
        "finished a tree with draws that it had not made; select nodes with TokenTree.keep",
    ),
    "finish changes the order": (
        kinded("without-replacement", grows=TWO, finishes=redrawn(tokens=[3, 0])),
        "finished a tree with draws that it had not made",
    ),
    "finish keeps the last": (
        kinded("without-replacement", grows=TWO, finishes=redrawn(tokens=[3], logp=[0.0])),
        "finished a tree with draws that it had not made",
    ),
    "finish moves draws": (
        kinded("without-replacement", grows=TWO, finishes=moved),
        "finished a tree with draws that it had not made",
    ),
    "finish makes up draws": (
        kinded("hybrid", finishes=lambda tree: attrs.evolve(tree, drawn={0: Drawn(tree.tokens[[1]], LAW)})),
        "finished a tree with draws that it had not made",
    ),
    "finish keeps a later draw alone": (
        kinded("without-replacement", grows=TWO, finishes=lambda tree: tree.keep([0, 2])),
        r"raised ValueError in finish: of the tokens \[0, 3\], drawn in this order under node 0, a later one is kept",
    ),
}


@pytest.mark.parametrize("case", HOSTILE_DRAWERS)
def test_a_policy_that_does_not_draw_as_its_kind_does_is_named_with_what_it_did(case):
    policy, complaint = HOSTILE_DRAWERS[case]
    with pytest.raises(PluginError, match=rf"^tree policy 'hostile' \({__name__}\.\w+\) .*{complaint}"):
        draft(policy)


@pytest.mark.parametrize(
    ("kind", "grow", "tokens"),
    [
        ("deterministic", once(lambda tree, candidates: Growth(np.array([1, 0]))), [0, 1, 0]),
        ("sampled", once(lambda tree, candidates: Growth(np.array([1, 0]))), [0, 1, 0]),
        ("hybrid", both, [0, 0, 1]),
        ("hybrid", ONE, [0, 0]),
        ("hybrid", once(draws(0, replacement=True)), [0, 0]),
        ("sampled-chain", ONE, [0, 0]),
        ("without-replacement", TWO, [0, 0, 3]),
        ("without-replacement", once(draws(0, replacement=True)), [0, 0]),  # of a single draw it makes no difference
        ("iid", once(draws(3, 0, 3, replacement=True)), [0, 3, 0]),
        ("iid", ONE, [0, 0]),
    ],
)
def test_a_policy_that_draws_as_its_kind_does_gets_its_tree(kind, grow, tokens):
    tree = draft(kinded(kind, grows=grow)).tree
    assert tree.tokens.tolist() == tokens
    assert tree.parents.tolist() == [-1] + [0] * (len(tokens) - 1)


def test_drawn_children_come_after_the_chosen_ones_row_by_row_with_the_scores_they_were_given():
    def grow(tree, candidates):
        if len(tree) == 1:
            return Growth(np.array([0, 1]))
        drawn = {1: Drawn([3], np.eye(4)[3], logp=[-5.0]), 0: Drawn([2], np.eye(4)[2])}
        return Growth(np.array([2]), frontier=[], drawn=drawn)

    tree = draft(kinded("hybrid", grows=grow)).tree
    assert tree.parents.tolist() == [-1, 0, 0, 2, 2, 1]
    assert tree.tokens[4:].tolist() == [3, 2]
    assert tree.path_logp[4:].tolist() == [tree.path_logp[2] - 5.0, tree.path_logp[1]]
    assert sorted(tree.drawn) == [1, 2]


def test_finish_may_keep_the_first_draws_of_a_node():
    tree = draft(kinded("without-replacement", grows=TWO, finishes=lambda tree: tree.keep([0, 1]))).tree
    assert tree.drawn[0].tokens.tolist() == [0]


def test_finish_may_make_a_drawn_child_a_fixed_one_where_fixed_ones_are_allowed():
    tree = draft(kinded("hybrid", grows=both, finishes=undrawn)).tree
    assert (len(tree), tree.drawn) == (3, {})


def test_padding_cannot_be_chosen():
    pads = TableDrafter([[0.5, 0.5, 0.0, 0.0]])
    everything = Policy(wide=lambda tree: 4, grows=lambda tree, candidates: Growth(np.arange(4)))
    with pytest.raises(PluginError, match=r"chose a padded candidate \(token -1\)"):
        draft(everything, pads)


def test_a_policy_that_grows_for_ever_is_ended_by_its_budget():
    limits = DraftLimits(VOCAB, max_depth=10**9)
    drafted = draft(Policy(budget=300, grows=lambda tree, candidates: Growth(candidates.best(1))), limits=limits)
    assert len(drafted.tree) == 300


def test_a_policy_that_chooses_nothing_ends_its_drafting():
    assert len(draft(Policy(grows=lambda *_: Growth(np.array([], dtype=np.int64)))).tree) == 1


def test_an_empty_list_is_a_choice_of_nothing():
    assert len(draft(Policy(grows=lambda *_: Growth([]))).tree) == 1


def test_an_empty_frontier_ends_the_drafting():
    drafted = draft(Policy(grows=lambda tree, candidates: Growth(candidates.best(2), frontier=[])))
    assert drafted.tree.parents.tolist() == [-1, 0, 0]


@pytest.mark.parametrize("width", [-5, 0, 0.9, False])
def test_without_a_width_the_drafter_is_not_asked(width):
    layers = []
    drafted = draft(Policy(wide=lambda tree: width, grows=lambda tree, candidates: layers.append(tree)))
    assert (len(drafted.tree), drafted.draft_passes, layers) == (1, 0, [])
    drafted = draft(Policy(wide=lambda tree: 2 if len(tree) == 1 else width))
    assert drafted.tree.depths.max() == 1


@pytest.mark.parametrize("width", [1, 2.9, 10**30, True])
def test_any_width_is_brought_into_range(width):
    seen = []

    def grow(tree, candidates):
        seen.append(candidates.width)
        return Growth(candidates.best(1))

    draft(Policy(wide=lambda tree: width, grows=grow))
    assert all(1 <= one <= VOCAB for one in seen)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_no_tree_is_deeper_than_what_can_be_emitted(depth):
    drafted = draft(Policy(budget=50), limits=DraftLimits(VOCAB, max_depth=depth))
    assert drafted.tree.depths.max() == depth


def test_nothing_is_drafted_after_a_token_that_ends_the_text():
    limits = DraftLimits(VOCAB, max_depth=6, ends=frozenset({0}))
    tree = draft(Policy(budget=50), TableDrafter(DRAFTER.laws[0]), limits, root=1).tree
    assert 0 in tree.tokens
    assert not (tree.tokens[tree.parents[1:]] == 0).any()


def test_a_drafter_that_knows_nothing_leaves_the_root_alone():
    assert len(draft(Policy(), TableDrafter(np.eye(1, VOCAB), knows=0)).tree) == 1


def test_a_node_that_was_passed_over_can_still_be_drafted_from_later():
    def grow(tree, candidates):
        if len(tree) == 1:
            return Growth(candidates.best(2), frontier=[1])
        return Growth(candidates.best(1), frontier=[2] if len(tree) == 3 else [])

    assert draft(Policy(grows=grow)).tree.parents.tolist() == [-1, 0, 0, 1, 2]


def test_a_batch_gives_each_sequence_the_tree_it_would_get_alone():
    policies = [Policy(budget=5), Policy(budget=3), Policy(budget=7)]
    asked = Asked(DRAFTER.laws)
    many = draft_all([wanted(9 - root, policy, root) for root, policy in enumerate(policies)], asked)
    for root, (policy, drafted) in enumerate(zip(policies, many, strict=True)):
        alone = draft(policy, root=root)
        assert drafted.tree.tokens.tolist() == alone.tree.tokens.tolist()
        assert drafted.tree.parents.tolist() == alone.tree.parents.tolist()
    assert {len(tree) for tree in (one.tree for one in many)} == {3, 5, 7}
    assert (asked.slots[0], asked.slots[-1]) == ([9, 8, 7], [7])


def test_nobody_is_asked_for_trees_that_must_not_grow():
    asked = Asked(DRAFTER.laws)
    (one,) = draft_all([wanted(3, Policy(), limits=DraftLimits(VOCAB, max_depth=0))], asked)
    assert (len(one.tree), asked.slots) == (1, [])
    assert draft_all([], asked) == []


@pytest.mark.parametrize("kind", [list, tuple])
def test_the_passes_of_a_draft_model_are_counted_over_all_layers_for_each_tree(kind):
    layers = iter([1, 0, np.int64(2)])
    counts = Lying(lambda proposed: Proposed(kind(proposed.candidates), next(layers)))
    drafted = draft_all([wanted(4, Policy(budget=3)), wanted(1, Policy(budget=7))], counts)
    assert next(layers, None) is None
    assert [one.draft_passes for one in drafted] == [3, 3]


def test_a_drafter_may_not_answer_a_slot_with_what_is_anothers():
    """Roots are all node 0: only deeper frontiers can be told apart by their nodes."""
    policies = [Policy(grows=first_alone(one)) for one in (1, 2)]

    def swap(proposed):
        return Proposed(proposed.candidates[::-1])

    with pytest.raises(PluginError, match=r"^drafter 'Lying' .* returned candidates for other nodes than the frontier"):
        draft_all([wanted(5, policies[0]), wanted(2, policies[1])], Lying(swap))


def first_alone(child):
    """Drafts from one child of the root alone, and no further."""

    def grow(tree, candidates):
        return Growth(candidates.best(2), frontier=[child] if len(tree) == 1 else [])

    return grow


@pytest.mark.parametrize(("given", "said"), [(0, "0 items"), (1, "1 items"), (3, "3 items")])
def test_a_drafter_answers_each_slot_once(given, said):
    some = Lying(lambda proposed: Proposed((proposed.candidates * 2)[:given]))
    with pytest.raises(
        PluginError, match=rf"^drafter 'Lying' .* proposed {said}; it must propose a list of 2 Candidates, one per fro"
    ):
        draft_all([wanted(0, Policy()), wanted(1, Policy())], some)


@attrs.frozen
class Guilty(Policy):
    name = "guilty"


def test_the_policy_at_fault_is_the_one_that_is_named():
    with pytest.raises(PluginError, match="'guilty'"):
        draft_all([wanted(0, Policy()), wanted(1, Guilty(grows=lambda *_: None), root=1)], DRAFTER)


FAULTY = {
    "budget": Guilty(budget="7"),
    "width": Guilty(wide=raising(KeyError("w"))),
    "grow": Guilty(grows=lambda *_: None),
    "finish": Guilty(finishes=lambda *_: None),
}


@pytest.mark.parametrize("where", FAULTY)
def test_a_policy_at_fault_ends_its_own_tree_alone(where):
    faults = Faults()
    policies = {4: Policy(budget=5), 2: FAULTY[where], 7: Policy()}
    drafted = draft_trees(
        [wanted(slot, one) for slot, one in policies.items()], Offers(DRAFTER), faults, MeasuredCosts()
    )
    assert [*faults] == [2]
    assert "'guilty'" in str(faults[2])
    assert [*drafted] == [4, 7]
    for slot, one in drafted.items():
        assert one.tree.tokens.tolist() == draft(policies[slot]).tree.tokens.tolist()


def test_what_a_drafter_offers_one_slot_is_a_fault_of_that_slot_alone():
    def lie(proposed):
        good, bad = proposed.candidates
        return Proposed([good, attrs.evolve(bad, frontier=bad.frontier + 1)])

    faults = Faults()
    one_layer_each = [wanted(5, Policy(budget=3)), wanted(2, Policy(budget=3))]
    drafted = draft_trees(one_layer_each, Offers(Lying(lie)), faults, MeasuredCosts())
    assert [*faults] == [2]
    assert len(drafted[5].tree) == 3


def test_a_drafter_that_fails_is_a_fault_of_those_that_it_was_asked_for():
    """The others are finished by then, or nothing was to be drafted for them."""
    calls = iter(range(9))

    def fails_later(proposed):
        if next(calls):
            raise RuntimeError("later")
        return proposed

    faults = Faults()
    none = DraftLimits(VOCAB, max_depth=0)
    drafted = draft_trees(
        [wanted(0, Policy(budget=3)), wanted(1, Policy(budget=7)), wanted(2, Policy(), limits=none)],
        Offers(Lying(fails_later)),
        faults,
        MeasuredCosts(),
    )
    assert [*faults] == [1]
    assert "raised RuntimeError in propose: later" in str(faults[1])
    assert {slot: len(one.tree) for slot, one in drafted.items()} == {0: 3, 2: 1}


def test_a_slot_that_has_failed_before_is_not_drafted_for():
    asked, faults = Asked(DRAFTER.laws), Faults({3: RuntimeError("before")})
    drafted = draft_trees([wanted(3, Policy()), wanted(4, Policy())], Offers(asked), faults, MeasuredCosts())
    assert [*drafted] == [4]
    assert {slot for layer in asked.slots for slot in layer} == {4}


class Told(MeasuredCosts):
    """Writes down what it is told."""

    def __init__(self):
        super().__init__()
        self.layers = []

    def drafted(self, rows, width, seconds):
        self.layers.append((rows, width, seconds))


def test_each_layer_is_measured_once_for_all_rows_by_the_clock_that_is_given():
    told, clock = Told(), count(0, 5)
    trees = [wanted(0, Policy(budget=3)), wanted(1, Policy(budget=7, wide=lambda tree: 3))]
    drafted = draft_trees(trees, Offers(DRAFTER), Faults(), told, now=lambda: next(clock))
    assert told.layers == [(2, 3, 5), (2, 3, 5), (2, 3, 5)]  # the first tree is full after one layer
    spans = {slot: [span for span in one.spans if span.part == "draft"] for slot, one in drafted.items()}
    assert {slot: [span.seconds for span in own] for slot, own in spans.items()} == {0: [5], 1: [5, 5, 5]}
    assert {slot: [span.layer for span in own] for slot, own in spans.items()} == {0: [0], 1: [0, 1, 2]}


def test_what_the_drafter_reads_before_a_layer_is_no_part_of_it():
    """The drafter tells it by a clock of its own: all the time that passed by that, half of it, and more than all."""
    answers = iter([10.0, 0.5, None])
    clock = count(0, 5)

    def reading(proposed):
        began, seconds = perf_counter(), next(answers)
        if seconds is None:
            return proposed
        while seconds < 1 and perf_counter() - began < 0.02:
            pass
        read = seconds if seconds > 1 else seconds * (perf_counter() - began)
        return attrs.evolve(proposed, reading=Reading(7, read))

    (drafted,) = draft_trees(
        [wanted(1, Policy(budget=7))], Offers(Lying(reading)), Faults(), Told(), now=lambda: float(next(clock))
    ).values()
    draft = [span for span in drafted.spans if span.part == "draft"]
    assert [(span.work, span.layer) for span in draft] == [
        ("reading", None),
        ("layer", 0),
        ("reading", None),
        ("layer", 1),
        ("layer", 2),
    ]
    assert [one.end == other.start for one, other in pairwise(draft[:4])] == [True, False, True]
    first, layer, second, half, last = [span.seconds for span in draft]
    assert (first, layer, last) == (5.0, 0.0, 5.0)
    assert second + half == pytest.approx(5.0)
    assert 1.0 < second < 3.0  # half of what has passed, and what lies around the drafter takes a little


def test_each_question_to_the_policy_says_of_which_layer_it_is():
    trees = [wanted(0, Policy(budget=3)), wanted(1, Policy(budget=7, wide=lambda tree: 3 if len(tree) < 5 else 0))]
    drafted = draft_trees(trees, Offers(DRAFTER), Faults(), MeasuredCosts())
    told = {
        slot: [(span.work, span.layer) for span in one.spans if span.part == "policy"] for slot, one in drafted.items()
    }
    assert told[0] == [("width", 0), ("grow", 0), ("finish", None)]
    layers = [span.layer for span in drafted[1].spans if span.work == "layer"]
    asked = [(work, layer) for layer in layers for work in ("width", "grow")]
    assert told[1] == [*asked, ("width", len(layers)), ("finish", None)]  # which wanted no more


@pytest.mark.parametrize(("unheard", "read", "layers"), [(FEW_HEARD, 0, 3), (FEW_HEARD + 1, 0, 2), (40, 39, 3)])
def test_a_layer_with_which_the_drafter_hears_of_much_is_not_taken_for_one_like_others(unheard, read, layers):
    told = Told()
    reads = Lying(lambda proposed: attrs.evolve(proposed, reading=Reading(read, 0.0) if read else None))
    trees = [attrs.evolve(wanted(1, Policy(budget=7)), unheard=unheard)]
    (drafted,) = draft_trees(trees, Offers(reads), Faults(), told).values()
    assert [span.layer for span in drafted.spans if span.work == "layer"] == [0, 1, 2]
    assert len(told.layers) == layers


def test_a_text_that_is_not_asked_for_does_not_keep_the_layers_of_others_from_being_measured():
    told = Told()
    paused = attrs.evolve(wanted(0, Policy(wide=lambda tree: 0)), unheard=99)
    draft_trees([paused, wanted(1, Policy(budget=7))], Offers(DRAFTER), Faults(), told)
    assert len(told.layers) == 3


@attrs.frozen(eq=False)
class Asked(TableDrafter):
    """Writes down which slots it is asked for, one list for each layer."""

    slots: list = attrs.field(factory=list)

    def propose(self, frontiers):
        self.slots.append([one.slot for one in frontiers])
        assert all(len(one.nodes) for one in frontiers)
        return super().propose(frontiers)


class Lying(TableDrafter):
    """Proposes what DRAFTER does, after `change` has had its way with it."""

    def __init__(self, change):
        super().__init__(DRAFTER.laws)
        object.__setattr__(self, "change", change)

    def propose(self, frontiers):
        return self.change(super().propose(frontiers))


def change(**arrays):
    """Replaces fields of the candidates, each by a function of what was there."""

    def changed(proposed):
        (one,) = proposed.candidates
        own = {field: of(np.array(getattr(one, field))) for field, of in arrays.items()}
        return Proposed([attrs.evolve(one, **own)])

    return changed


def test_what_a_drafter_has_read_first_is_no_part_of_the_layer():
    told, clock = Told(), count(0, 5)
    reads = Lying(lambda proposed: attrs.evolve(proposed, reading=Reading(40, 0.25)))
    draft_trees([wanted(1, Policy(budget=3))], Offers(reads), Faults(), told, now=lambda: next(clock))
    assert {seconds for *_, seconds in told.layers} == {4.75}
    assert told.catch_up(40) == pytest.approx(0.25, rel=0.3)


def taking(passes):
    """Says that the answer took so many passes."""
    return lambda proposed: attrs.evolve(proposed, draft_passes=passes)


def candidates_as(change):
    """Replaces the candidates of an answer."""
    return lambda proposed: attrs.evolve(proposed, candidates=change(proposed.candidates))


def put(value):
    """The array with its first entry replaced."""

    def replaced(array):
        array[0, 0] = value
        return array

    return replaced


HOSTILE_DRAFTERS = {
    "raises": (raising(MemoryError("no room")), "raised MemoryError in propose: no room"),
    "returns nothing": (lambda proposed: None, "returned NoneType from propose; it must return a Proposed"),
    "returns a list": (lambda proposed: proposed.candidates, "returned list from propose; it must return a Proposed"),
    "too few": (candidates_as(lambda given: []), "proposed 0 items; it must propose a list of 1 Candidates, one per f"),
    "too many": (candidates_as(lambda given: given * 2), "proposed 2 items; it must propose a list of 1 Candidates"),
    "no list": (candidates_as(lambda given: given[0]), "proposed Candidates; it must propose a list of 1 Candidates"),
    "a generator": (candidates_as(iter), "proposed list_iterator; it must propose a list of 1 Candidates"),
    "arrays": (
        candidates_as(lambda given: [given[0].tokens]),
        "returned ndarray from propose; it must propose one Candidates per frontier",
    ),
    "a reading that is none": (
        lambda proposed: attrs.evolve(proposed, reading=3),
        "says that it has read 3; it must be a Reading, or None where it has read nothing",
    ),
    "prepared in words": (
        lambda proposed: attrs.evolve(proposed, prepared="no"),
        "says 'no' of whether its passes were being recorded; it must be True or False",
    ),
    "passes below 0": (taking(-1), "says that it took -1 draft passes; it must be a whole number of at least 0"),
    "passes in parts": (taking(0.5), "says that it took 0.5 draft passes; it must be a whole number"),
    "passes in words": (taking("many"), "says that it took 'many' draft passes; it must be a whole number"),
    "passes that are none": (taking(None), "says that it took None draft passes; it must be a whole number"),
    "passes that are true": (taking(True), "says that it took True draft passes; it must be a whole number"),
    "lists for arrays": (change(tokens=lambda tokens: tokens.tolist()), "returned tokens of type list"),
    "tokens as floats": (change(tokens=lambda tokens: tokens * 1.0), "returned tokens of type float64"),
    "log-probabilities as integers": (
        change(logp=lambda logp: np.zeros(logp.shape, dtype=int)),
        "returned logp of type int64; it must be a NumPy array of floating-point numbers",
    ),
    "one axis": (change(tokens=np.ravel), r"all must be \(1, width\)"),
    "one row too many": (
        change(**{field: lambda array: np.repeat(array, 2, axis=0) for field in ("tokens", "logp", "path_logp")}),
        r"all must be \(1, width\), one row for each frontier node",
    ),
    "unequal shapes": (change(logp=lambda logp: logp[:, :1]), r"of shapes \(1, 2\), \(1, 1\) and \(1, 2\)"),
    "no columns": (
        change(**{field: lambda array: array[:, :0] for field in ("tokens", "logp", "path_logp")}),
        "returned 0 candidates per node; between 1 and 2 were asked for",
    ),
    "too many columns": (
        change(**{field: lambda array: np.repeat(array, 3, axis=1) for field in ("tokens", "logp", "path_logp")}),
        "returned 6 candidates per node",
    ),
    "another frontier": (change(frontier=lambda nodes: nodes + 1), "returned candidates for other nodes"),
    "token past the vocabulary": (
        change(tokens=put(VOCAB)),
        "proposed token 4; the target's vocabulary has ids 0 to 3",
    ),
    "token below the padding": (change(tokens=put(-2)), "proposed token -2"),
    "NaN": (change(logp=put(np.nan)), "a log-probability that is not a finite number of at most 0"),
    "NaN along the path": (change(path_logp=put(np.nan)), "a path_logp that is not a finite number"),
    "probability above 1": (change(logp=put(0.5)), "a log-probability that is not a finite number of at most 0"),
    "impossible token": (change(path_logp=put(-np.inf)), "padding has token -1 and minus infinity"),
    "rows that rise": (
        change(**{field: lambda array: array[:, ::-1] for field in ("tokens", "logp", "path_logp")}),
        r"gave a row in which a candidate of logp -0.35.* stands behind one of -2.3.*; rows are sorted by falling logp",
    ),
    "padding in front": (
        change(
            tokens=lambda tokens: tokens * 0 + [-1, 0],
            logp=lambda logp: logp * 0 + [-np.inf, -1.0],
            path_logp=lambda logp: logp * 0 + [-np.inf, -1.0],
        ),
        "gave a row in which a candidate of logp -1 stands behind one of -inf; .* padding at their end",
    ),
    "a token twice": (
        change(tokens=lambda tokens: tokens * 0 + 2),
        "proposed token 2 twice for one node; each token stands in a row once",
    ),
    "a false path score": (
        change(path_logp=lambda path_logp: path_logp + 0.5),
        r"gave a candidate a path_logp of 0.14.* where its parent's and its logp add up to -0.35.*; path_logp is tree",
    ),
    "a score of no path": (
        change(logp=put(-np.inf)),
        "a log-probability that is not a finite number",
    ),
    "padding with a score": (change(tokens=put(-1)), "padding has token -1 and minus infinity"),
}


@pytest.mark.parametrize("case", HOSTILE_DRAFTERS)
def test_a_hostile_drafter_is_named_with_what_it_did(case):
    lie, complaint = HOSTILE_DRAFTERS[case]
    with pytest.raises(PluginError, match=rf"^drafter 'Lying' \({__name__}\.Lying\) .*{complaint}"):
        draft(Policy(), Lying(lie))


@pytest.mark.parametrize(
    ("law", "complaint"),
    [
        (
            LAW[:2],
            r"gave a law of shape \(2,\) and type float64; it must be a NumPy array of shape \(4,\), the target's",
        ),
        (LAW * 0.98, "gave a law that sums to 0.98; a law sums to 1"),
        (np.array([1.5, 0, -0.5, 0]), "gave a law that gives token 2 -0.5; no probability is negative"),
        (np.array([np.nan, 0.5, 0.5, 0]), "gave a law that holds NaN"),
        (LAW.tolist(), r"gave a law of list; it must be a NumPy array of shape \(4,\), .* of floating-point numbers"),
        (LAW + 0j, r"gave a law of shape \(4,\) and type complex128; it must be a NumPy array"),
        (np.eye(4, dtype=int)[0], r"gave a law of shape \(4,\) and type int64; it must be"),
        (np.array(["a", "b", "c", "d"]), r"gave a law of shape \(4,\) and type <U1; it must be"),
        ("law", "gave a law of str; it must be"),
        (None, "gave a law of NoneType; it must be"),
    ],
)
def test_a_drafter_whose_law_is_none_is_named_whatever_the_policy_makes_of_it(law, complaint):
    def lie(proposed):
        return Proposed([attrs.evolve(one, law=lambda row: law) for one in proposed.candidates])

    for policy in (SpecInfer(widths=(2,), temperature=1.0), SpecInfer(widths=(2,), temperature=0.5)):
        with pytest.raises(PluginError, match=rf"^drafter 'Lying' \({__name__}\.Lying\) {complaint}"):
            draft(policy, Lying(lie))


@pytest.mark.parametrize("which", ["budget", "draft_budget"])
def test_a_budget_beyond_all_measure_is_the_users_error(which):
    assert checked_budget(SimpleNamespace(name="vast", **{which: 65_536}), which) == 65_536
    with pytest.raises(ValueError, match=rf"^tree policy 'vast' .* has a {which} of 65537 nodes; .* at most 65536"):
        checked_budget(SimpleNamespace(name="vast", **{which: 65_537}), which)


@pytest.mark.parametrize("kind", [np.float16, np.float32, "bfloat16"])
def test_scores_that_were_rounded_to_half_precision_are_what_they_are(kind):
    def rounded(array):
        if kind == "bfloat16":
            return torch.tensor(array).bfloat16().float().numpy()
        return array.astype(kind)

    exact = draft(Policy(budget=60), TableDrafter(DRAFTER.laws)).tree
    tree = draft(Policy(budget=60), Lying(change(logp=rounded, path_logp=rounded))).tree
    assert len(tree) == len(exact)
    assert tree.path_logp == pytest.approx(exact.path_logp, rel=0.02)


def test_rows_that_rise_by_no_more_than_rounding_are_taken():
    rows = change(
        logp=lambda logp: np.full(logp.shape, [-0.7, -0.6999]),
        path_logp=lambda path_logp: np.full(path_logp.shape, [-0.7, -0.6999]),
    )
    assert draft(Policy(budget=3), Lying(rows)).tree.path_logp.tolist() == [0.0, -0.6999, -0.7]


def test_what_a_policy_sees_of_a_drafters_buffers_is_read_only():
    reused = change(tokens=np.array, logp=np.array, path_logp=np.array)
    writeable = []

    def grow(tree, candidates):
        writeable.extend(
            array.flags.writeable
            for array in (candidates.frontier, candidates.tokens, candidates.logp, candidates.path_logp)
        )
        return Growth(candidates.best(1))

    draft(Policy(grows=grow), Lying(reused))
    assert not any(writeable)
