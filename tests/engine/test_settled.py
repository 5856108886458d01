"""The loop asks no part what it is or what it lacks: that is settled when the engine is made, or lets a sequence in."""

import ast
import textwrap
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ENGINE = Path(__file__).parents[2] / "talon_core" / "engine"
FILES = sorted(path.relative_to(ENGINE).as_posix() for path in ENGINE.rglob("*.py"))
PARTS = {
    *("target", "drafter", "rule", "policy", "allocator", "schedule", "worker", "spec", "costs", "measured", "behind"),
    *("planner", "preparer", "inquirer", "sharing", "preparations", "inquiries", "offers", "acceptors", "acceptor"),
    *("instant", "grower", "growers", "observe", "asked_as"),
}
"""What parts are called, and what is made of them."""
INTERFACES = {
    *("Target", "Drafter", "DrafterSpec", "AcceptanceRule", "TreePolicy", "Allocator", "Planner", "Inquirer"),
    *("Preparer", "Schedule", "Worker", "Costs", "MeasuredCosts", "Retriever", "ForestGrower", "NoDrafter"),
    *("ForestLearner", "LearningForest", "SourceChooser"),
}
ABILITIES = {
    *("can_walk", "can_draw", "follows_argmax", "follows_target", "lossy", "looks_ahead", "prepares", "uses_target"),
    *("reads_texts", "exact_for", "drafts_in_cache"),
}
SETTLED_BY = {"forest_grower", "forest_learner", "asked_together", "checked_growers", "source_of", "teller", "listens"}
"""Functions that tell what a part can do."""
SETTLES = {"__init__", "_admit"}
"""Functions that make what the loop asks, and that let a sequence in: here parts are looked at."""
SETTLING = {
    "ahead/checked_schedule.py": {"checked_flag"},
    "ahead/host.py": {"about"},
    "ahead/instant.py": {"opened_instant"},
    "ahead/opening.py": {"goes_ahead"},
    "checked_drafter.py": {"opened", "files_known", "checked_for_model"},
    "checked_policy.py": {"begun", "checked_growers", "listens", "source_of", "teller"},
    "sharing.py": {"sharing_of"},
}
"""By file, functions that these call, or whoever makes a decoder, and no round does."""
NO_ROUND = {
    "ahead/whole.py": {"persistent_id"},
    "drafting.py": {"draft_tree"},
    "memory.py": {"is_memoryless"},
}
"""Functions that ask no part of the loop: one grows a single tree for tests, traces and certificates, which may not
measure, and others look at what is copied for who prepares, or sent to another process, whatever it is."""


def asked_of_parts(source: str, others: Collection[str] = ()) -> Iterator[str]:
    """Every place at which a part is asked what it is or what it lacks, outside of the functions that may.

    Args:
        source: of a module.
        others: functions that may, besides `SETTLES`.
    """

    def name(node: ast.expr) -> str:
        return ast.unparse(node).split(".")[-1].lstrip("_")

    def within(node: ast.AST) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef) and node.name in {*SETTLES, *others}:
            return
        found: list[ast.expr] = []
        match node:
            case ast.Call(func=ast.Name(id="isinstance" | "hasattr" | "getattr" | "issubclass"), args=[one, *given]):
                kinds = {name(each) for other in given for each in ast.walk(other) if isinstance(each, ast.Name)}
                found = [one] if name(one) in PARTS or kinds & INTERFACES else []
            case ast.Compare(left=one, comparators=[ast.Constant(value=None)]):
                found = [one] if name(one) in PARTS else []
            case ast.Call(func=ast.Name(id=function)) if function in SETTLED_BY:
                found = [node]
            case ast.Attribute(attr=attribute) if attribute in ABILITIES:
                found = [node]
            case ast.If(test=one) | ast.IfExp(test=one) | ast.While(test=one):
                tested = one.operand if isinstance(one, ast.UnaryOp) else one
                found = [tested] if name(tested) in PARTS else []
            case ast.BoolOp(values=several):
                found = [one for one in several if name(one) in PARTS]
        yield from (f"line {one.lineno}: {ast.unparse(node)}" for one in found)
        for child in ast.iter_child_nodes(node):
            yield from within(child)

    yield from within(ast.parse(source))


@pytest.mark.parametrize("file", FILES)
def test_the_loop_has_no_test_of_what_a_part_is_or_lacks(file: str) -> None:
    may = SETTLING.get(file, set()) | NO_ROUND.get(file, set())
    assert [*asked_of_parts((ENGINE / file).read_text(encoding="utf-8"), may)] == []


def test_every_function_that_may_look_at_parts_is_there_and_does() -> None:
    for file, functions in (*SETTLING.items(), *NO_ROUND.items()):
        source = (ENGINE / file).read_text(encoding="utf-8")
        for function in functions:
            assert [*asked_of_parts(source, functions - {function})], (file, function)


@pytest.mark.parametrize(
    "line",
    [
        "isinstance(self._parts.drafter, Preparer)",
        "isinstance(one, (int, Planner))",
        "x = 1 if self._allocator is None else 2",
        "y = parts.spec is not None",
        "if parts.target.can_draw: pass",
        "if not self._drafter: pass",
        "z = drafter or 3",
        "rule.follows_argmax and request.greedy",
        "hasattr(policy, 'forest')",
        "grower = forest_grower(policy)",
        "isinstance(policy, SourceChooser) and sources",
        "isinstance(self._grower, LearningForest)",
        "getattr(policy.observe, '__func__', None) is not None",
        "told = listens(policy)",
        "if one.grower is not None: pass",
        "at_once = self._instant is not None",
    ],
)
def test_such_a_test_is_found_wherever_it_stands(line: str) -> None:
    source = f"class Stages:\n    def run(self):\n        for one in two:\n{textwrap.indent(line, ' ' * 12)}\n"
    assert len([*asked_of_parts(source)]) == 1
    assert [*asked_of_parts(source.replace("run", "__init__"))] == []
