from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_strategies import TalonLocal


def by_definition(drafter, budget, top_k, mu):
    """TALON's loop over the whole vocabulary, with the last step's probability wherever it has the path's."""
    tree, frontier = [(0,)], [(0,)]
    while len(tree) < budget:
        scored = {
            (*path, token): prob for path in frontier for token, prob in enumerate(drafter.law_after(path).tolist())
        }
        assume(len(set(scored.values())) == len(scored))
        ranked = sorted(scored, key=scored.__getitem__, reverse=True)
        best = scored[ranked[0]]
        assume(all(abs(prob / (mu * best) - 1) > 1e-9 for prob in scored.values()) or mu == 1)
        new = ranked[:top_k] if len(tree) == 1 else [path for path in ranked if scored[path] >= mu * best]
        frontier = new[: budget - len(tree)]
        tree += frontier
    return set(tree)


def test_keeps_the_contract():
    check_tree_policy(TalonLocal, max_examples=30)


@given(
    drafter=st.integers(2, 30).flatmap(untied_drafters),
    budget=st.integers(2, 64),
    top_k=st.integers(1, 12),
    mu=st.sampled_from([0.01, 0.1, 1]),
)
def test_the_tree_is_that_of_the_whole_vocabulary(draft, paths, drafter, budget, top_k, mu):
    drafted = draft(TalonLocal(budget=budget, top_k=top_k, mu=mu), drafter)
    assert paths(drafted.tree) == by_definition(drafter, budget, top_k, mu)


def test_a_sure_step_counts_on_an_unlikely_path_too(draft, paths):
    drafter = TableDrafter([[0.0, 0.99, 0.01]])
    tree = draft(TalonLocal(budget=5, top_k=2, mu=0.5), drafter).tree
    assert paths(tree) == {(0,), (0, 1), (0, 2), (0, 1, 1), (0, 2, 1)}
