"""Policies that the output of every architecture is decoded with."""

from typing import Any

import pytest

CHAIN, GATED = "chain", "talon:budget=20,mu=0.01"
OTHERS = ("static", "eagle2:budget=12")


def with_policies(*architectures: Any) -> pytest.MarkDecorator:
    """Parameters `architecture` and `policy`: all with a chain and with a tree, and the first with every policy.

    What else there is of both is the matrix.
    """
    return pytest.mark.parametrize(
        ("architecture", "policy"),
        [
            pytest.param(architecture, policy, marks=marks)
            for architecture in architectures
            for policy in (CHAIN, GATED, *OTHERS)
            for marks in [pytest.mark.matrix if policy in OTHERS and architecture != architectures[0] else ()]
        ],
    )
