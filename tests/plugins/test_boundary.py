"""Between a plugin and the engine: what is done to what is shown, and what is returned that is not what it says."""

import asyncio
import contextlib

import attrs
import numpy as np
import pytest

from talon_core import (
    Accepted,
    Candidates,
    Growth,
    PluginError,
    Proposed,
    Request,
    TableTarget,
    TokenTree,
    TreePolicy,
)
from talon_core.certify.exact import Given, ancestral_law, distance, emitted_law
from talon_core.decoding.decoder import Decoder
from talon_core.drafter import DrafterSpec
from talon_core.drawn import Drawn
from talon_core.engine.checked_drafter import described
from talon_core.sampling import Sampling
from talon_core.testing import TableDrafter
from talon_strategies import RecursiveRejection, SampledChain
from talon_strategies.rules.match import Match
from talon_strategies.rules.traversal import Traversal

VOCAB = 4
TABLE = np.random.default_rng(7).dirichlet(np.full(VOCAB, 0.7), size=(VOCAB, VOCAB))
GREEDY = Request(ids=np.array([0, 2]), max_new_tokens=6)
SAMPLED = Request(ids=np.array([0, 2]), max_new_tokens=3, sampling=Sampling(do_sample=True))


@attrs.frozen
class Good(TreePolicy):
    name = "good"
    budget: int = 5

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(min(2, self.budget - len(tree))))


def run(policy, drafter=None, rule=None, request=GREEDY):
    drafter = TableDrafter(TABLE[0]) if drafter is None else drafter
    generation = Decoder(TableTarget(np.log(TABLE)), rule or Match(), policy, Given(drafter)).run(request)
    rounds = list(generation)
    return generation, rounds


def plain():
    return run(None)[0].token_ids


def unlocked(array):
    """The array, and whatever it is a view of, as far as it can be made writeable."""
    found = []
    while isinstance(array, np.ndarray):
        with contextlib.suppress(ValueError):
            array.setflags(write=True)
            found.append(array)
        array = array.base
    return found


def spoil(shown):
    """Does to an object that is shown, and to all that can be reached from it, whatever Python allows."""
    names = ("tokens", "parents", "path_logp", "depths", "ancestor_bits", "logp", "frontier", "path", "law")
    arrays = {name: getattr(shown, name, None) for name in names}
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray):
            continue
        for one in unlocked(array):
            one[...] = 0
        while isinstance(array, np.ndarray):
            with contextlib.suppress(ValueError, AttributeError):
                array.shape = (*array.shape, 1)
            array = array.base
        with contextlib.suppress(AttributeError):
            object.__setattr__(shown, name, np.zeros(3, dtype=np.int64))
    for drawn in getattr(shown, "drawn", {}).values():
        spoil(drawn)
    if hasattr(shown, "drawn"):
        shown.drawn.clear()
    if hasattr(shown, "tree"):
        spoil(shown.tree)


ignoring = pytest.mark.filterwarnings("ignore:Setting the shape:DeprecationWarning")


@attrs.frozen
class Spoils(Good):
    """Spoils what it is shown in the methods it is told to, and else does what `Good` does."""

    name = "spoils"
    where: str = "grow"

    def width(self, tree):
        if self.where == "width":
            spoil(tree)
        return VOCAB

    def grow(self, tree, candidates, choices):
        growth = Growth(candidates.best(min(2, self.budget - len(tree)))) if self.where != "width" else Growth([0])
        if self.where == "grow":
            spoil(tree)
            spoil(candidates)
        return growth

    def finish(self, tree):
        if self.where == "finish":
            spoil(tree)
        return tree

    def observe(self, round_):
        if self.where == "observe":
            spoil(round_)


class SpoilsAndDrafts(TableDrafter):
    """Proposes what the table says, and spoils the trees and frontiers it was given, its prompts and its news."""

    def open(self, slot, prompt, room):
        prompt[:] = 0

    def read(self, parts):
        for part in parts.values():
            spoil(part)
        parts.clear()

    def propose(self, frontiers):
        proposed = super().propose(frontiers)
        for one in frontiers:
            spoil(one.tree)
            for nodes in unlocked(one.nodes):
                nodes[...] = 0
            spoil(one)
        frontiers.clear()
        return proposed

    def commit(self, committed):
        for one in committed.values():
            one.tokens[:] = 0
            one.nodes[:] = 0
            spoil(one)
        committed.clear()


@attrs.frozen
class SpoilsAndWalks(Match):
    """Walks as the rule it is, and spoils the tree before it says where to."""

    def walk(self, tree, laws, choices):
        accepted = super().walk(tree, laws, choices)
        spoil(tree)
        return accepted


@ignoring
@pytest.mark.parametrize("where", ["width", "grow", "finish", "observe"])
def test_a_policy_that_spoils_what_it_is_shown_changes_no_token_and_no_record(where):
    generation, rounds = run(Spoils(where=where))
    assert generation.token_ids == plain()
    assert [token for round_ in rounds for token in round_.tokens.tolist()] == plain()
    assert all(round_.tree.parents[round_.path[1:]].tolist() == round_.path[:-1].tolist() for round_ in rounds)
    assert any(len(round_.tree) > 1 for round_ in rounds)


@ignoring
@pytest.mark.parametrize("where", ["width", "grow", "finish", "observe"])
def test_nor_does_it_change_the_law_of_what_is_sampled(where):
    decoder = Decoder(TableTarget(np.log(TABLE)), Match(), Spoils(where=where), Given(TableDrafter(TABLE[0])))
    assert distance(emitted_law(decoder, SAMPLED), ancestral_law(decoder.target, SAMPLED)) <= 1e-12


@ignoring
@pytest.mark.parametrize("parts", [{"drafter": SpoilsAndDrafts(TABLE[0])}, {"rule": SpoilsAndWalks()}], ids=str)
def test_a_drafter_or_rule_that_spoils_what_it_is_shown_changes_no_token_and_no_record(parts):
    generation, rounds = run(Good(), **parts)
    alone, as_ever = run(Good())
    assert generation.token_ids == alone.token_ids == plain()
    for round_, other in zip(rounds, as_ever, strict=True):
        assert round_.tree.tokens.tolist() == other.tree.tokens.tolist()
        assert round_.path.tolist() == other.path.tolist()


class Liar(TokenTree):
    """A tree whose methods say something else than its arrays."""

    depths = property(lambda self: np.zeros(len(self.tokens), dtype=np.int64))

    def __len__(self):
        return 2

    def child(self, node, token):
        return node

    def path(self, node):
        return np.zeros(1, dtype=np.int64)

    def follow(self, tokens):
        return np.zeros(len(tokens) + 1, dtype=np.int64)

    def copied(self, drawn=None):
        return self

    def without_laws(self):
        return self


@attrs.frozen
class Finishes(Good):
    name = "finishes"
    how: object = None

    def finish(self, tree):
        return self.how(tree)


def as_liar(tree):
    return Liar(tree.tokens, tree.parents, tree.path_logp)


def with_false_depths(tree):
    other = TokenTree(tree.tokens, tree.parents, tree.path_logp)
    object.__setattr__(other, "depths", np.zeros(len(tree), dtype=np.int64))
    return other


def of_writeable_arrays(tree):
    other = TokenTree(tree.tokens, tree.parents, tree.path_logp)
    object.__setattr__(other, "tokens", np.array(tree.tokens))
    kept.append(other.tokens)
    return other


kept = []


@pytest.mark.parametrize("how", [as_liar, with_false_depths, of_writeable_arrays])
def test_of_a_tree_that_is_finished_its_arrays_count_and_nothing_else(how):
    generation, rounds = run(Finishes(how=how))
    assert generation.token_ids == plain()
    assert all(type(round_.tree) is TokenTree for round_ in rounds)
    assert all(array is not round_.tree.tokens for array in kept for round_ in rounds)


def test_a_tree_whose_arrays_were_made_to_lie_is_refused():
    def broken(tree):
        other = TokenTree(tree.tokens, tree.parents, tree.path_logp)
        object.__setattr__(other, "parents", np.arange(len(tree)))
        return other

    with pytest.raises(PluginError, match=r"tree policy 'finishes' .* in finish: node 0 is the root and has parent -1"):
        run(Finishes(how=broken))


class Fickle(Growth):
    """Another choice whenever it is asked: one that is right, then one past the end, and so on."""

    @property
    def chosen(self):
        self.__dict__["asked"] = self.__dict__.get("asked", 0) + 1
        return [0] if self.__dict__["asked"] % 2 else [10**6]


def test_a_growth_is_read_once():
    @attrs.frozen
    class Grows(Good):
        def grow(self, tree, candidates, choices):
            growth = object.__new__(Fickle)
            Growth.frontier.__set__(growth, None)
            Growth.drawn.__set__(growth, {})
            return growth

    assert run(Grows())[0].token_ids == plain()


class Wide(Candidates):
    """Candidates whose methods say something else than their arrays."""

    width = property(lambda self: 1000)

    def parents(self, flat):
        return np.full(len(flat), 3)

    def best(self, count, *, score=None, at_least=-np.inf):
        return np.full(count, 10**6)

    def copied(self):
        return self


class Reuses(TableDrafter):
    """Proposes from buffers that it keeps, and overwrites with nonsense whenever it is called again."""

    def __init__(self):
        super().__init__(TABLE[0])
        object.__setattr__(self, "kept", [])

    def propose(self, frontiers):
        for array in self.kept:
            array[...] = 10**6
        proposed = []
        for one in super().propose(frontiers).candidates:
            arrays = [np.array(array) for array in (one.tokens, one.logp, one.path_logp)]
            self.kept.extend(arrays)
            proposed.append(Wide(one.frontier, *arrays, one.law))
        return Proposed(proposed)

    def commit(self, committed):
        self.propose([])


def test_of_candidates_the_arrays_count_as_they_were_when_they_were_checked():
    generation, rounds = run(Good(), Reuses())
    assert generation.token_ids == plain()
    assert [len(round_.tree) for round_ in rounds] == [len(round_.tree) for round_ in run(Good())[1]]


class Loaded(Candidates):
    """Candidates that draw as their drafter likes."""

    def draw(self, choices, row, count=1, **options):
        return Drawn([int(self.law(row).argmin())], self.law(row))

    def detached(self, *, laws=False):
        return self

    def copied(self):
        return self


class OwnDice(TableDrafter):
    """Hands out candidates that draw by themselves."""

    def propose(self, frontiers):
        return Proposed([
            Loaded(one.frontier, one.tokens, one.logp, one.path_logp, one.law)
            for one in super().propose(frontiers).candidates
        ])  # fmt: skip


def test_a_policy_draws_from_the_rounds_choices_whatever_the_drafter_hands_on():
    trees, request = [], attrs.evolve(SAMPLED, seed=1)
    for drafter in (OwnDice(TABLE[0]), TableDrafter(TABLE[0])):
        generation, rounds = run(SampledChain(length=2), drafter, RecursiveRejection(), request)
        trees.append([generation.token_ids, *(round_.tree.tokens.tolist() for round_ in rounds)])
    assert trees[0] == trees[1]
    assert any(len(tree) > 1 for tree in trees[0][1:])


def drawn_by(law, **changes):
    drawn = Drawn([int(np.argmax(law))], law)
    for name, value in changes.items():
        object.__setattr__(drawn, name, value)
    return drawn


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"tokens": np.array([VOCAB])}, "drawn tokens .* are not all among the law's"),
        ({"tokens": np.array([0, 0]), "logp": np.zeros(2)}, "drawn without replacement, and one of them twice"),
        ({"replacement": "yes"}, "replacement of draws is 'yes'; it must be True or False"),
        ({"logp": np.zeros(7)}, "logp has shape"),
    ],
)
def test_draws_are_checked_as_they_are_when_they_are_handed_in(changes, complaint):
    @attrs.frozen
    class Draws(Good):
        children = "without-replacement"

        def grow(self, tree, candidates, choices):
            return Growth([], drawn={0: drawn_by(candidates.law(0), **changes)})

    with pytest.raises(PluginError, match=rf"^tree policy 'good' .* in grow: .*{complaint}"):
        run(Draws(), rule=Traversal())


def test_draws_that_are_changed_after_they_were_handed_in_stay_as_they_were():
    handed = []

    @attrs.frozen
    class Draws(Good):
        children = "without-replacement"

        def grow(self, tree, candidates, choices):
            handed.append(candidates.draw(choices, 0, 2))
            return Growth([], [], drawn={0: handed[-1]})

        def finish(self, tree):
            for drawn in (*handed, *tree.drawn.values()):
                spoil(drawn)
            return tree

    decoder = Decoder(TableTarget(np.log(TABLE)), Traversal(), Draws(), Given(TableDrafter(TABLE[0])))
    request = attrs.evolve(SAMPLED, max_new_tokens=2)
    assert distance(emitted_law(decoder, request), ancestral_law(decoder.target, request)) <= 1e-12


def test_what_a_policy_says_its_children_are_must_stay_as_it_is():
    @attrs.frozen
    class Turns(Good):
        said = ["deterministic"]  # noqa: RUF012 - it is to change
        children = property(lambda self: self.said[-1])

        def begin(self, sequence):
            self.said.append("iid")
            return super().begin(sequence)

    with pytest.raises(PluginError, match="says that its children are iid, and said deterministic when its rule was"):
        run(Turns())


class Told(Accepted):
    """Another token whenever it is asked: one that is right, then one past the end, and so on."""

    @property
    def token(self):
        self.__dict__["asked"] = self.__dict__.get("asked", 0) + 1
        return 0 if self.__dict__["asked"] % 2 else VOCAB


def test_what_a_rule_returns_is_read_once():
    @attrs.frozen
    class Fickler(Match):
        follows_argmax = False

        def walk(self, tree, laws, choices):
            told = object.__new__(Told)
            Accepted.path.__set__(told, np.zeros(1, dtype=np.int64))
            return told

    assert run(Good(), rule=Fickler())[0].token_ids == [0] * GREEDY.max_new_tokens


# Errors that are no `Exception`


OUTS = [StopIteration, StopAsyncIteration, GeneratorExit, asyncio.CancelledError, SystemExit, BaseException]


@attrs.frozen
class Leaves(Good):
    name = "leaves"
    where: str = "grow"
    error: type[BaseException] = SystemExit

    def _at(self, where):
        if where == self.where:
            raise self.error(0)

    def begin(self, sequence):
        self._at("begin")
        return super().begin(sequence)

    def width(self, tree):
        self._at("width")
        return 2

    def grow(self, tree, candidates, choices):
        self._at("grow")
        return super().grow(tree, candidates, choices)

    def finish(self, tree):
        self._at("finish")
        return tree

    def observe(self, round_):
        self._at("observe")


@pytest.mark.parametrize("error", OUTS)
@pytest.mark.parametrize("where", ["begin", "width", "grow", "finish", "observe"])
def test_whatever_a_policy_raises_is_an_error_that_names_it(where, error):
    with pytest.raises(PluginError, match=rf"^tree policy 'leaves' \(.*\) raised {error.__name__} in {where}: 0$"):
        run(Leaves(where=where, error=error))


def test_the_user_can_still_interrupt_a_policy():
    with pytest.raises(KeyboardInterrupt):
        run(Leaves(error=KeyboardInterrupt))


@pytest.mark.parametrize("error", OUTS)
def test_whatever_a_drafter_or_rule_raises_is_an_error_that_names_it(error):
    def raising(*_):
        raise error(0)

    drafter = type("Leaving", (TableDrafter,), {"propose": raising})(TABLE[0])
    rule = attrs.frozen(type("Leaving", (Match,), {"walk": raising, "follows_argmax": False}))()
    with pytest.raises(PluginError, match=rf"^drafter 'Leaving' \(.*\) raised {error.__name__} in propose: 0$"):
        run(Good(), drafter)
    with pytest.raises(PluginError, match=rf"^rule 'match' \(.*\) raised {error.__name__} in walk: 0$"):
        run(Good(), rule=rule)


def test_closing_a_generation_is_no_error_of_a_plugin():
    generation = Decoder(TableTarget(np.log(TABLE)), Match(), Good(), Given(TableDrafter(TABLE[0]))).run(GREEDY)
    next(generation)
    generation.close()
    assert generation.finish_reason is None


# Drafters: opening, sessions, and what they say of themselves


@attrs.frozen
class Opens(DrafterSpec):
    name = "opens"
    what: object = None

    def open(self, target):
        return self.what


@pytest.mark.parametrize("what", [None, 7, Good(), TableDrafter])
def test_a_drafter_spec_must_open_a_drafter(what):
    with pytest.raises(PluginError, match=r"^drafter 'opens' \(.*\) returned .* from open; it must return a Drafter$"):
        Decoder(TableTarget(np.log(TABLE)), Match(), Good(), Opens(what))


class Swallows(contextlib.AbstractContextManager):
    def __exit__(self, *of):
        return True


def with_session(returned, base=TableDrafter, **changes):
    made = type("Sitting", (base,), {"session": lambda self: returned() if callable(returned) else returned, **changes})
    return made(TABLE[0]) if base is TableDrafter else made(np.log(TABLE))


def interrupted(decoder):
    """What comes out of a generation whose policy is interrupted by Ctrl-C."""
    with pytest.raises(KeyboardInterrupt) as caught:
        list(decoder.run(GREEDY))
    return getattr(caught.value, "__notes__", [])


def test_a_drafters_session_cannot_make_an_error_disappear():
    with pytest.raises(PluginError, match=r"^tree policy 'leaves' .* raised SystemExit in grow"):
        run(Leaves(), with_session(Swallows))
    drafter = Given(with_session(Swallows))
    (note,) = interrupted(Decoder(TableTarget(np.log(TABLE)), Match(), Leaves(error=KeyboardInterrupt), drafter))
    assert note.startswith("drafter 'given' (")
    assert note.endswith("would have suppressed this error in its session")


def test_nor_can_a_targets():
    target, drafter = with_session(Swallows, TableTarget), Given(TableDrafter(TABLE[0]))
    with pytest.raises(PluginError, match=r"^tree policy 'leaves' .* raised SystemExit in grow"):
        list(Decoder(target, Match(), Leaves(), drafter).run(GREEDY))
    (note,) = interrupted(Decoder(target, Match(), Leaves(error=KeyboardInterrupt), drafter))
    assert note.startswith("target 'Sitting' (")
    assert note.endswith("would have suppressed this error in its session")


def test_a_session_that_suppresses_all_lets_a_generation_be_closed_and_finished():
    drafter = with_session(Swallows)
    assert run(Good(), drafter)[0].token_ids == plain()
    generation = Decoder(TableTarget(np.log(TABLE)), Match(), Good(), Given(drafter)).run(GREEDY)
    next(generation)
    generation.close()
    assert list(generation) == []


@contextlib.contextmanager
def failing_session(when):
    if when == "entered":
        raise RuntimeError("on purpose")
    yield
    if when == "left":
        raise RuntimeError("on purpose")


@pytest.mark.parametrize("when", ["entered", "left"])
def test_a_session_that_fails_is_named(when):
    with pytest.raises(PluginError, match=r"^drafter 'given' \(.*\) raised RuntimeError in session: on purpose$"):
        run(Good(), with_session(lambda: failing_session(when)))


@pytest.mark.parametrize("returned", [None, 7])
def test_a_session_that_is_none_is_named(returned):
    with pytest.raises(PluginError, match=r"returned (NoneType|int) from session; it must return a context manager"):
        run(Good(), with_session(returned))


@pytest.mark.parametrize(
    ("said", "complaint"),
    [
        ({"max_depth": "x"}, "has a max_depth of 'x'; it must be a whole number of at least 0, or None"),
        ({"max_depth": -1}, "has a max_depth of -1; it must be"),
        ({"max_depth": 2.5}, "has a max_depth of 2.5; it must be"),
    ],
)
def test_what_a_drafter_says_of_itself_is_refused_in_words(said, complaint):
    drafter = type("Saying", (TableDrafter,), said)(TABLE[0])
    with pytest.raises(PluginError, match=rf"^drafter 'given' \(.*\) {complaint}"):
        run(Good(), drafter)


def test_a_drafter_that_counts_passes_in_words_later_is_named():
    class Later(TableDrafter):
        many = 1

        def propose(self, frontiers):
            return attrs.evolve(super().propose(frontiers), draft_passes=self.many)

        def commit(self, committed):
            type(self).many = "many"

    with pytest.raises(
        PluginError, match=r"^drafter 'Later' \(.*\) says that it took 'many' draft passes; it must be a whole"
    ):
        run(Good(), Later(TABLE[0]))


@pytest.mark.parametrize("where", ["candidates", "draft_passes"])
def test_a_drafter_whose_answer_fails_when_it_is_read_is_named(where):
    class Fails(Proposed):
        def __getattribute__(self, name):
            if name == where:
                raise RuntimeError("on purpose")
            return super().__getattribute__(name)

    class Answers(TableDrafter):
        def propose(self, frontiers):
            return Fails(super().propose(frontiers).candidates)

    with pytest.raises(PluginError, match=r"^drafter 'Answers' .* raised RuntimeError in propose: on purpose"):
        run(Good(), Answers(TABLE[0]))


class Uncopied(TreePolicy):
    """No attrs class, so that `begin` copies it."""

    name = "uncopied"
    budget = 5

    def grow(self, tree, candidates, choices):
        return Growth(candidates.best(min(2, self.budget - len(tree))))

    def __deepcopy__(self, memo):
        return None


@attrs.frozen
class Unmade(Good):
    """Its options cannot be given again."""

    name = "unmade"
    budget: int = attrs.field(default=5, init=False)
    told: int = 0

    def __attrs_post_init__(self):
        TOLD.append(self.told)
        if len(TOLD) > 1:
            raise RuntimeError("there is one of me")


TOLD = []


def test_a_policy_that_cannot_be_copied_decodes_nothing_in_silence():
    TOLD.clear()
    for policy, complaint in [
        (Uncopied(), r"^tree policy 'uncopied' .* returned None from begin; it must return the policy that serves"),
        (Unmade(), r"^tree policy 'unmade' .* raised RuntimeError in begin: there is one of me$"),
    ]:
        decoder = Decoder(TableTarget(np.log(TABLE)), Match(), policy, Given(TableDrafter(TABLE[0])))
        batch = decoder.batch([attrs.evolve(GREEDY), attrs.evolve(GREEDY)], 2)
        with pytest.raises(PluginError, match=complaint):
            batch.finish()
        assert [one.token_ids for one in batch.sequences] == [[], []]


@pytest.mark.parametrize("returned", [None, 7, Good, "good"])
def test_what_serves_a_sequence_must_be_a_policy(returned):
    @attrs.frozen
    class Begins(Good):
        def begin(self, sequence):
            return returned

    with pytest.raises(PluginError, match=r"^tree policy 'good' \(.*\) returned .* from begin; it must return the"):
        run(Begins())


def test_what_serves_a_sequence_must_make_trees_of_the_kind_that_the_rule_was_checked_for():
    @attrs.frozen
    class Begins(Good):
        def begin(self, sequence):
            return SampledChain(length=2)

    with pytest.raises(PluginError, match=r"says that its children are sampled-chain, and said deterministic when its"):
        run(Begins())


def test_what_serves_a_sequence_may_be_another_policy_and_is_the_one_that_is_named():
    @attrs.frozen
    class Begins(Good):
        error: type[BaseException] | None = None

        def begin(self, sequence):
            return Good(budget=3) if self.error is None else Leaves(error=self.error)

    generation, rounds = run(Begins())
    assert generation.token_ids == plain()
    assert max(len(round_.tree) for round_ in rounds) == 3
    with pytest.raises(PluginError, match=r"^tree policy 'leaves' .* raised RuntimeError in grow"):
        run(Begins(error=RuntimeError))


# Rules


def rule_that(walk=None, **claims):
    body = {"follows_argmax": False, **claims}
    return attrs.frozen(type("Claiming", (Match,), {**body, **({"walk": walk} if walk else {})}))()


@pytest.mark.parametrize("node", [99, -1, 1.5, None, np.array([0, 1])])
def test_a_rule_that_asks_for_the_law_at_no_node_is_named(node):
    def walk(self, tree, laws, choices):
        laws.at(node)

    with pytest.raises(PluginError, match=r"^rule 'match' .* in walk: there is no node .*; the tree has nodes 0 to 4$"):
        run(Good(), rule=rule_that(walk), request=SAMPLED)


@pytest.mark.parametrize(
    ("claims", "complaint"),
    [
        ({"exact_for": None}, "has exact_for = None; it must be a frozenset of kinds of trees"),
        ({"exact_for": "any"}, "has exact_for = 'any'; it must be a frozenset of kinds of trees"),
        ({"exact_for": [["any"]]}, "has exact_for = .*; it must be a frozenset of kinds of trees"),
        ({"lossy": "yes"}, "has lossy = 'yes'; it must be True or False"),
        ({"looks_ahead": None}, "has looks_ahead = None; it must be True or False"),
        ({"follows_argmax": 1}, "has follows_argmax = 1; it must be True or False"),
    ],
)
def test_what_a_rule_says_of_itself_is_refused_in_words(claims, complaint):
    with pytest.raises(PluginError, match=rf"^rule 'match' \(.*\) {complaint}"):
        run(Good(), rule=rule_that(**claims))


def test_a_rule_that_goes_on_without_a_law_does_not_hide_why_there_was_none():
    def walk(self, tree, laws, choices):
        with contextlib.suppress(ValueError):
            laws.at(0)
        return Accepted(np.zeros(1, dtype=np.int64), 0)

    def forbids(ids, scores):
        raise ValueError("this processor is at fault")

    request = attrs.evolve(GREEDY, sampling=Sampling(do_sample=False, processors=(forbids,)))
    with pytest.raises(ValueError, match=r"^this processor is at fault$"):
        run(Good(), rule=rule_that(walk), request=request)


@pytest.mark.parametrize("children", [[], None, "wild", 7])
def test_a_policy_whose_children_are_of_no_kind_is_refused_before_anything_is_decoded(children):
    policy = attrs.frozen(type("Odd", (Good,), {"children": children}))()
    with pytest.raises(
        PluginError, match=r"^tree policy 'good' \(.*\) says that its children are .*; kinds are determ"
    ):
        Decoder(TableTarget(np.log(TABLE)), Match(), policy, Given(TableDrafter(TABLE[0])))


def test_an_odd_name_is_no_obstacle_to_an_error():
    @attrs.frozen
    class Nameless(Good):
        @property
        def name(self):
            raise RuntimeError("no name today")

        def grow(self, tree, candidates, choices):
            raise RuntimeError("on purpose")

    with pytest.raises(PluginError, match=r"^tree policy 'Nameless' \(.*\) raised RuntimeError in grow: on purpose$"):
        run(Nameless())


@pytest.mark.parametrize("said", [None, [("layers", 1)], 7])
def test_what_a_drafter_says_of_its_files_is_a_mapping(said):
    drafter = type("Saying", (TableDrafter,), {"describe": lambda self: said})(TABLE[0])
    with pytest.raises(
        PluginError, match=r"^drafter 'given' \(.*\) returned .* from describe; it must return a mapping"
    ):
        described(Given(drafter), drafter)
