import pytest
from talon_nucleus import Nucleus


def test_nucleus_keeps_the_contract_and_the_law_of_the_output(talon_check_policy, talon_certify) -> None:
    talon_check_policy(Nucleus)
    talon_certify(Nucleus())


@pytest.mark.parametrize("policy", ["nucleus:budget=16", "talon:budget=16", "eagle2:budget=16"])
def test_its_speed(talon_benchmark, policy) -> None:
    talon_benchmark.replay(policy)
