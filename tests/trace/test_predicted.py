"""With costs, a replay says how long decoding would take: what each part of each round takes, added up."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from talon_core.costs import Costs
from talon_core.plugins.parts import Parts
from talon_core.plugins.registry import load_registry
from talon_core.profiles.measure import Measuring, ProfilePlan
from talon_core.trace.folder import Trace
from talon_core.trace.methods import parse_methods
from talon_core.trace.replay import Replay, Replayed, Totals
from talon_core.trace.run import replayed


class Known(Costs):
    """Each part takes time of another order of magnitude, so that none can stand for another."""

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return 1e6 * nodes + 1e3 * context

    def draft(self, rows: int, width: int) -> float:
        return 1e10 * rows + 1e9 * width

    def accept(self, nodes: int) -> float:
        return 1e12 * nodes

    def commit(self, tokens: int) -> float:
        return 1e14 * tokens

    def tell(self, tokens: int) -> float:
        return 1e16 * tokens

    def read(self, tokens: int) -> float:
        return 1e18 * tokens


class Little(Costs):
    """Knows of verifying alone."""

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return 100.0

    def draft(self, rows: int, width: int) -> None:
        return None


def of(trace: Trace, spec: str, costs: Costs | None) -> list[Replayed]:
    replay, (method,) = Replay(trace, costs), parse_methods([spec], trace, load_registry())
    return [replay.text(method, text) for text in trace]


def layers(one: Replayed) -> list[tuple[int, int]]:
    """Rows and widths of a chain's layers: one row, one candidate."""
    return [(1, 1) for round_ in one.rounds for _ in range(round_.draft_passes)]


def test_every_part_of_every_round_is_counted(tiny: Any, recorded: Callable[..., Trace]) -> None:
    costs = Known()
    for one in of(recorded(tiny), "chain:length=3", costs):
        rounds = one.rounds
        expected = costs.read(one.text.prompt_tokens)
        expected += sum(costs.verify(len(each.tree), each.context) for each in rounds)
        expected += sum(costs.accept(len(each.tree)) + costs.commit(len(each.tokens)) for each in rounds)
        expected += sum(costs.tell(len(each.tokens)) for each in rounds[:-1])
        expected += sum(costs.draft(*layer) for layer in layers(one))
        assert one.seconds == pytest.approx(expected, rel=1e-9)
        assert any(each.draft_passes > 1 for each in rounds)


def test_where_nothing_is_drafted_no_drafter_is_counted(tiny: Any, recorded: Callable[..., Trace]) -> None:
    for one in of(recorded(tiny), "none", Known()):
        drafting = sum(span.seconds for each in one.rounds for span in each.spans if span.part == "draft")
        assert drafting < 1


def test_a_drafter_of_texts_takes_what_it_takes_here(tiny: Any, recorded: Callable[..., Trace]) -> None:
    for one in of(recorded(tiny), "ngram/chain:length=3", Known()):
        drafting = sum(span.seconds for each in one.rounds for span in each.spans if span.part == "draft")
        assert 0 < drafting < 10


def test_without_a_clock_nothing_hangs_on_how_long_it_takes_here(tiny: Any, recorded: Callable[..., Trace]) -> None:
    trace, costs = recorded(tiny), Known()
    for spec in ("chain:length=3", "ngram/chain:length=3"):
        replay, (method,) = Replay(trace, costs, timed=False), parse_methods([spec], trace, load_registry())
        once, again = ([replay.text(method, text) for text in trace] for _ in range(2))
        assert [one.seconds for one in once] == [one.seconds for one in again]
        assert not [span for one in once for each in one.rounds for span in each.spans if span.part == "policy"]
        for one in once:
            drafting = sum(span.seconds for each in one.rounds for span in each.spans if span.part == "draft")
            assert drafting >= 1e10  # a layer's price, of a drafter of texts as well


def test_what_is_not_known_takes_no_time(tiny: Any, recorded: Callable[..., Trace]) -> None:
    for one in of(recorded(tiny), "chain:length=3", Little()):
        assert one.seconds == pytest.approx(100.0 * len(one.rounds), abs=1)


def test_the_answer_has_seconds_and_tokens_per_second_only_with_costs(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny)
    methods = parse_methods(["chain:length=3", "none"], trace, load_registry())
    for method in replayed(trace, methods, 1).as_dict()["methods"]:
        assert not {name for name in method if name.startswith("predicted")}
    for method in replayed(trace, methods, 1, costs=Little()).as_dict()["methods"]:
        assert method["predicted_seconds"] == pytest.approx(100.0 * method["target_passes"], abs=1)
        speed = method["new_tokens"] / method["predicted_seconds"]
        assert method["predicted_tokens_per_second"] == pytest.approx(speed)


def test_totals_of_which_one_is_not_known_are_not_known() -> None:
    known = Totals(1, 1, 0, 1, 1, 0, 2.0)
    assert Totals.all_of([known, known]).predicted_seconds == 4.0
    assert Totals.all_of([known, Totals(1, 1, 0, 1, 1, 0)]).predicted_seconds is None


@pytest.mark.models
@pytest.mark.slow
@pytest.mark.matrix
def test_what_is_predicted_is_what_decoding_takes(
    smollm: Any, recorded: Callable[..., Trace], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Loosely: other programs run on this machine, too."""
    file = Path(tmp_path_factory.mktemp("story")) / "one.txt"
    file.write_text("Write a short story about a lighthouse keeper.")
    trace = recorded(smollm, "eagle3", prompts=file, max_new_tokens=32, nodes=8, depth=4)
    wanted = ProfilePlan((1, 8, 24), (40,), (1,), (1, 4, 8), (8,), repetitions=4)
    profile = Measuring(wanted, *smollm, "eagle3", "smollm2-135m").run("quick")
    from talon_core.decoding.loading import decoder_for_model

    (text,) = trace
    for spec in ("talon:budget=12", "chain:length=3"):
        (found,) = of(trace, spec, profile)
        decoder = decoder_for_model(*smollm, Parts("eagle3", spec, "auto"))
        ids = text.ids[: text.prompt_tokens]
        results = [decoder.generate(ids, max_new_tokens=32, temperature=0.0) for _ in range(4)][1:]
        assert {tuple(one.token_ids) for one in results} == {tuple(text.ids[text.prompt_tokens :].tolist())}
        decoder.engine.forget()
        took = median(one.stats.seconds - one.stats.prefill_seconds for one in results)
        assert found.seconds is not None
        predicted = found.seconds - (profile.read(text.prompt_tokens) or 0.0)
        assert predicted == pytest.approx(took, rel=0.35)
