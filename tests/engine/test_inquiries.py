"""What drafters ask the target beside their trees: it is answered, bounded and checked, and changes nothing else."""

from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import pytest
import torch

from talon_core import Committed, Drafter, Engine, Inquirer, Inquiry, PluginError, Request, TableTarget, TokenTree
from talon_core.candidates import Candidates
from talon_core.certify.exact import Given, ancestral_law, distance, emitted_law
from talon_core.decoding.decoder import Decoder
from talon_core.drafter import Proposed
from talon_core.engine.inquiries import Asked, answered
from talon_core.hf.target import HFTarget
from talon_core.rounds import Round
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter, check_drafter
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_strategies import Chain, Match, RecursiveRejection, SpecInfer, Talon
from talon_tests.tiny_models import tiny_model

VOCAB = 4
TABLE = np.random.default_rng(0).normal(size=(VOCAB,) * 3) * 2
LAWS = np.random.default_rng(1).dirichlet(np.ones(VOCAB), size=5)
MOST, DEEPEST = 7, 3


class Asking(Inquirer):
    """Drafts from tables, asks about random nodes beside every tree, and notes what it asked and was told.

    Some of the nodes that it adds hold tokens that stand in the tree already, or that the target is about to say.
    """

    most_added = MOST

    def __init__(self, drafter: Drafter | None = None, vocab_size: int = VOCAB) -> None:
        self.drafter = drafter if drafter is not None else TableDrafter(LAWS)
        self.max_depth = self.drafter.max_depth
        self.vocab_size = vocab_size
        self.noted: dict[int, list[tuple[list[int], TokenTree, Inquiry]]] = {}  # by slot: the text, and what was asked
        self.told: dict[int, list[Any]] = {}
        self.texts: dict[int, list[int]] = {}

    def open(self, slot, prompt, room):
        self.drafter.open(slot, prompt, room)
        self.texts[slot], self.noted[slot], self.told[slot] = prompt.tolist(), [], []

    def propose(self, frontiers):
        return self.drafter.propose(frontiers)

    def inquire(self, slot: int, tree: TokenTree, deepest: int) -> Inquiry | None:
        rng = np.random.default_rng((len(self.texts[slot]), len(tree)))
        depths, parents, tokens = tree.depths.tolist(), [], []
        for _ in range(MOST):
            parent = int(rng.integers(len(depths)))
            if depths[parent] < min(deepest, DEEPEST):
                parents.append(parent)
                tokens.append(int(rng.integers(self.vocab_size)))
                depths.append(depths[parent] + 1)
        nodes = rng.integers(0, len(depths), 4)
        asked = Inquiry(np.array(tokens, dtype=np.int64), np.array(parents, dtype=np.int64), nodes)
        self.noted[slot].append(([*self.texts[slot]], tree, asked))
        return asked

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self.drafter.commit(committed)
        for slot, one in committed.items():
            self.texts[slot] += one.tokens.tolist()
            self.told[slot].append(None if one.answers is None else one.answers.tolist())


def joined(tree: TokenTree, asked: Inquiry) -> TokenTree:
    return tree.extend(asked.tokens, asked.parents, np.zeros(len(asked.tokens)))


def request(seed: int = 0, length: int = 12, draws: bool = True) -> Request:
    return Request(np.array([0, 1, 2]), length, Sampling(do_sample=draws), seed=seed)


def without_inquiries(rounds: list[Round]) -> list[Any]:
    return [(one.tree.tokens.tolist(), one.path.tolist(), one.tokens.tolist()) for one in rounds]


@pytest.mark.parametrize("draws", [False, True])
@pytest.mark.parametrize(("policy", "rule"), [(Talon(budget=5, top_k=2), Match()), (SpecInfer(), RecursiveRejection())])
def test_the_answers_are_the_targets_best_tokens_and_nothing_else_changes(draws: bool, policy: Any, rule: Any) -> None:
    target, drafter = TableTarget(TABLE), Asking()
    sent = request(draws=draws)
    (result,) = Decoder(target, rule, policy, Given(drafter)).run_all([sent])
    (plain,) = Decoder(TableTarget(TABLE), rule, policy, Given(TableDrafter(LAWS))).run_all([attrs.evolve(sent)])
    assert without_inquiries(result.rounds) == without_inquiries(plain.rounds)
    noted = drafter.noted[0]
    assert len(noted) > 2
    wanted = [one for one in result.rounds if one.layer_seconds]  # at the last token nobody wants a draft
    assert [one.inquired for one in wanted] == [len(asked.tokens) for _, _, asked in noted]
    assert len(result.rounds) - len(wanted) <= 1
    assert max(one.inquired for one in result.rounds) > 2
    assert result.stats.nodes_verified == sum(len(one.tree) + one.inquired for one in result.rounds)
    assert result.stats.nodes_verified > plain.stats.nodes_verified
    for (text, tree, asked), told in zip(noted, drafter.told[0], strict=False):
        whole = joined(tree, asked)
        paths = [whole.tokens[whole.path(node)[1:]].tolist() for node in asked.nodes.tolist()]
        assert told == [int(target.after([*text, *path]).argmax()) for path in paths]


@pytest.mark.parametrize(
    ("policy", "rule"), [(Chain(length=2), Match()), (SpecInfer(widths=(2,)), RecursiveRejection())]
)
def test_the_law_of_the_text_stays_the_targets_whatever_is_asked(policy: Any, rule: Any) -> None:
    table = np.random.default_rng(3).normal(size=(2, 2)) * 2
    sent = Request(np.array([0, 1]), 4, Sampling(do_sample=True))
    laws = np.array([[0.3, 0.7], [0.9, 0.1]])
    drafter = Asking(TableDrafter(laws), vocab_size=2)
    emitted = emitted_law(Decoder(TableTarget(table), rule, policy, Given(drafter)), sent)
    assert drafter.noted[0]
    assert distance(emitted, ancestral_law(TableTarget(table), sent)) <= 1e-12


class EveryOther(Talon):
    """Wants a draft behind texts of even length alone."""

    even = True

    def begin(self, sequence):
        one = super().begin(sequence)
        object.__setattr__(one, "even", sequence.prompt_length % 2 == 0)
        return one

    def width(self, tree):
        return super().width(tree) if self.even else 0

    def observe(self, round_):
        object.__setattr__(self, "even", (round_.context + len(round_.tokens)) % 2 == 0)


@pytest.mark.parametrize("policy", [EveryOther(budget=5, top_k=2), None])
def test_nothing_is_asked_in_a_round_for_which_the_policy_wants_no_draft(policy: Any) -> None:
    drafter = Asking()
    engine = Engine(TableTarget(TABLE), Match(), policy, drafter)
    sequence = engine.submit(request())
    while not sequence.finished:
        engine.step()
    asked = [text for text, _, _ in drafter.noted[0]]
    wanted = [one.context for one in sequence.rounds if policy is not None and one.context % 2 == 0]
    assert [len(text) for text in asked] == wanted
    assert {one.context % 2 for one in sequence.rounds if one.inquired} == ({0} if policy is not None else set())
    assert any(one.context % 2 for one in sequence.rounds)


def test_every_sequence_of_a_batch_gets_its_own_answers() -> None:
    target, drafter = TableTarget(TABLE), Asking()
    engine = Engine(target, Match(), Talon(budget=5, top_k=2), drafter, allocator=None)
    sequences = [engine.submit(Request(np.array(prompt), 9)) for prompt in ([0, 1], [3, 3, 1], [2])]
    while not all(one.finished for one in sequences):
        engine.step()
    assert len(drafter.noted) == 3
    for slot, noted in drafter.noted.items():
        for (text, tree, asked), told in zip(noted, drafter.told[slot], strict=False):
            whole = joined(tree, asked)
            paths = [whole.tokens[whole.path(node)[1:]].tolist() for node in asked.nodes.tolist()]
            assert told == [int(target.after([*text, *path]).argmax()) for path in paths]
    first = [one.rounds[0] for one in sequences]
    assert {one.nodes for one in first} == {sum(one.rows for one in first)}


class Foresees(Asking):
    """Asks about the text that the target is going to write, so that a walk would go on there if it could."""

    def __init__(self, drafter: Drafter, text: list[int]) -> None:
        super().__init__(drafter)
        self.text = text

    def inquire(self, slot: int, tree: TokenTree, deepest: int) -> Inquiry | None:
        ahead = self.text[len(self.texts[slot]) :][: min(deepest, 3)]
        if not ahead:
            return None
        parents = [0, *range(len(tree), len(tree) + len(ahead) - 1)]
        nodes = np.arange(len(tree), len(tree) + len(ahead))
        return Inquiry(np.array(ahead), np.array(parents), nodes)


@pytest.mark.parametrize("recorded", [False, True])
def test_a_device_walks_to_no_node_that_was_only_asked_about(recorded: bool) -> None:
    model = tiny_model("llama")
    prompts = [np.array([5, 9, 3]), np.array([40, 7, 5, 5, 2])]
    texts = {}
    for prompt in prompts:
        ids = torch.from_numpy(prompt)[None]
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=14, pad_token_id=0
        )
        texts[len(prompt)] = out[0].tolist()
    found = {}
    for name in ("host", "device"):
        backend: Any = TapedBackend(PlainDevice()) if name == "device" else _sdpa()
        target = HFTarget(model, backend, graphs=TapeRecorder if recorded and name == "device" else None)
        drafters, rounds = [], []
        for prompt in prompts:
            drafter = Foresees(TableDrafter(np.random.default_rng(2).dirichlet(np.ones(97), 3)), texts[len(prompt)])
            engine = Engine(target, Match(), Chain(length=2), drafter)
            sequence = engine.submit(Request(prompt, 14))
            while not sequence.finished:
                engine.step()
            assert sequence.error is None
            assert [*prompt.tolist(), *sequence.token_ids] == texts[len(prompt)]
            rounds.append([*without_inquiries(sequence.rounds), *(one.inquired for one in sequence.rounds)])
            drafters.append(drafter.told)
            assert max(one.inquired for one in sequence.rounds) == 3
            assert all(one.path[-1] < len(one.tree) for one in sequence.rounds)
            known = drafter.told[0]
            after = texts[len(prompt)][len(prompt) :]
            assert known[0] == after[1:4]  # its guess was the text itself, so these are the tokens one further on
        found[name] = (rounds, drafters)
    assert found["host"] == found["device"]


def _sdpa() -> Any:
    from talon_core.plugins.registry import load_registry

    return load_registry().get("attention backend", "sdpa").cls()


class Silent(TableDrafter):
    """Knows nothing of any node."""

    def propose(self, frontiers: Any) -> Proposed:
        return Proposed([Candidates.unknown(one.nodes) for one in frontiers])


class Says(Asking):
    """Drafts nothing, and asks what it is given to ask."""

    def __init__(self, asks: Any) -> None:
        super().__init__(Silent(LAWS))
        self.asks = asks

    def inquire(self, slot: int, tree: TokenTree, deepest: int) -> Any:
        return self.asks(tree, deepest) if callable(self.asks) else self.asks


@pytest.mark.parametrize(
    ("asks", "says"),
    [
        (3, "returned 3 from inquire; it must return an Inquiry, or None"),
        (Inquiry([0], [0, 0], [0]), "three rows of whole numbers"),
        (Inquiry([0.5], [0], [0]), "three rows of whole numbers"),
        (Inquiry([[0]], [[0]], [0]), "three rows of whole numbers"),
        (Inquiry([0] * 8, [0] * 8, [0]), "added 8 nodes to a tree; its most_added is 7"),
        (Inquiry([4], [0], [0]), "asked about token 4; the vocabulary has ids 0 to 3"),
        (Inquiry([-1], [0], [0]), "asked about token -1"),
        (Inquiry([1], [-1], [0]), "added nodes that make no tree: node 1 has parent -1"),
        (Inquiry([1, 1], [2, 0], [0]), "added nodes that make no tree: node 1 has parent 2"),
        (Inquiry([1], [0], [2]), "asked about node 2; there are nodes 0 to 1"),
        (
            Inquiry([1, 1, 1, 1], [0, 1, 2, 3], [0]),
            "added a node of depth 4; the deepest that may be added has depth 3",
        ),
        (lambda tree, deepest: 1 // 0, "raised ZeroDivisionError"),
    ],
)
def test_what_cannot_be_asked_ends_the_text_and_names_the_drafter(asks: Any, says: str) -> None:
    engine = Engine(TableTarget(TABLE), Match(), Chain(length=1), Says(asks))
    sequence = engine.submit(Request(np.array([0, 1]), 4))
    engine.step()
    assert isinstance(sequence.error, PluginError)
    assert says in str(sequence.error)
    assert "Says" in str(sequence.error)


def test_an_inquiry_may_ask_about_the_tree_alone() -> None:
    target = TableTarget(TABLE)
    drafter = Says(Inquiry([], [], [0, 0]))
    engine = Engine(target, Match(), Chain(length=1), drafter)
    sequence = engine.submit(Request(np.array([0, 1]), 3))
    engine.step()
    first = int(target.after([0, 1]).argmax())
    assert sequence.token_ids == [first]
    assert drafter.told[0] == [[first, first]]
    assert sequence.rounds[0].inquired == 0


def test_where_one_sequence_asks_nonsense_the_others_go_on() -> None:
    drafter = Says(lambda tree, deepest: 3 if int(tree.tokens[0]) == 1 else None)
    engine = Engine(TableTarget(TABLE), Match(), Chain(length=1), drafter)
    sequences = [engine.submit(Request(np.array([root]), 2)) for root in (1, 2)]
    engine.step()
    assert isinstance(sequences[0].error, PluginError)
    engine.step()
    assert sequences[1].finish_reason == "length"


def test_caches_have_room_for_what_is_added() -> None:
    class Rooms(TableTarget):
        def open(self, slot: int, room: int) -> None:
            rooms.append(room)
            super().open(slot, room)

    rooms: list[int] = []
    for drafter in (Asking(), TableDrafter(LAWS)):
        Decoder(Rooms(TABLE), Match(), Chain(length=2), Given(drafter)).run_all([request()])
    assert rooms == [3 + 12 + 3 + MOST, 3 + 12 + 3]


@pytest.mark.parametrize("most", [-1, 2.5, True, "many", 10**6])
def test_a_number_of_nodes_that_is_none_is_refused(most: Any) -> None:
    drafter = Asking()
    drafter.most_added = most
    with pytest.raises(PluginError, match="has most_added = "):
        Engine(TableTarget(TABLE), Match(), Chain(length=2), drafter)


def test_answers_are_those_of_the_nodes_that_were_asked_about() -> None:
    logits = torch.tensor([[0.0, 1.0], [3.0, 1.0], [0.0, 9.0]])
    asked = Asked(TokenTree.root(0), 2, np.array([2, 1, 1]))
    assert answered({4: asked}, {4: logits})[4].tolist() == [1, 0, 0]


class Forgetful(Asking):
    """Its candidates hang on how often it has asked."""

    def propose(self, frontiers: Any) -> Any:
        drafter = TableDrafter(np.roll(LAWS, sum(map(len, self.noted.values())), axis=1))
        return drafter.propose(frontiers)


def test_the_kit_lets_it_ask_and_finds_what_that_must_not_change() -> None:
    target = TableTarget(TABLE)
    check_drafter(lambda target: Asking(), target, max_examples=5)
    with pytest.raises(AssertionError, match="Forgetful"):
        check_drafter(lambda target: Forgetful(), target, max_examples=20)
    with pytest.raises(PluginError, match="returned 3 from inquire"):
        check_drafter(lambda target: Says(3), target, max_examples=5)
