"""TALON's own tree policies and acceptance rules, a plugin like anybody's."""

from talon_core.hookspecs import hookimpl
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule
from talon_strategies.chain import Chain
from talon_strategies.eagle2 import Eagle2
from talon_strategies.match import Match
from talon_strategies.static import StaticTree
from talon_strategies.talon import Talon
from talon_strategies.talon_absolute import TalonAbsolute
from talon_strategies.talon_gate_only import TalonGateOnly
from talon_strategies.talon_local import TalonLocal
from talon_strategies.talon_topk_layers import TalonTopkLayers

__all__ = [
    "Chain",
    "Eagle2",
    "Match",
    "StaticTree",
    "Talon",
    "TalonAbsolute",
    "TalonGateOnly",
    "TalonLocal",
    "TalonTopkLayers",
]


@hookimpl
def talon_policies() -> list[type[TreePolicy]]:
    return [Chain, Eagle2, StaticTree, Talon, TalonAbsolute, TalonGateOnly, TalonLocal, TalonTopkLayers]


@hookimpl
def talon_rules() -> list[type[AcceptanceRule]]:
    return [Match]
