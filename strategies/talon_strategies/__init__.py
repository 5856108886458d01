"""TALON's own tree policies, acceptance rules and schedules, a plugin like anybody's."""

from talon_core.hookspecs import hookimpl
from talon_core.policy import TreePolicy
from talon_core.rule import AcceptanceRule
from talon_core.schedule import Schedule
from talon_strategies.adaedl import AdaEdl
from talon_strategies.bandit import Bandit
from talon_strategies.bastion import Bastion
from talon_strategies.caddtree import CaDDTree
from talon_strategies.chain import Chain
from talon_strategies.ddd import DynamicDepth
from talon_strategies.ddtree import DDTree
from talon_strategies.dyspec import DySpec
from talon_strategies.eagle2 import Eagle2
from talon_strategies.gammatune import GammaTune
from talon_strategies.gammatune_plus import GammaTunePlus
from talon_strategies.heuristic import Heuristic
from talon_strategies.opt_tree import OptTree
from talon_strategies.rules.block import Block
from talon_strategies.rules.hybrid import Hybrid
from talon_strategies.rules.match import Match
from talon_strategies.rules.rrs import RecursiveRejection
from talon_strategies.rules.rrsw import RejectionWithoutReplacement
from talon_strategies.rules.traversal import Traversal
from talon_strategies.rules.typical import Typical
from talon_strategies.sampled_chain import SampledChain
from talon_strategies.schedules.branch import Branch
from talon_strategies.schedules.cached import Cached
from talon_strategies.schedules.pearl import Pearl
from talon_strategies.schedules.sync import Sync
from talon_strategies.sequoia import Sequoia
from talon_strategies.specdec_plus_plus import SpecDecPlusPlus
from talon_strategies.specinfer import SpecInfer
from talon_strategies.speckv import SpecKV
from talon_strategies.sps import Sps
from talon_strategies.static import StaticTree
from talon_strategies.svip import Svip
from talon_strategies.talon import Talon
from talon_strategies.talon_absolute import TalonAbsolute
from talon_strategies.talon_cost import TalonCost
from talon_strategies.talon_cost_sampled import TalonCostSampled
from talon_strategies.talon_gate_only import TalonGateOnly
from talon_strategies.talon_local import TalonLocal
from talon_strategies.talon_sampled import TalonSampled
from talon_strategies.talon_topk_layers import TalonTopkLayers
from talon_strategies.taps import Taps

__all__ = [
    "AdaEdl",
    "Bandit",
    "Bastion",
    "Block",
    "Branch",
    "CaDDTree",
    "Cached",
    "Chain",
    "DDTree",
    "DySpec",
    "DynamicDepth",
    "Eagle2",
    "GammaTune",
    "GammaTunePlus",
    "Heuristic",
    "Hybrid",
    "Match",
    "OptTree",
    "Pearl",
    "RecursiveRejection",
    "RejectionWithoutReplacement",
    "SampledChain",
    "Sequoia",
    "SpecDecPlusPlus",
    "SpecInfer",
    "SpecKV",
    "Sps",
    "StaticTree",
    "Svip",
    "Sync",
    "Talon",
    "TalonAbsolute",
    "TalonCost",
    "TalonCostSampled",
    "TalonGateOnly",
    "TalonLocal",
    "TalonSampled",
    "TalonTopkLayers",
    "Taps",
    "Traversal",
    "Typical",
]

FIXED: list[type[TreePolicy]] = [
    *(Bastion, CaDDTree, Chain, DDTree, Eagle2, OptTree),
    *(StaticTree, Talon, TalonAbsolute, TalonCost, TalonGateOnly, TalonLocal, TalonTopkLayers),
    *(AdaEdl, DynamicDepth, GammaTune, GammaTunePlus, Heuristic, SpecDecPlusPlus, SpecKV, Sps, Svip),
    *(Bandit, Taps),
]
DRAWN: list[type[TreePolicy]] = [DySpec, SampledChain, Sequoia, SpecInfer, TalonCostSampled, TalonSampled]


@hookimpl
def talon_policies() -> list[type[TreePolicy]]:
    return [*FIXED, *DRAWN]


@hookimpl
def talon_rules() -> list[type[AcceptanceRule]]:
    return [Block, Hybrid, Match, RecursiveRejection, RejectionWithoutReplacement, Traversal, Typical]


@hookimpl
def talon_schedules() -> list[type[Schedule]]:
    return [Branch, Cached, Pearl, Sync]
