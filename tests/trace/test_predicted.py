"""With costs, a replay says how long decoding would take: what each part of each round takes, added up."""

from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import attrs
import numpy as np
import pytest

from talon_core.candidates import Candidates
from talon_core.choices import Choices
from talon_core.costs import Costs
from talon_core.plugins.parts import Parts
from talon_core.plugins.registry import load_registry
from talon_core.policy import Growth, SequenceInfo, TreePolicy
from talon_core.profiles.measure import Measuring, ProfilePlan
from talon_core.rounds import Round
from talon_core.runtime.staging import MANY_PENDING
from talon_core.trace.folder import Trace
from talon_core.trace.machines import Machines
from talon_core.trace.methods import parse_methods
from talon_core.trace.prices import priced_target
from talon_core.trace.replay import Replay, Replayed, Totals
from talon_core.trace.run import replayed
from talon_core.trace.several import SeveralTexts
from talon_core.trace.simulate import simulated
from talon_core.trace.together import together
from talon_core.tree import TokenTree


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

    def catch_up(self, tokens: int) -> float:
        return 1e17 * tokens

    def read(self, tokens: int) -> float:
        return 1e19 * tokens


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
        asked = [each for each in rounds if each.draft_passes]  # in the last round there may be nothing to draft
        assert asked == rounds[: len(asked)]
        expected += costs.catch_up(one.text.prompt_tokens - 1)
        expected += sum(costs.tell(len(each.tokens)) for each in rounds[: len(asked) - 1])
        expected += sum(costs.draft(*layer) for layer in layers(one))
        assert one.seconds == pytest.approx(expected, rel=1e-9)
        assert any(each.draft_passes > 1 for each in rounds)


class WithPolicy(Known):
    """Tells what the policy takes, too."""

    def besides(self, drafted: bool) -> float:
        return (super().besides(drafted) or 0.0) + 1e16

    def beside_layer(self) -> float:
        return 1e15


def test_a_policy_takes_what_the_costs_say_where_its_time_is_not_taken(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny)
    (method,) = parse_methods(["chain:length=3"], trace, load_registry())
    for text in trace:
        told = Replay(trace, WithPolicy(), timed=False).text(method, text)
        taken = Replay(trace, WithPolicy(), now=lambda: 0.0).text(method, text)
        own = [one.policy_seconds for one in told.rounds]
        assert own == pytest.approx([1e16 + 1e15 * one.draft_passes for one in told.rounds])
        assert sum(one.policy_seconds for one in taken.rounds) == 0.0
        assert taken.seconds == Replay(trace, Known(), timed=False).text(method, text).seconds


class Rests(Known):
    """Knows what rounds take that follow each other without a draft; a pass takes 30 ms, so that three are run."""

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return 0.03 * nodes

    def rest(self, rounds: int) -> float:
        return {3: 0.003}[rounds]


def test_where_nothing_is_ever_drafted_rounds_take_what_they_take_one_behind_another(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny)
    methods = parse_methods(["none", "chain:length=3"], trace, load_registry())
    for costs, besides in ((Rests(), 0.001), (Machines(Rests(), Known()).costs, 0.001), (Known(), 1e12 + 1e14)):
        plain, chain = ([Replay(trace, costs).text(one, text) for text in trace] for one in methods)
        for one in plain:
            passes = sum(costs.verify(1, each.context) or 0.0 for each in one.rounds)
            expected = (costs.read(one.text.prompt_tokens) or 0.0) + passes + besides * len(one.rounds)
            assert one.seconds == pytest.approx(expected, rel=1e-9)
        for one in chain:
            accepted = [each.accept_seconds for each in one.rounds]
            assert accepted == pytest.approx([1e12 * len(each.tree) for each in one.rounds])


@pytest.mark.parametrize("timed", [True, False])
def test_where_nothing_is_drafted_no_drafter_is_counted(tiny: Any, recorded: Callable[..., Trace], timed: bool) -> None:
    trace = recorded(tiny)
    (method,) = parse_methods(["none"], trace, load_registry())
    for text in trace:
        one = Replay(trace, Known(), timed=timed).text(method, text)
        drafting = sum(span.seconds for each in one.rounds for span in each.spans if span.part == "draft")
        assert drafting < 1


def test_plain_decoding_takes_no_longer_where_texts_are_tried_together(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace, costs = recorded(tiny), Known()
    (method,) = parse_methods(["none"], trace, load_registry())
    texts = [*trace]
    grown = together(Replay(trace, costs, timed=False), method, SeveralTexts(texts))
    assert grown is not None
    for text, totals in zip(texts, grown.totals(), strict=True):
        rounds = sum(
            costs.verify(1, text.prompt_tokens + done) + costs.accept(1) + costs.commit(1)
            for done in range(text.positions)
        )
        assert totals.predicted_seconds == pytest.approx(costs.read(text.prompt_tokens) + rounds, rel=1e-12)


class Now(TreePolicy):
    """Drafts a token in some rounds."""

    name = "now-and-then"
    budget = 2

    def __init__(self, *drafted: int) -> None:
        self.drafted, self.rounds = drafted, 0

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        return Now(*self.drafted)

    def width(self, tree: TokenTree) -> int:
        return 1 if len(tree) == 1 and self.rounds in self.drafted else 0

    def grow(self, tree: TokenTree, candidates: Candidates, choices: Choices) -> Growth:
        return Growth(candidates.best(1), frontier=np.arange(0))

    def observe(self, round_: Round) -> None:
        self.rounds += 1


class NowAndAtRest(Now):
    """Says how many rounds there are until it drafts again."""

    def begin(self, sequence: SequenceInfo) -> TreePolicy:
        return NowAndAtRest(*self.drafted)

    def rests(self) -> int:
        return min((one for one in self.drafted if one > self.rounds), default=self.rounds + 1) - self.rounds - 1


class RestsOfAll(Rests):
    """Knows it of any number of rounds; what comes before the commit is not so much that it would be lost beside it."""

    def accept(self, nodes: int) -> float:
        return 0.0

    def rest(self, rounds: int) -> float:
        return 0.001 * rounds + 0.004


def test_rounds_of_a_pause_take_what_they_take_one_behind_another(tiny: Any, recorded: Callable[..., Trace]) -> None:
    trace = recorded(tiny)
    (plain,) = parse_methods(["none"], trace, load_registry())
    by_policy = [attrs.evolve(plain, policy=policy) for policy in (Now(0, 3, 9), NowAndAtRest(0, 3, 9))]
    for text in trace:
        usual, resting = (Replay(trace, RestsOfAll()).text(one, text).rounds for one in by_policy)
        assert len(usual) > 11
        assert [one.commit_seconds for one in usual] == pytest.approx([1e14 * len(one.tokens) for one in usual])
        # two rounds; five, of which three are run together, and the two behind them; and of all that are left threes
        together = {1: 0.003, 2: 0.003, **dict.fromkeys((4, 5, 6), 0.007 / 3), 7: 0.003, 8: 0.003}
        for number, seconds in together.items():
            assert resting[number].commit_seconds == pytest.approx(seconds)
        for one, other in zip(usual, resting, strict=True):
            assert one.tokens.tolist() == other.tokens.tolist()
            assert one.verify_seconds == pytest.approx(other.verify_seconds)
            if one.draft_passes:
                assert other.commit_seconds == one.commit_seconds
        ends = len(usual) - 10
        if ends % 3 == 1:  # the last one is by itself
            assert resting[-1].commit_seconds == usual[-1].commit_seconds
        assert resting[10].commit_seconds == pytest.approx(0.007 / 3)


class Cheap(RestsOfAll):
    """Of a drafter that is worth a try."""

    def verify(self, nodes: int, context: int, batch: int = 1) -> float:
        return 0.025 + 0.005 * nodes

    def draft(self, rows: int, width: int) -> float:
        return 0.004

    def commit(self, tokens: int) -> float:
        return 0.005

    def tell(self, tokens: int) -> float:
        return 0.001

    def catch_up(self, tokens: int) -> float:
        return 0.001

    def read(self, tokens: int) -> float:
        return 0.1


def test_pauses_are_priced_to_the_bit_alike_where_texts_are_tried_together(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny)
    (method,) = parse_methods(["talon-cost"], trace, load_registry())
    replay, texts = Replay(trace, Cheap(), timed=False), [*trace]
    grown = together(replay, method, SeveralTexts(texts))
    assert grown is not None
    apart = [replay.text(method, text) for text in texts]
    assert [one.predicted_seconds for one in grown.totals()] == [one.seconds for one in apart]
    rounds = [one for each in apart for one in each.rounds]
    assert all(one.commit_seconds == pytest.approx(0.005) for one in rounds if one.draft_passes)
    assert {bool(one.draft_passes) for one in rounds} == {False, True}
    assert any(one.commit_seconds < 0.004 for one in rounds)


class NoReading(Known):
    """Of a drafter that has no network, or a profile made before its reading was apart."""

    def catch_up(self, tokens: int) -> None:  # type: ignore[override]
        return None


def hearing(costs: Costs, first: bool, prompt: int, emitted: int) -> float:
    """What a drafter takes that was asked before or not, to hear of what has come since."""
    if costs.catch_up(1) is None or (not first and emitted <= MANY_PENDING):
        return (costs.tell(emitted) or 0.0) if emitted else 0.0
    last = (costs.tell(1) or 0.0) if emitted else 0.0  # the last token is not read but drafted from
    return (costs.catch_up((prompt if first else 0) + emitted - 1) or 0.0) + last


@pytest.mark.parametrize("costs", [Known(), NoReading()])
@pytest.mark.parametrize("drafted", [(0, 3, 6), (0, 18), (2, 3)])
def test_a_drafter_reads_the_prompt_and_hears_of_all_that_was_emitted_when_it_is_next_asked(
    tiny: Any, recorded: Callable[..., Trace], costs: Known, drafted: tuple[int, ...]
) -> None:
    trace = recorded(tiny)
    (plain,) = parse_methods(["none"], trace, load_registry())
    method = attrs.evolve(plain, name="now-and-then", policy=Now(*drafted))
    paused = 0
    for text in trace:
        rounds = Replay(trace, costs).text(method, text).rounds
        untold, first = 0, True
        for one in rounds:
            drafting = sum(span.seconds for span in one.spans if span.part == "draft")
            before = costs.draft(1, 1) + hearing(costs, first, text.prompt_tokens, untold) if one.draft_passes else 0.0
            assert drafting == pytest.approx(before)
            paused = max(paused, untold if one.draft_passes else 0)
            first, untold = first and not one.draft_passes, len(one.tokens) + (0 if one.draft_passes else untold)
        assert {one.draft_passes for one in rounds} == {0, 1}
        found = simulated(trace, method, text, None, Machines(costs))
        assert found.stats.seconds == pytest.approx(Replay(trace, costs, timed=False).text(method, text).seconds)
    assert (paused > MANY_PENDING) is (18 in drafted)


def test_policies_are_told_how_much_of_the_prompt_the_drafter_has_not_read(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny)
    told: list[int] = []

    class Listens(Now):
        def begin(self, sequence: SequenceInfo) -> TreePolicy:
            told.append(sequence.unread)
            return self

    (plain,) = parse_methods(["none"], trace, load_registry())
    for text in trace:
        Replay(trace).text(attrs.evolve(plain, policy=Listens()), text)
    assert told == [text.prompt_tokens - 1 for text in trace]


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


class OfNgram(Known):
    """Costs that were measured with a drafter of texts."""

    def know(self, drafter: str) -> bool:
        return drafter == "ngram"


def drafting_seconds(one: Replayed) -> float:
    return sum(span.seconds for each in one.rounds for span in each.spans if span.part == "draft")


def test_without_a_clock_a_drafter_of_texts_takes_nothing_by_the_costs_of_another_drafter(
    tiny: Any, recorded: Callable[..., Trace]
) -> None:
    trace = recorded(tiny)
    own, looked_up = parse_methods(["chain:length=3", "ngram/chain:length=3"], trace, load_registry())
    for text in trace:
        replay, known = (Replay(trace, costs, timed=False) for costs in (Known(), OfNgram()))
        assert drafting_seconds(replay.text(own, text)) >= 1e10
        assert drafting_seconds(known.text(looked_up, text)) >= 1e10
        free = replay.text(looked_up, text)
        assert drafting_seconds(free) == 0.0
        target = [(len(one.tree), one.context, len(one.tokens)) for one in free.rounds]
        costs = replay.costs_of(looked_up)
        passes = sum(sum(priced_target(costs, *sizes).values()) for sizes in target)
        assert free.seconds == pytest.approx(Known().read(text.prompt_tokens) + passes)
        for costs in (Known(), OfNgram()):
            found = simulated(trace, looked_up, text, None, Machines(Little(), costs))
            assert (found.stats.draft_seconds > 0) is costs.know("ngram")


@pytest.mark.parametrize("costs", [Known(), OfNgram()])
def test_policies_are_told_the_costs_of_the_drafter_that_they_draft_with(
    tiny: Any, recorded: Callable[..., Trace], costs: Known
) -> None:
    trace, text = recorded(tiny), next(iter(recorded(tiny)))
    told: list[Costs] = []

    class Listens(Now):
        def begin(self, sequence: SequenceInfo) -> TreePolicy:
            told.append(sequence.costs)
            return self

    for spec in ("chain", "ngram/chain"):
        (method,) = parse_methods([spec], trace, load_registry())
        listening = attrs.evolve(method, policy=Listens(0))
        Replay(trace, costs).text(listening, text)
        simulated(trace, listening, text, None, Machines(costs))
    prices = [(one.draft(2, 3), one.tell(1) or 0.0, one.catch_up(5) or 0.0) for one in told]
    dear = costs.draft(2, 3), costs.tell(1), costs.catch_up(5)
    assert prices == [dear] * 2 + ([dear] * 2 if costs.know("ngram") else [(0.0, 0.0, 0.0)] * 2)
    assert {(one.verify(3, 9), one.accept(3), one.commit(2), one.read(7), one.fixed) for one in told} == {
        (costs.verify(3, 9), costs.accept(3), costs.commit(2), costs.read(7), costs.fixed)
    }


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
