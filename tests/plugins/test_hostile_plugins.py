"""Plugins that misbehave in a whole generation: they are named, the others go on working, no wrong token comes out."""

import contextlib
from types import SimpleNamespace

import attrs
import numpy as np
import pytest

from talon_core import (
    AcceptanceRule,
    Accepted,
    Engine,
    Growth,
    PluginError,
    Proposed,
    Request,
    TableTarget,
    TokenTree,
    TreePolicy,
    hookimpl,
)
from talon_core.certify.exact import Given, ancestral_law, distance, emitted_law
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.streaming import StreamedGeneration
from talon_core.drafter import DrafterSpec
from talon_core.engine.checked_drafter import checked_hash
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter

VOCAB = 4
TABLE = np.random.default_rng(7).dirichlet(np.full(VOCAB, 0.7), size=(VOCAB, VOCAB))
DRAFTER = TableDrafter(TABLE[0])
GREEDY = Request(ids=np.array([0, 2]), max_new_tokens=6)
SAMPLED = Request(ids=np.array([0, 2]), max_new_tokens=3, sampling=Sampling(do_sample=True))


@attrs.frozen
class Good(TreePolicy):
    name = "good"
    budget: int = 5

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(min(2, self.budget - len(tree))))


class Hostile(Good):
    """The name that every error must hold."""

    name = "hostile"


@attrs.frozen
class RaisesInGrow(Hostile):
    def grow(self, tree, candidates, choices):
        raise RuntimeError("on purpose")


@attrs.frozen
class RaisesInTheSecondLayer(Hostile):
    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1 // (2 - int(tree.depths.max()) - 1)))


@attrs.frozen
class RaisesInWidth(Hostile):
    def width(self, tree):
        raise RuntimeError("on purpose")


@attrs.frozen
class RaisesInFinish(Hostile):
    def finish(self, tree):
        raise RuntimeError("on purpose")


@attrs.frozen
class RaisesInBegin(Hostile):
    def begin(self, sequence):
        raise RuntimeError("on purpose")


@attrs.frozen
class RaisesInObserve(Hostile):
    def observe(self, round_):
        raise RuntimeError("on purpose")


@attrs.frozen
class Overspends(Hostile):
    budget: int = 3

    def width(self, tree):
        return VOCAB

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(100))


@attrs.frozen
class Overwrites(Hostile):
    def grow(self, tree, candidates, choices):
        candidates.tokens[:] = VOCAB
        return Growth(candidates.best(1))


@attrs.frozen
class Scores(Hostile):
    def finish(self, tree):
        return TokenTree(tokens=tree.tokens, parents=tree.parents, path_logp=np.full(len(tree), np.nan))


@attrs.frozen
class InventsTokens(Hostile):
    def finish(self, tree):
        return TokenTree(tokens=[tree.tokens[0], VOCAB], parents=[-1, 0], path_logp=[0.0, 0.0])


@attrs.frozen
class ChangesTheRoot(Hostile):
    def finish(self, tree):
        return TokenTree(tokens=(tree.tokens + 1) % VOCAB, parents=tree.parents, path_logp=tree.path_logp)


@attrs.frozen
class WrongBudget(Hostile):
    budget: object = "many"


@attrs.frozen
class OverwritesTheRoundsTokens(Hostile):
    def observe(self, round_):
        round_.tokens[:] = 0


@attrs.frozen
class OverwritesTheRoundsPath(Hostile):
    def observe(self, round_):
        round_.path[:] = 0


@attrs.frozen
class OverwritesTheTree(Hostile):
    def observe(self, round_):
        round_.tree.tokens[:] = 0


HOSTILE = [
    *(RaisesInGrow, RaisesInTheSecondLayer, RaisesInWidth, RaisesInFinish, Overspends, Overwrites, Scores),
    *(InventsTokens, ChangesTheRoot),
    *(RaisesInBegin, RaisesInObserve),
    *(OverwritesTheRoundsTokens, OverwritesTheRoundsPath, OverwritesTheTree),
]


@attrs.frozen
class ChoosesNothing(Good):
    def grow(self, tree, candidates, choices):
        return Growth([])


@attrs.frozen
class SendsOnlyTheRoot(Good):
    def finish(self, tree):
        return tree.keep([0])


@attrs.frozen
class InventsNodes(Good):
    """Sends nodes that no drafter proposed, one token twice under the same parent, and shuffled scores."""

    def finish(self, tree):
        if tree.depths.max() < 2:
            return tree
        return TokenTree(tokens=[tree.tokens[0], 1, 1, 3, 2], parents=[-1, 0, 0, 1, 2], path_logp=[0.0, -9, -1, 0, 5])


@attrs.frozen
class Asks(Good):
    """Draws from the round's randomness as often as it likes, and does what it says."""

    def grow(self, tree, candidates, choices):
        tosses = [choices.coin(0.5) for _ in range(2)]
        return Growth(candidates.best(sum(tosses)) if len(tree) < 3 else [])


def test_a_policy_of_no_budget_is_named_before_anything_is_decoded():
    with pytest.raises(PluginError, match=r"^tree policy 'hostile' .* has a budget of 'many'; it must be a whole"):
        Decoder(target(), rule(), WrongBudget(), Given(DRAFTER))


ODD = [ChoosesNothing, SendsOnlyTheRoot, InventsNodes, Asks]
"""Strange, and nothing is wrong with them."""


def target():
    return TableTarget(np.log(TABLE))


def decode(policy, drafter=DRAFTER, request=GREEDY):
    generation = Decoder(target(), rule(), policy, Given(drafter)).run(request)
    for _ in generation:
        pass
    return generation.result()


def rule():
    return build(load_registry(), "rule", "match")


def plain(request=GREEDY):
    generation = Decoder(target(), rule()).run(request)
    for _ in generation:
        pass
    return generation.token_ids


@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_hostile_policy_is_named_and_what_came_out_before_is_right(hostile):
    decoder = Decoder(target(), rule(), hostile(), Given(DRAFTER))
    generation = decoder.run(GREEDY)
    with pytest.raises(PluginError, match=r"^tree policy 'hostile'"):
        for _ in generation:
            pass
    assert generation.token_ids == plain()[: len(generation.token_ids)]


@pytest.mark.parametrize("hostile", HOSTILE)
def test_after_a_hostile_policy_another_decodes_as_ever_with_the_same_target_and_drafter(hostile):
    shared = target()
    with pytest.raises(PluginError):
        list(Decoder(shared, rule(), hostile(), Given(DRAFTER)).run(GREEDY))
    generation = Decoder(shared, rule(), Good(), Given(DRAFTER)).run(GREEDY)
    list(generation)
    assert generation.token_ids == plain()


@pytest.mark.parametrize("odd", ODD)
def test_an_odd_policy_changes_nothing_of_what_is_decoded(odd):
    assert decode(odd()).token_ids == plain()
    law = emitted_law(Decoder(target(), rule(), odd(), Given(DRAFTER)), SAMPLED)
    assert distance(law, ancestral_law(target(), SAMPLED)) <= 1e-12


def test_a_policy_that_never_chooses_still_comes_to_the_end_one_token_a_pass():
    result = decode(ChoosesNothing())
    assert (result.finish_reason, result.stats.rounds) == ("length", GREEDY.max_new_tokens)


@attrs.frozen
class UnlocksTheTokens(Good):
    """Goes out of its way to write into what is read only."""

    def observe(self, round_):
        base = round_.tokens.base
        for array in (base, round_.tokens):
            with contextlib.suppress(ValueError):
                array.flags.writeable = True
                array[:] = 0


def test_a_policy_that_writes_into_what_it_is_shown_of_a_round_changes_no_token():
    generation = Decoder(target(), rule(), UnlocksTheTokens(), Given(DRAFTER)).run(GREEDY)
    stream = StreamedGeneration(generation, Spelling())
    text = "".join(chunk.text for chunk in stream)
    assert generation.token_ids == plain()
    assert text == "".join(map(str, plain()))


class Spelling:
    """What is needed of a frontend to stream: a token's text is its number."""

    def text_stream(self):
        return self

    def push(self, token_ids):
        return "".join(map(str, token_ids))

    def end(self):
        return ""


class Scribbling(TableDrafter):
    """Writes zeros into everything it is given that holds tokens or nodes."""

    def open(self, slot, prompt, room):
        prompt[:] = 0

    def propose(self, frontiers):
        proposed = super().propose(frontiers)
        for array in (of for one in frontiers for of in (one.nodes, one.tree.tokens, one.tree.parents)):
            with pytest.raises(ValueError, match="read-only"):
                array[:] = 0
        return proposed

    def commit(self, committed):
        for one in committed.values():
            one.tokens[:] = 0
            one.nodes[:] = 0


def test_a_drafter_that_writes_into_what_it_is_given_changes_no_token():
    request = attrs.evolve(GREEDY, ids=GREEDY.ids.copy())
    result = decode(Good(), Scribbling(TABLE[0]), request)
    assert result.token_ids == plain()
    assert result.prompt_ids.tolist() == request.ids.tolist() == GREEDY.ids.tolist()
    assert [token for round_ in result.rounds for token in round_.tokens.tolist()] == plain()


class Moody(TableDrafter):
    """A drafter that raises in one of its methods, or spoils the shapes after a while."""

    def __init__(self, where):
        super().__init__(TABLE[0])
        object.__setattr__(self, "where", where)
        object.__setattr__(self, "calls", [])

    def open(self, slot, prompt, room):
        self.fail("open")

    def read(self, parts):
        self.fail("read")

    def propose(self, frontiers):
        self.calls.append(1)
        if len(self.calls) <= 2:
            return super().propose(frontiers)
        self.fail("propose")
        proposed = super().propose(frontiers)
        if self.where == "shapes":
            return Proposed([attrs.evolve(one, tokens=one.tokens[:, :-1]) for one in proposed.candidates])
        return Proposed([]) if self.where == "nobody" else proposed

    def commit(self, committed):
        self.fail("commit")

    def close(self, slot):
        self.fail("close")

    def fail(self, where):
        if self.where == where:
            raise RuntimeError("on purpose")


@pytest.mark.parametrize("where", ["propose", "shapes", "nobody", "open", "read", "commit"])
def test_a_hostile_drafter_is_named_and_what_came_out_before_is_right(where):
    generation = Decoder(target(), rule(), Good(), Given(Moody(where))).run(GREEDY)
    with pytest.raises(PluginError, match=r"^drafter '(Moody|given)'"):
        for _ in generation:
            pass
    assert generation.token_ids == plain()[: len(generation.token_ids)]


def test_a_drafter_that_fails_at_closing_is_named_in_the_log_and_the_text_is_there(caplog):
    """By then the sequence has left: what fails is nobody's error any more, and its slot can be taken again."""
    drafter, shared = Moody("close"), target()
    engine = Engine(shared, rule(), Good(), drafter, Given(drafter), keep=False)
    for _ in range(2):
        sequence = engine.submit(attrs.evolve(GREEDY))
        while not sequence.finished:
            engine.step()
        assert (sequence.token_ids, sequence.error) == (plain(), None)
    assert shared.occupied == set()
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 2
    assert all("drafter 'given' (" in one and "raised RuntimeError in close: on purpose" in one for one in said)


@attrs.frozen
class BrokenSpec(DrafterSpec):
    """Fails where a drafter is opened: with a sentence for the user, or by mistake."""

    name = "broken"
    error: type[Exception]

    def open(self, target):
        raise self.error("on purpose")


def test_a_drafter_that_cannot_be_opened_by_mistake_is_named_and_a_sentence_for_users_stays_itself():
    with pytest.raises(PluginError, match=r"^drafter 'broken' .* raised AttributeError in open: on purpose"):
        Decoder(target(), rule(), Good(), BrokenSpec(AttributeError))
    with pytest.raises(ValueError, match=r"^on purpose$"):
        Decoder(target(), rule(), Good(), BrokenSpec(ValueError))


@attrs.frozen
class Hashed(DrafterSpec):
    """Tells of its files in a way of its own."""

    name = "hashed"
    said: object = None

    def files_hash(self):
        if isinstance(self.said, Exception):
            raise self.said
        return self.said

    def open(self, target):
        return DRAFTER


@pytest.mark.parametrize(
    ("said", "error", "sentence"),
    [
        (7, PluginError, r"^drafter 'hashed' .* returned 7 from files_hash; it must return a text"),
        (KeyError("x"), PluginError, r"^drafter 'hashed' .* raised KeyError in files_hash: "),
        (ValueError("no such files"), ValueError, r"^no such files$"),
    ],
)
def test_a_drafter_that_cannot_tell_its_files_is_named_and_a_sentence_for_users_stays_itself(said, error, sentence):
    with pytest.raises(error, match=sentence):
        checked_hash(Hashed(said))
    assert checked_hash(Hashed("ab")) == "ab"
    assert checked_hash(BrokenSpec(ValueError)) == ""


@attrs.frozen
class WrongPath(AcceptanceRule):
    name = "wrong"
    exact_for = frozenset({"deterministic"})
    answer: object = None

    def walk(self, tree, laws, choices):
        if self.answer == "raise":
            raise RuntimeError("on purpose")
        return self.answer


def accepted(path, token):
    return Accepted(np.array(path), token)


@pytest.mark.parametrize(
    "answer",
    [
        "raise",
        None,
        accepted([], 1),
        accepted([1], 1),
        accepted([0, 4], 1),
        accepted([0, 99], 1),
        accepted([0], VOCAB),
        accepted([0], -1),
    ],
)
def test_a_hostile_rule_is_named(answer):
    with pytest.raises(PluginError, match=r"^rule 'wrong'"):
        list(Decoder(target(), WrongPath(answer), Good(), Given(DRAFTER)).run(GREEDY))


def test_a_rule_is_refused_before_the_first_token_for_trees_it_is_not_exact_for():
    @attrs.frozen
    class Sampled(Good):
        children = "sampled"

    with pytest.raises(ValueError, match=r"rule 'wrong' .* is not exact for the sampled trees of tree policy 'good'"):
        Decoder(target(), WrongPath(), Sampled(), Given(DRAFTER))


def module(**hooks):
    """A plugin's module, and the loader that an entry point would be."""
    made = SimpleNamespace(
        **{name: hookimpl((lambda given: lambda: given)(listed), specname=name) for name, listed in hooks.items()}
    )
    return lambda: made


def broken_import():
    raise ImportError("cannot import name 'flux' from 'capacitor'")


def broken_hook():
    @hookimpl
    def talon_policies():
        raise RuntimeError("no policies today")

    return SimpleNamespace(talon_policies=talon_policies)


class NotAttrs(TreePolicy):
    name = "not-attrs"
    budget = 4

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(1))


@attrs.frozen
class Usurper(RaisesInGrow):
    name = "good"


HOSTILE_PLUGINS = {
    "fails to import": (broken_import, "ImportError: cannot import name 'flux'"),
    "hook raises": (broken_hook, "RuntimeError: no policies today"),
    "takes a name": (module(talon_policies=[Usurper]), "is called 'good', a name that nice:policies has taken"),
    "wrong type": (module(talon_policies=42), "TypeError"),
    "instances": (module(talon_policies=[Good()]), "is not a subclass of TreePolicy"),
    "another kind": (module(talon_drafters=[Good]), "is not a subclass of DrafterSpec"),
    "not attrs": (module(talon_policies=[NotAttrs]), "is not an attrs class; decorate it with @attrs.frozen"),
    "unknown hook": (module(talon_polices=[Good]), "talon_polices"),
}


@pytest.mark.parametrize("case", HOSTILE_PLUGINS)
def test_beside_a_hostile_plugin_the_others_decode_as_ever(case):
    load, complaint = HOSTILE_PLUGINS[case]
    registry = load_registry([("nice:policies", module(talon_policies=[Good])), ("evil:policies", load)])
    with pytest.raises(LookupError, match=r"failed to load: evil:policies") as caught:
        registry.get("tree policy", "missing")
    assert complaint in str(caught.value)
    assert decode(build(registry, "tree policy", "good:budget=4")).token_ids == plain()


def test_a_drafter_that_cannot_be_opened_is_no_riddle():
    @attrs.frozen
    class Unfit(DrafterSpec):
        name = "unfit"

        def open(self, target):
            raise ValueError("it was trained for another vocabulary")

    with pytest.raises(ValueError, match="another vocabulary"):
        Decoder(target(), rule(), Good(), Unfit())
