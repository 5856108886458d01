import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from talon_core.cli import main
from talon_core.plugins.registry import load_registry
from talon_core.testing import TableDrafter, check_tree_policy, untied_drafters
from talon_core.tune.space import space_of
from talon_strategies import DynamicDepth, Eagle2


def layers_by_definition(drafter, policy):
    """How many layers are drafted, with beams as plain dictionaries."""
    beam = {(0,): 1.0}
    for layer in range(1, 2 + policy.depth):
        children = {
            (*path, token): prob * more
            for path, prob in beam.items()
            for token, more in enumerate(drafter.law_after(path))
        }
        beam = dict(sorted(children.items(), key=lambda child: -child[1])[: policy.top_k])
        if layer in policy.checked:
            assume(abs(sum(beam.values()) - policy.threshold) > 1e-9)
            if sum(beam.values()) < policy.threshold:
                return layer
    return 1 + policy.depth


@pytest.mark.parametrize("options", [{}, {"checked": "1", "threshold": 1}, {"depth": 3, "top_k": 2, "checked": "2;3"}])
def test_keeps_the_contract(options):
    check_tree_policy(lambda: DynamicDepth(**options), max_examples=20)


@given(
    drafter=st.integers(2, 10).flatmap(untied_drafters),
    depth=st.integers(1, 5),
    top_k=st.integers(1, 4),
    checked=st.sets(st.integers(1, 6), min_size=1),
    threshold=st.sampled_from([0.0, 0.2, 0.5, 0.9]),
)
def test_the_tree_is_eagles_of_as_many_layers_as_the_beam_is_worth(
    draft, paths, drafter, depth, top_k, checked, threshold
):
    assume(min(checked) <= depth)
    policy = DynamicDepth(budget=20, depth=depth, top_k=top_k, checked=checked, threshold=threshold)
    drafted = draft(policy, drafter)
    layers = layers_by_definition(drafter, policy)
    expected = draft(Eagle2(budget=20, depth=layers - 1, top_k=top_k), drafter)
    assert paths(drafted.drafted) == paths(expected.drafted)
    assert paths(drafted.tree) == paths(expected.tree)


@pytest.mark.parametrize(("threshold", "layers"), [(0.95, 1), (0.5, 3), (0.3, 5), (0.1, 6)])
def test_beams_by_hand(draft, threshold, layers):
    drafter = TableDrafter([[0.6, 0.3, 0.1]])
    # .6 + .3 = .9, then .36 + .18 = .54, .216 + .108 = .324, .1944 and .11664
    policy = DynamicDepth(depth=5, top_k=2, checked=(1, 3, 5), threshold=threshold)
    assert draft(policy, drafter).drafted.depths.max() == layers


def test_text_and_numbers_say_the_same():
    assert DynamicDepth(checked="5;7;9") == DynamicDepth(checked=[5, 7, 9]) == DynamicDepth()


@pytest.mark.parametrize(
    "options",
    [{"threshold": 1.1}, {"threshold": -1}, {"checked": "0;2"}, {"checked": ""}, {"checked": 5}, {"depth": 0}],
)
def test_options_out_of_range_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))}.* must be"):
        DynamicDepth(**options)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"depth": 3, "threshold": 1},
            "checked is 5;7;9, and no layer of it is at most the depth, 3, so that threshold would decide nothing; it "
            "must have one of 1 to 3, or depth must be at least 5",
        ),
        ({"checked": "99"}, "it must have one of 1 to 10, or depth must be at least 99"),
        ({"checked": (12, 11)}, "checked is 12;11, .* or depth must be at least 11"),
    ],
)
def test_a_threshold_that_would_decide_nothing_is_refused(options, says):
    with pytest.raises(ValueError, match=says):
        DynamicDepth(**options)


def test_the_command_line_says_so(capsys):
    assert main(["certify", "--policy", "ddd:depth=3,threshold=1"]) == 2
    assert "tree policy 'ddd': checked is 5;7;9, and no layer of it is at most" in capsys.readouterr().err


def test_whatever_depth_is_searched_some_layer_is_tested():
    (depth,) = (one for one in space_of(load_registry(), "ddd").dimensions if one.option == "depth")
    assert (depth.values.low, depth.values.high) == (5, 10)
    for value in range(5, 11):
        assert DynamicDepth(depth=value).checked == (5, 7, 9)
