"""TALON: drafting strategies for lossless speculative decoding.

Everything a plugin's author or a user needs by name; each is imported when it is first used.
"""

from typing import TYPE_CHECKING

import talon_core.basics.loaded  # noqa: F401 - it notes when TALON was imported
from talon_core.basics.lazy import import_on_use

if TYPE_CHECKING:
    from talon_core.allocation import Allocator, NextRound, Planner, SharedPass
    from talon_core.attention import Accelerator, AttentionBackend, TreeLayout
    from talon_core.candidates import Candidates
    from talon_core.chains import Account, Chains
    from talon_core.choices import Choices, Foreseen, SeededChoices, enumerate_outcomes
    from talon_core.costs import Costs
    from talon_core.decoding.decoder import Decoder
    from talon_core.decoding.loading import build, load
    from talon_core.drafter import (
        FINAL_STATE,
        Committed,
        Drafter,
        DrafterSpec,
        Frontier,
        Part,
        Proposed,
        Reading,
        Retriever,
    )
    from talon_core.engine.allocation import BestRate, EqualBudgets, SharedBudget
    from talon_core.engine.bounds import Bounds
    from talon_core.engine.engine import Engine
    from talon_core.errors import BusyError, PluginError
    from talon_core.forest import Forest, ForestCandidates
    from talon_core.forest_drawer import ForestDrawer, ForestDraws, ForestLaws
    from talon_core.forest_grower import ForestGrower, ForestGrowth
    from talon_core.forest_learner import ForestLearner, ForestRound, LearningForest
    from talon_core.forest_planner import AskedLayer, CountingPlanner, ForestPlanner, RoundCounts, TreePlan
    from talon_core.hf.generate import as_generate
    from talon_core.hf.target import HFTarget
    from talon_core.hookspecs import hookimpl
    from talon_core.inquiry import Inquirer, Inquiry
    from talon_core.laws import Laws
    from talon_core.policy import Growth, SequenceInfo, TreePolicy
    from talon_core.request import Chunk, Request, Result
    from talon_core.rounds import Round, Stats
    from talon_core.rule import AcceptanceRule, Accepted
    from talon_core.schedule import Outcome, Outlook, Schedule
    from talon_core.searching import searched, searched_among
    from talon_core.source_chooser import SourceChooser
    from talon_core.table import TableTarget
    from talon_core.target import NodeDraws, NodeOutputs, Target, Verified
    from talon_core.tree import TokenTree

__version__ = "0.1.0"

__all__ = [
    "FINAL_STATE",
    "Accelerator",
    "AcceptanceRule",
    "Accepted",
    "Account",
    "Allocator",
    "AskedLayer",
    "AttentionBackend",
    "BestRate",
    "Bounds",
    "BusyError",
    "Candidates",
    "Chains",
    "Choices",
    "Chunk",
    "Committed",
    "Costs",
    "CountingPlanner",
    "Decoder",
    "Drafter",
    "DrafterSpec",
    "Engine",
    "EqualBudgets",
    "Foreseen",
    "Forest",
    "ForestCandidates",
    "ForestDrawer",
    "ForestDraws",
    "ForestGrower",
    "ForestGrowth",
    "ForestLaws",
    "ForestLearner",
    "ForestPlanner",
    "ForestRound",
    "Frontier",
    "Growth",
    "HFTarget",
    "Inquirer",
    "Inquiry",
    "Laws",
    "LearningForest",
    "NextRound",
    "NodeDraws",
    "NodeOutputs",
    "Outcome",
    "Outlook",
    "Part",
    "Planner",
    "PluginError",
    "Proposed",
    "Reading",
    "Request",
    "Result",
    "Retriever",
    "Round",
    "RoundCounts",
    "Schedule",
    "SeededChoices",
    "SequenceInfo",
    "SharedBudget",
    "SharedPass",
    "SourceChooser",
    "Stats",
    "TableTarget",
    "Target",
    "TokenTree",
    "TreeLayout",
    "TreePlan",
    "TreePolicy",
    "Verified",
    "as_generate",
    "build",
    "enumerate_outcomes",
    "hookimpl",
    "load",
    "searched",
    "searched_among",
]

import_on_use(
    __name__,
    {
        ".allocation": ["Allocator", "NextRound", "Planner", "SharedPass"],
        ".attention": ["Accelerator", "AttentionBackend", "TreeLayout"],
        ".candidates": ["Candidates"],
        ".chains": ["Account", "Chains"],
        ".choices": ["Choices", "Foreseen", "SeededChoices", "enumerate_outcomes"],
        ".costs": ["Costs"],
        ".decoding.decoder": ["Decoder"],
        ".drafter": [
            "FINAL_STATE",
            "Committed",
            "Drafter",
            "DrafterSpec",
            "Frontier",
            "Part",
            "Proposed",
            "Reading",
            "Retriever",
        ],
        ".engine.allocation": ["BestRate", "EqualBudgets", "SharedBudget"],
        ".engine.bounds": ["Bounds"],
        ".engine.engine": ["Engine"],
        ".errors": ["BusyError", "PluginError"],
        ".forest": ["Forest", "ForestCandidates"],
        ".forest_drawer": ["ForestDrawer", "ForestDraws", "ForestLaws"],
        ".forest_grower": ["ForestGrower", "ForestGrowth"],
        ".forest_learner": ["ForestLearner", "ForestRound", "LearningForest"],
        ".forest_planner": ["AskedLayer", "CountingPlanner", "ForestPlanner", "RoundCounts", "TreePlan"],
        ".hf.generate": ["as_generate"],
        ".hf.target": ["HFTarget"],
        ".hookspecs": ["hookimpl"],
        ".inquiry": ["Inquirer", "Inquiry"],
        ".laws": ["Laws"],
        ".decoding.loading": ["build", "load"],
        ".policy": ["Growth", "SequenceInfo", "TreePolicy"],
        ".request": ["Chunk", "Request", "Result"],
        ".rounds": ["Round", "Stats"],
        ".rule": ["AcceptanceRule", "Accepted"],
        ".schedule": ["Outcome", "Outlook", "Schedule"],
        ".source_chooser": ["SourceChooser"],
        ".searching": ["searched", "searched_among"],
        ".table": ["TableTarget"],
        ".target": ["NodeDraws", "NodeOutputs", "Target", "Verified"],
        ".tree": ["TokenTree"],
    },
)
