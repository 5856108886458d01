from talon_nucleus import Nucleus

from talon_core.testing import check_tree_policy


def test_nucleus_keeps_the_contract() -> None:
    check_tree_policy(Nucleus)
