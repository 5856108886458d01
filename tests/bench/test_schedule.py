"""What is measured in which order."""

import attrs

from talon_core.bench.prompts import Prompt, PromptSet
from talon_core.bench.schedule import Unit


def test_sets_take_turns_and_a_repetition_is_whole_before_the_next(plan):
    units = plan(sets={"qa": 2, "sum": 1}, repetitions=2).units()
    once = [("qa", 0), ("sum", 0), ("qa", 1)]
    assert [(unit.set, unit.prompt, unit.repetition) for unit in units] == [
        (*each, repetition) for repetition in range(2) for each in once
    ]


def test_the_turns_of_a_conversation_follow_one_another_if_they_are_asked_for(plan):
    talk = PromptSet("talk", "talk.jsonl", "", (Prompt(("a", "b", "c")), Prompt(("d",))), 2)
    first = attrs.evolve(plan(), sets=(talk,))
    assert [unit.turn for unit in first.units()] == [0, 0]
    every = attrs.evolve(first, all_turns=True)
    assert every.units() == [Unit("talk", 0, turn, 0) for turn in range(3)] + [Unit("talk", 1, 0, 0)]


def test_each_method_is_first_equally_often(plan):
    made = plan(["ngram", "ngram/chain"], {"qa": 6})
    orders = [[method.name for method in made.order(number, 0)] for number in range(6)]
    for place in range(3):
        assert sorted(order[place] for order in orders) == sorted(["none", "ngram", "ngram/chain"] * 2)


def test_a_prompt_begins_with_another_method_in_each_repetition(plan):
    made = plan(["ngram", "ngram/chain"], {"qa": 3}, repetitions=3)
    first = {(unit.prompt, made.order(number, unit.repetition)[0].name) for number, unit in enumerate(made.units())}
    assert len(first) == 9


def test_every_method_draws_with_one_seed_and_another_in_each_repetition(plan):
    made = plan(temperature=0.8, seed=5)
    assert [made.options(repetition)["seed"] for repetition in range(3)] == [5, 6, 7]
    assert "seed" not in plan().options(0)
