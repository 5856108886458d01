"""Tuning finds what is fastest, and what it says of that is measured on prompts that the search has not seen."""

import math
from collections.abc import Callable, Sequence
from statistics import fmean
from typing import Any

import attrs
import pytest

from talon_core import SequenceInfo, TokenTree
from talon_core.plugins.registry import load_registry
from talon_core.searching import Range
from talon_core.trace.folder import Trace
from talon_core.trace.methods import parse_method
from talon_core.trace.replay import Replay
from talon_core.tune.folds import dealt
from talon_core.tune.run import Tuned, TunePlan, tuned
from talon_core.tune.search import Search, Trial
from talon_core.tune.space import Space, space_of
from talon_core.tune.speeds import Speed, Speeds, Text
from talon_strategies import Talon
from talon_tests.tuning import Priced

Tune = Callable[..., Tuned]


def seconds(trace: Trace, spec: str, costs: Priced) -> dict[Text, float]:
    """By a replay of each text, without what was written for tuning."""
    method = parse_method(spec, trace, load_registry())
    replay = Replay(trace, costs, timed=False)
    found = {Text(0, *one): replay.text(method, trace.text(*one)).seconds for one in trace.texts()}
    return {text: each for text, each in found.items() if each is not None}


def speed_up(trace: Trace, spec: str, costs: Priced) -> float:
    ours, plain = seconds(trace, spec, costs), seconds(trace, "none", costs)
    return math.exp(fmean(math.log(plain[text] / ours[text]) for text in ours))


@pytest.mark.parametrize("costs", [Priced(node=0.1, layer=0.1), Priced(node=8.0, layer=0.1), Priced(layer=30.0)])
def test_of_all_chains_the_fastest_is_found(tune: Tune, shipped: Trace, costs: Priced) -> None:
    best = max(range(1, 9), key=lambda length: speed_up(shipped, f"chain:length={length}", costs))
    found = tune("chain", "length=1..8", costs=costs, trials=30)
    assert found.best.options == {"length": str(best)}
    assert found.best.speed_up == pytest.approx(speed_up(shipped, f"chain:length={best}", costs))


def test_dear_nodes_make_small_trees(tune: Tune) -> None:
    sizes = [int(tune("talon", costs=Priced(node=node), trials=15).best.options["budget"]) for node in (0.01, 20.0)]
    assert sizes[1] < sizes[0]


def told(found: Tuned) -> Any:
    """All that does not hang on the clock."""
    return attrs.evolve(found, seconds=0.0, own_time={}).as_dict()


def test_the_same_seed_gives_the_same_answer_and_another_one_asks_otherwise(tune: Tune) -> None:
    assert told(tune("talon")) == told(tune("talon"))
    assert tune("talon", seed=1).trials[1:] != tune("talon").trials[1:]


def test_the_policy_as_it_is_takes_part(tune: Tune) -> None:
    found = tune("talon:budget=8", trials=1)
    assert found.trials[0].spec == "talon:budget=8"
    assert found.trials[0].options == {"top_k": "10", "mu": "0.03", "least": "0.0"}
    assert found.best.speed_up is not None
    assert found.best.speed_up >= (found.trials[0].speed_up or 0.0)
    assert found.gains["talon:budget=8"].searched >= 1


def test_the_gain_is_paired_and_on_texts_left_out(tune: Tune, shipped: Trace) -> None:
    """Worked out again: for each text by the search of which it was left out."""
    costs, found = Priced(), tune("talon:budget=12", costs=Priced(), against="chain", folds=4, trials=15)
    assert {one.spec for one in found.folds} > {found.best.spec}  # or it would not matter whose gain it is
    folds = dealt({"prompts": [Text(0, *one) for one in shipped.texts()]}, 4, 0)
    for other in ("talon:budget=12", "none", "chain"):
        theirs = seconds(shipped, other, costs)
        logs = []
        for picked, fold in zip(found.folds, folds, strict=True):
            ours = seconds(shipped, picked.spec, costs)
            logs += [math.log(theirs[text] / ours[text]) for text in fold]
        gain = found.gains[other].left_out
        assert gain.median == pytest.approx(math.exp(fmean(logs)))
        assert gain.prompts == 4
        assert gain.low is not None
        assert gain.high is not None
        assert gain.low <= gain.median <= gain.high
        everywhere = speed_up(shipped, found.best.spec, costs) / speed_up(shipped, other, costs)
        assert found.gains[other].searched == pytest.approx(everywhere)


@pytest.fixture
def speeds(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[str, Text, Speed], Speed]], None]:
    """Changes what comes of trying a policy on a text."""
    before = Speeds._try

    def patch(change: Callable[[str, Text, Speed], Speed]) -> None:
        monkeypatch.setattr(
            Speeds,
            "_try",
            lambda self, one: [
                change(one.spec, text, speed) for text, speed in zip(one.texts, before(self, one), strict=True)
            ],
        )

    return patch


def test_a_search_does_not_see_the_texts_left_out(tune: Tune, shipped: Trace, speeds: Any) -> None:
    folds = dealt({"prompts": [Text(0, *one) for one in shipped.texts()]}, 2, 0)
    before = tune("talon")
    for number, fold in enumerate(folds):
        # on these texts what was fast is slow now, and the other way round
        speeds(
            lambda spec, text, speed, fold=tuple(fold): (
                attrs.evolve(speed, seconds=1 / speed.seconds) if text in fold and spec != "none" else speed
            )
        )
        found = tune("talon")
        assert found.folds[number] == before.folds[number]
        assert found.folds[1 - number].spec != before.folds[1 - number].spec


def test_what_the_traces_do_not_answer_does_not_count(tune: Tune, speeds: Any) -> None:
    before = tune("talon")
    fastest = before.best.spec
    speeds(lambda spec, text, speed: attrs.evolve(speed, outside=1) if spec == fastest else speed)
    found = tune("talon")
    assert found.best.spec != fastest
    assert all(trial.spec != fastest for trial in [found.best, *found.folds])
    assert found.left_out >= 1


def test_where_the_traces_answer_no_trial_a_sentence_says_so(tune: Tune, speeds: Any) -> None:
    speeds(lambda spec, text, speed: attrs.evolve(speed, outside=2))
    with pytest.raises(ValueError, match="the traces answer none of 9 trials in full; record with more --nodes"):
        tune("talon")


def test_questions_outside_of_what_is_compared_are_told(tune: Tune, speeds: Any) -> None:
    speeds(lambda spec, text, speed: attrs.evolve(speed, outside=2) if spec == "chain" else speed)
    assert tune("talon:budget=8", against="chain").outside["chain"] == 8


@attrs.frozen
class Together(Talon):
    """A policy with two options that do not go together."""

    name = "together"

    def __attrs_post_init__(self) -> None:
        if self.budget < 20 and self.mu < 0.3:
            raise ValueError("a small budget needs a large mu")


def test_options_that_a_policy_refuses_together_are_counted(shipped: Trace) -> None:
    registry = load_registry()
    policies = registry.entries["tree policy"]
    own = {**policies, "together": attrs.evolve(policies["talon"], name="together", cls=Together)}
    registry = attrs.evolve(registry, entries={**registry.entries, "tree policy": own})
    budget, *others = space_of(registry, "together", ["budget=20..60", "mu=0.03..0.6"]).dimensions
    space = Space("together", {}, (attrs.evolve(budget, values=Range(2, 60)), *others))
    found = tuned([shipped], space, Priced(), registry, TunePlan(trials=15, folds=2))
    assert 0 < found.refused < found.tried == 45
    assert any("a small budget needs a large mu" in trial.fault for trial in found.trials)
    assert not found.best.fault


@attrs.frozen
class Remembers(Talon):
    """Takes a node more for each text that it has seen, as one might that learns of the machine."""

    name = "remembers"
    _seen: list[int] = attrs.field(init=False, eq=False, factory=list)

    def begin(self, sequence: SequenceInfo) -> "Remembers":
        self._seen.append(1)
        return self

    def finish(self, tree: TokenTree) -> TokenTree:
        return tree.keep(tree.best(min(len(tree), 1 + len(self._seen))))


def test_what_a_policy_remembers_of_other_texts_does_not_count(shipped: Trace) -> None:
    registry = load_registry()
    policies = registry.entries["tree policy"]
    own = {**policies, "remembers": attrs.evolve(policies["talon"], name="remembers", cls=Remembers)}
    registry = attrs.evolve(registry, entries={**registry.entries, "tree policy": own})
    found = []
    for texts in (1, -1):
        speeds = Speeds([shipped], Priced(), registry, "auto", 1)
        speeds.try_all(("remembers", text) for text in speeds.texts[::texts])
        found.append([speeds.of("remembers", text) for text in speeds.texts])
    assert found[0] == found[1]


def test_a_prompt_that_two_traces_have_is_one_prompt(tune: Tune, shipped: Trace) -> None:
    """It is searched on in both or left out in both, and counts once: with the same texts again all figures stay."""
    once, twice = (tune("talon", traces=traces, folds=3) for traces in ([shipped], [shipped, shipped]))
    assert (once.texts, twice.texts) == (4, 8)
    assert [one.spec for one in twice.folds] == [one.spec for one in once.folds]
    for spec, gain in once.gains.items():
        assert twice.gains[spec].left_out.prompts == gain.left_out.prompts == 4
        assert attrs.astuple(twice.gains[spec].left_out) == pytest.approx(attrs.astuple(gain.left_out))
        assert twice.gains[spec].searched == pytest.approx(gain.searched)


def test_each_set_counts_as_much_as_another(shipped: Trace, monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = Speeds([shipped], Priced(), load_registry(), "auto", 1)
    few, many = [Text(0, "a", 0)], [Text(0, "b", number) for number in range(3)]
    took = {("none", text): 4.0 for text in (*few, *many)}
    took |= {("x", few[0]): 1.0} | {("x", text): 4.0 for text in many}
    monkeypatch.setattr(Speeds, "of", lambda self, spec, text: Speed(1, took[spec, text], 0))
    assert speeds.speed_up("x", [*few, *many]) == pytest.approx(2.0)  # of 4 and 1, and not of 4, 1, 1 and 1


def test_a_policy_is_replayed_once_on_each_text(tune: Tune, speeds: Any) -> None:
    asked: list[tuple[str, Text]] = []

    def noted(spec: str, text: Text, speed: Speed) -> Speed:
        asked.append((spec, text))
        return speed

    speeds(noted)
    tune("chain", "length=1..3", trials=20)
    assert len(asked) == len(set(asked)) <= 4 * 5  # three lengths, the default and plain decoding


def late_asked(known: float | None, outside: Callable[[float], bool]) -> list[float]:
    """What a search asks in its second half, where all that counts is equally fast, but for what is known before."""
    space = space_of(load_registry(), "talon:budget=8,top_k=3,least=0", ["mu=0.1..1"])
    search = Search(space, 0, 60)
    if known is not None:
        search.begin(Trial("", {"mu": str(known)}, 3.0))
    asked = []
    for _ in range(60):
        options = search.ask()
        asked.append(float(options["mu"]))
        search.tell(Trial("", options, 1.0, outside=outside(asked[-1])))
    return asked[30:]


def test_a_trial_that_does_not_count_turns_the_search_away() -> None:
    late = late_asked(None, lambda mu: mu > 0.55)
    assert sum(mu > 0.55 for mu in late) < len(late) / 4  # where half would be


def test_a_search_makes_use_of_the_policy_as_it_is() -> None:
    assert late_asked(0.3, lambda mu: False) != late_asked(None, lambda mu: False)


@pytest.mark.parametrize(
    ("plan", "sentence"),
    [
        ({"trials": 0}, "--trials is 0; it must be at least 1"),
        ({"folds": 1}, "--folds is 1; it must be at least 2"),
        ({"seed": -1}, "--seed is -1; it must be at least 0"),
        ({"seed": 2**32}, "--seed is 4294967296; it must be below"),
        ({"jobs": 0}, "--jobs is 0; it must be at least 1"),
        ({"folds": 5}, "the set 'prompts' has 4 prompts, fewer than 5 folds"),
    ],
)
def test_a_plan_that_cannot_be_gets_a_sentence(tune: Tune, plan: dict[str, int], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        tune("talon", **plan)


def test_costs_of_nothing_get_a_sentence(tune: Tune) -> None:
    with pytest.raises(ValueError, match="by the profile, decoding takes no time"):
        tune("talon", costs=Priced(0.0, 0.0, 0.0))


def test_how_far_it_is_is_reported(shipped: Trace) -> None:
    registry, reports = load_registry(), list[Sequence[int]]()
    plan = TunePlan(trials=3, folds=2)
    tuned([shipped], space_of(registry, "chain"), Priced(), registry, plan, lambda *told: reports.append(told))
    assert reports == [(0, 3), (1, 3), (2, 3), (3, 3)]
