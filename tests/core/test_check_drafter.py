"""The contract of drafters as a function: right drafters keep it, and mistakes are refused in words."""

from contextlib import contextmanager
from itertools import count
from typing import ClassVar

import attrs
import numpy as np
import pytest
import torch

from talon_core.candidates import Candidates, LawRows
from talon_core.drafter import Drafter, DrafterSpec, Proposed
from talon_core.errors import PluginError
from talon_core.table import TableTarget, path_number
from talon_core.target import NOWHERE, Behind, NodeOutputs, Verified
from talon_core.testing import HostileDrafter, TableDrafter, check_drafter
from talon_core.testing.drafter_answers import Row, difference
from talon_drafters import Ngram

VOCAB = 5
LOGITS = np.random.default_rng(0).normal(size=(VOCAB, VOCAB))
LAWS = np.random.default_rng(1).dirichlet(np.ones(VOCAB), size=97)
WIDE_LAWS = np.random.default_rng(2).dirichlet(np.ones(40), size=97)
TIED = np.array([[0.25, 0.25, 0.25, 0.25, 0.0], [1.0, 0, 0, 0, 0], [0.4, 0.3, 0.3, 0, 0]])


class Hearable(TableTarget):
    """A table whose hidden states are the tokens themselves, one after the other."""

    def read(self, parts):
        super().read(parts)
        return {slot: torch.as_tensor(tokens, dtype=torch.float64)[:, None] for slot, tokens in parts.items()}

    def verify(self, trees, greedy=None):
        outputs = super().verify(trees).outputs
        return Verified(
            {
                slot: NodeOutputs(one.logits, torch.tensor(trees[slot].tokens, dtype=torch.float64)[:, None])
                for slot, one in outputs.items()
            }
        )


def offered(tree, nodes, width, law_after):
    """Candidates by a function from a path's tokens, the root's first, to a law."""
    laws = np.stack([law_after(tree.tokens[tree.path(node)].tolist()) for node in nodes.tolist()])
    with np.errstate(divide="ignore"):
        found = Candidates.from_logits(tree, nodes, np.log(laws), width)
    return Candidates(found.frontier, found.tokens, found.logp, found.path_logp, LawRows(laws))


class Right(Drafter):
    """Draws the law after the whole text and the path from a table; a place for mistakes."""

    def __init__(self, target):
        self.texts = {}

    def open(self, slot, prompt, room):
        self.texts[slot] = prompt.tolist()

    def close(self, slot):
        del self.texts[slot]

    def propose(self, frontiers):
        return Proposed([self.offer(one) for one in frontiers])

    def offer(self, one):
        return offered(one.tree, one.nodes, one.width, lambda path: self.law(one.slot, path))

    def law(self, slot, path):
        return LAWS[path_number([*self.texts[slot], *path[1:]]) % len(LAWS)]

    def commit(self, committed):
        for slot, new in committed.items():
            self.texts[slot] += new.tokens.tolist()


class Listening(Right):
    """The same from what it hears: the states of all tokens but the root."""

    def open(self, slot, prompt, room):
        self.texts[slot] = []

    def resume(self, slot, prompt, room, source, length):
        self.texts[slot] = self.texts[source][:length]
        return len(self.texts[slot])

    def read(self, parts):
        for slot, part in parts.items():
            self.texts[slot] += part.features[:, 0].long().tolist()

    def commit(self, committed):
        for slot, new in committed.items():
            self.texts[slot] += new.features[:, 0].long().tolist()

    def law(self, slot, path):
        return LAWS[path_number([*self.texts[slot], *path]) % len(LAWS)]


class ListensAgain(Listening):
    """Takes nothing over."""

    def resume(self, slot, prompt, room, source, length):
        self.open(slot, prompt, room)
        return 0


class Shallow(Listening):
    max_depth = 2

    def offer(self, one):
        assert one.tree.depths[one.nodes].max() < 2
        return super().offer(one)


class AlongPaths(Right):
    takes_paths = True


class Distinct(AlongPaths):
    """Refuses trees in which two children of a node hold the same token."""

    def offer(self, one):
        children = [*zip(one.tree.parents.tolist(), one.tree.tokens.tolist(), strict=True)]
        assert len({*children}) == len(children), "siblings hold the same token"
        return super().offer(one)


class KnowsNothing(Right):
    def offer(self, one):
        return Candidates.unknown(one.nodes)


class OfTwo(Right):
    """Each source has a law of its own, and so have both together."""

    sources = ("first", "second")

    def offer(self, one):
        return offered(one.tree, one.nodes, one.width, lambda path: self.law_of(one.slot, path, one.source))

    def law_of(self, slot, path, source):
        number = path_number([*self.texts[slot], *path[1:]])
        return LAWS[(number if source is None else number + 1 + source) % len(LAWS)]


def changed(one, **arrays):
    given = {name: getattr(one, name) for name in ("frontier", "tokens", "logp", "path_logp", "law")}
    return Candidates(**{**given, **arrays})


class HalfPrecision(Right):
    """Its rows are rounded to bfloat16, so that they may sum to a little more than 1."""

    def offer(self, one):
        found = super().offer(one)
        logp = torch.from_numpy(found.logp).bfloat16().double().numpy()
        return changed(found, logp=logp, path_logp=one.tree.path_logp[one.nodes][:, None] + logp)


class BreaksTiesAlike(Right):
    """Has many equals, and always the same order of them."""

    def law(self, slot, path):
        return TIED[path_number([*self.texts[slot], *path[1:]]) % len(TIED)]


@pytest.mark.parametrize(
    "opener",
    [
        *(Right, Listening, ListensAgain, Shallow, AlongPaths, KnowsNothing, OfTwo),
        *(HalfPrecision, BreaksTiesAlike),
        lambda target: TableDrafter(LAWS),
        lambda target: TableDrafter(TIED, knows=2, fills=False),
        lambda target: TableDrafter(LAWS, excess=5e-4),
        lambda target: HostileDrafter(VOCAB, ("tied", "certain", "some", "steep")),
        lambda target: HostileDrafter(VOCAB, ("nothing", "alone"), most=1),
        Distinct,
    ],
    ids=count(),
)
def test_a_right_drafter_keeps_the_contract_exactly(opener):
    check_drafter(opener, Hearable(LOGITS), tolerance=0)


@pytest.mark.parametrize("drafter", [Ngram, Ngram(least=0.0, min_match=2), Ngram(max_match=3, continuations=2)])
@pytest.mark.parametrize("prompts", [None, [[0, 1, 2, 0, 1, 2, 0, 1], [3]]])
def test_the_one_that_looks_texts_up_keeps_it_exactly(drafter, prompts):
    check_drafter(drafter, TableTarget(LOGITS), prompts=prompts, tolerance=0)


def test_one_that_foretells_its_best_guess_keeps_it():
    check_drafter(Foretells, TableTarget(LOGITS), tolerance=0)


def test_where_the_context_ends_it_is_kept_as_well():
    check_drafter(Listening, Hearable(LOGITS, context_length=9), tolerance=0)


class Unsorted(Right):
    def offer(self, one):
        found = super().offer(one)
        return changed(found, **{name: getattr(found, name)[:, ::-1] for name in ("tokens", "logp", "path_logp")})


class WrongPaths(Right):
    def offer(self, one):
        found = super().offer(one)
        return changed(found, path_logp=found.logp)


class TooMuch(Right):
    def offer(self, one):
        found = super().offer(one)
        return changed(found, law=LawRows(found.law.rows * 1.1))


class SumsAboveOne(Right):
    """Has no laws, and rows of scores that are no probabilities."""

    def offer(self, one):
        found = super().offer(one)
        logp = np.minimum(found.logp + 0.5, 0.0)
        path_logp = one.tree.path_logp[one.nodes][:, None] + logp
        return changed(found, logp=logp, path_logp=path_logp, law=Candidates.unknown(one.nodes).law)


class AnotherLaw(Right):
    def offer(self, one):
        found = super().offer(one)
        return changed(found, law=LawRows(found.law.rows[:, ::-1]))


class LeavesTheBestOut(Right):
    def offer(self, one):
        found = offered(one.tree, one.nodes, VOCAB, lambda path: self.law(one.slot, path))
        part = slice(1, 1 + min(one.width, VOCAB - 1))
        return changed(found, **{name: getattr(found, name)[:, part] for name in ("tokens", "logp", "path_logp")})


class Twice(Right):
    def offer(self, one):
        found = super().offer(one)
        return changed(found, tokens=np.repeat(found.tokens[:, :1], found.width, axis=1))


class Foreign(Right):
    def offer(self, one):
        found = super().offer(one)
        return changed(found, tokens=np.where(found.tokens == VOCAB - 1, VOCAB, found.tokens))


class TooWide(Right):
    def offer(self, one):
        return offered(one.tree, one.nodes, one.width + 1, lambda path: self.law(one.slot, path))


class OtherNodes(Right):
    def offer(self, one):
        found = super().offer(one)
        return changed(found, frontier=found.frontier + 1)


class SmallIntegers(Right):
    def offer(self, one):
        found = super().offer(one)
        return changed(found, tokens=found.tokens.astype(np.int32))


class SinglePrecision(Right):
    def offer(self, one):
        found = super().offer(one)
        return changed(found, law=lambda row: found.law.rows[row].astype(np.float32))


class Writes(Right):
    def offer(self, one):
        one.nodes[0] = 0
        return super().offer(one)


class NegativePasses(Right):
    def propose(self, frontiers):
        return Proposed(super().propose(frontiers).candidates, -1)


class AnswersOne(Right):
    def propose(self, frontiers):
        return Proposed([self.offer(frontiers[0])])


class ReturnsAList(Right):
    def propose(self, frontiers):
        return [self.offer(one) for one in frontiers]


class LaterLaws(Right):
    """Its laws are views of a buffer that the next call overwrites."""

    def __init__(self, target):
        super().__init__(target)
        self.buffer = np.zeros((60, VOCAB))

    def propose(self, frontiers):
        answers, used = [], 0
        for one in frontiers:
            found = self.offer(one)
            rows = self.buffer[used : used + len(one.nodes)]
            rows[:] = found.law.rows
            used += len(rows)
            answers.append(changed(found, law=rows.__getitem__))
        return Proposed(answers)


class Random(Right):
    def law(self, slot, path):
        return np.random.default_rng().dirichlet(np.ones(VOCAB))


class ChanceBreaksTies(BreaksTiesAlike):
    """Of equals another one comes first each time."""

    def offer(self, one):
        found = super().offer(one)
        order = [np.lexsort([self.rank(row.size), -row]) for row in found.logp]
        return changed(found, tokens=np.take_along_axis(found.tokens, np.array(order), axis=1))

    def rank(self, size):
        return np.random.default_rng().permutation(size)


OPENED = count()


class BreaksTiesWhenOpened(ChanceBreaksTies):
    """Of equals another one comes first in each drafter that is opened."""

    alike = 1

    def __init__(self, target):
        super().__init__(target)
        self.order = np.roll(np.arange(VOCAB), next(OPENED) // self.alike)

    def rank(self, size):
        return self.order[:size]


class BreaksTiesAlikeThreeTimes(BreaksTiesWhenOpened):
    """As the one above, and three that are opened after each other do the same."""

    alike = 3


class LooksAtSiblings(Right):
    def offer(self, one):
        return offered(one.tree, one.nodes, one.width, lambda path: LAWS[len(one.tree) % len(LAWS)])


class LooksAtOtherNodes(Right):
    def offer(self, one):
        return offered(one.tree, one.nodes, one.width, lambda path: LAWS[len(one.nodes)])


class LooksAtTheWidth(Right):
    def offer(self, one):
        return offered(one.tree, one.nodes, one.width, lambda path: LAWS[one.width])


class OffersLessTheMoreIsWanted(Right):
    def offer(self, one):
        return offered(one.tree, one.nodes, max(1, one.width // 2), lambda path: self.law(one.slot, path))


class KeepsWhatItDrafted(Right):
    """Looks a text up in which rejected nodes stand, too."""

    def offer(self, one):
        self.seen = getattr(self, "seen", {})
        self.seen[one.slot] = self.seen.get(one.slot, 0) + len(one.tree) - 1
        return super().offer(one)

    def open(self, slot, prompt, room):
        super().open(slot, prompt, room)
        self.before = {**getattr(self, "before", {}), slot: 0}
        self.seen = {**getattr(self, "seen", {}), slot: 0}

    def commit(self, committed):
        super().commit(committed)
        for slot in committed:
            self.before[slot] = self.seen.get(slot, 0)

    def law(self, slot, path):
        return LAWS[(path_number(self.texts[slot] + path[1:]) + self.before[slot]) % len(LAWS)]


class CommitsNodesAlone(Right):
    """Forgets the last token, which is no node."""

    def commit(self, committed):
        for slot, new in committed.items():
            self.texts[slot] += new.tokens.tolist()[:-1]


class CommitsDraftedTokensAlone(Right):
    """Takes as many tokens as there are nodes, though some may not have been drafted."""

    def commit(self, committed):
        for slot, new in committed.items():
            self.texts[slot] += new.tokens.tolist()[-len(new.nodes) :]


class ReadsOnePartAlone(Listening):
    def read(self, parts):
        for slot, part in parts.items():
            self.texts[slot] = part.features[:, 0].long().tolist()


class LooksAtNeighbours(Right):
    def propose(self, frontiers):
        self.together = len(frontiers)
        return super().propose(frontiers)

    def law(self, slot, path):
        return LAWS[(path_number(self.texts[slot] + path[1:]) + self.together) % len(LAWS)]


class MixesSlotsUp(Right):
    """Answers in the order of the slots."""

    def propose(self, frontiers):
        answers = {one.slot: self.law(one.slot, [0]) for one in frontiers}
        in_order = [answers[slot] for slot in sorted(answers)]
        return Proposed(
            [
                offered(one.tree, one.nodes, one.width, lambda path, law=law: law)
                for one, law in zip(frontiers, in_order, strict=True)
            ]
        )


class ForgetsAllWhenOneLeaves(Right):
    def close(self, slot):
        self.texts = {one: text[-1:] if one != slot else text for one, text in self.texts.items()}


class AnswersInTheTreesOrder(Right):
    """Its rows are those of the nodes in order, whichever way they stand in the frontier."""

    def offer(self, one):
        found = super().offer(attrs.evolve(one, nodes=np.sort(one.nodes)))
        path_logp = one.tree.path_logp[one.nodes][:, None] + found.logp
        return changed(found, frontier=one.nodes, path_logp=path_logp)


class OfSixteenRows(Right):
    """Has room for the answers at sixteen nodes: those of more come to stand in the place of others."""

    def offer(self, one):
        at = np.arange(len(one.nodes)) % 16
        found = super().offer(attrs.evolve(one, nodes=one.nodes[at]))
        path_logp = one.tree.path_logp[one.nodes][:, None] + found.logp
        return changed(found, frontier=one.nodes, path_logp=path_logp)


class OfFiveLayers(Right):
    """Has room for five layers: what is asked for below them follows from the tree's size."""

    def offer(self, one):
        deep = one.tree.depths[one.nodes].max() >= 5
        return offered(one.tree, one.nodes, one.width, lambda path: LAWS[len(one.tree)]) if deep else super().offer(one)


class OfThreeSlots(Right):
    """Has room for three texts: that of a fourth slot takes the place of the first one's."""

    def open(self, slot, prompt, room):
        super().open(slot, prompt, room)
        for other in [*self.texts][:-3]:
            self.texts[other] = [0]


class OfEightColumns(Right):
    """Has room for eight candidates a node."""

    def __init__(self, target):
        super().__init__(target)
        self.buffer = np.zeros((60, 8), dtype=np.int64)

    def offer(self, one):
        found = super().offer(one)
        rows = self.buffer[: len(one.nodes), : one.width]
        rows[:] = found.tokens
        return changed(found, tokens=rows.copy())

    def law(self, slot, path):
        return WIDE_LAWS[path_number([*self.texts[slot], *path[1:]]) % len(WIDE_LAWS)]


class RemembersTheSlot(Right):
    """Puts the new prompt behind the old text."""

    def open(self, slot, prompt, room):
        self.texts[slot] = [*self.texts.get(slot, []), *prompt.tolist()]

    def close(self, slot):
        pass


class ForgetsOnlyWhenClosed(RemembersTheSlot):
    def close(self, slot):
        del self.texts[slot]


class TakesTooMuchOver(Listening):
    """Goes on from the whole text in the other slot."""

    def resume(self, slot, prompt, room, source, length):
        self.texts[slot] = [*self.texts[source]]
        return length


class NeedsToBeToldMoreThanAll(Listening):
    def resume(self, slot, prompt, room, source, length):
        return super().resume(slot, prompt, room, source, length) + 1


class ResumesWithoutTheRest(Right):
    """Forgets what comes behind the text that is taken over."""

    def resume(self, slot, prompt, room, source, length):
        self.open(slot, prompt[:length], room)
        return length


class LawsNowAndThen(Right):
    def offer(self, one):
        found = super().offer(one)
        return found if len(one.nodes) == 1 else changed(found, law=Candidates.unknown(one.nodes).law)


class FailsInLaws(Right):
    def offer(self, one):
        return changed(super().offer(one), law={}.__getitem__)


class ShortensLaws(LaterLaws):
    """A law that is asked for again has fewer entries."""

    def propose(self, frontiers):
        found = [self.offer(one) for one in frontiers]
        asked = [[0] * len(one.nodes) for one in frontiers]

        def law(at, row):
            asked[at][row] += 1
            return found[at].law.rows[row][: VOCAB if asked[at][row] <= 2 else 2]

        return Proposed([changed(one, law=lambda row, at=at: law(at, row)) for at, one in enumerate(found)])


class Raises(Right):
    def commit(self, committed):
        raise KeyError("on purpose")


class EntersOnce(Right):
    @contextmanager
    def _once(self):
        yield

    def __init__(self, target):
        super().__init__(target)
        self._session = self._once()

    def session(self):
        return self._session


class SharesMemory(Right):
    """All that were ever opened have one memory."""

    told: ClassVar[list[int]] = []

    def commit(self, committed):
        super().commit(committed)
        self.told.append(1)

    def law(self, slot, path):
        return LAWS[(path_number(self.texts[slot] + path[1:]) + len(self.told)) % len(LAWS)]


class AsksWhoWasAskedBefore(OfTwo):
    def offer(self, one):
        found = super().offer(attrs.evolve(one, source=getattr(self, "before", None)))
        self.before = one.source
        return found


class ManySources(Right):
    sources = (1, 2)


class TakesNoPaths(Right):
    """It says that it takes paths, and needs the parents first."""

    takes_paths = True

    def offer(self, one):
        own = {*one.nodes.tolist()}
        early = not own.isdisjoint(one.tree.parents[one.nodes].tolist())
        law_after = lambda path: LAWS[0] if early and len(path) > 1 else self.law(one.slot, path)  # noqa: E731
        return offered(one.tree, one.nodes, one.width, law_after)


class ForetellsLess(Right):
    def likeliest(self, slot, tokens):
        return -20.0


class Foretells(Right):
    """As it should, from the law behind all tokens."""

    def likeliest(self, slot, tokens):
        return float(np.log(self.law(slot, [*tokens]).max()))


class ForetellsTheRoot(Foretells):
    def likeliest(self, slot, tokens):
        return super().likeliest(slot, tokens[:1])


class ForetellsInWords(Right):
    def likeliest(self, slot, tokens):
        return "likely"


class GuessesElsewhere(Foretells):
    def guessable(self, slot, least):
        return NOWHERE


class GuessesTheSure(Foretells):
    """What is right where it was asked for as much as it says, and not where less is enough."""

    def guessable(self, slot, least):
        sure = [float(np.log(law.max())) for law in LAWS]
        return Behind(np.arange(9), NOWHERE.pairs) if least in sure else NOWHERE


class GuessesUnsorted(Foretells):
    def guessable(self, slot, least):
        return Behind(np.arange(9), np.array([7, 5]))


class GuessesInWords(Foretells):
    def guessable(self, slot, least):
        return [3]


class BelowNothing(Right):
    max_depth = -1


EQUALS = r"proposed token \d in the place of token \d, which is exactly as likely,"
NOT_THE_SAME = "does not do the same whenever it is told and asked the same"
AFTER = r"after the text \[.*\]"
THE_DRAFTER = r"^drafter '{0}' \(.*{0}\)"


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize(
    ("mistaken", "complaint"),
    [
        (Unsorted, r"gave a row in which a candidate of logp -\S+ stands behind one of -\S+; rows are sorted"),
        (WrongPaths, r"gave a candidate a path_logp of -\S+ where its parent's and its logp add up to -"),
        (TooMuch, r"gave a law that sums to 1\.1; a law sums to 1$"),
        (
            SumsAboveOne,
            r"gave a row whose probabilities sum to [12]\.\d+; they are parts of one law, and sum to at most",
        ),
        (AnotherLaw, r"gave token \d the logp -\S+ in propose and the probability \S+ in the law of the same row; "),
        (LeavesTheBestOut, r"left token \d of probability \S+ out of a row that offers token \d of probability \S+; "),
        (Twice, r"proposed token \d twice for one node"),
        (Foreign, r"proposed token 5; the target's vocabulary has ids 0 to 4"),
        (TooWide, r"returned \d candidates per node; between 1 and \d were asked for"),
        (OtherNodes, r"returned candidates for other nodes than the frontier's: \[\d.*\], not \[\d.*\]"),
        (SmallIntegers, r"returned tokens of type int32 from propose; it must be int64"),
        (SinglePrecision, r"gave a law of type float32; it must be float64"),
        (Writes, r"raised ValueError in propose: .*read-only"),
        (NegativePasses, r"says that it took -1 draft passes; it must be a whole number of at least 0"),
        (AnswersOne, r"proposed 1 items; it must propose a list of [23] Candidates"),
        (ReturnsAList, r"returned list from propose; it must return a Proposed"),
        (AsksWhoWasAskedBefore, r"proposed .* " + AFTER),
        (ManySources, r"has the sources \(1, 2\); they must be a tuple of names"),
        (LaterLaws, r"gave another law at node \d+ when it was asked for again at the end of the round"),
        (Random, rf"proposed .* {AFTER}.*, when all was told and asked anew; nothing about a drafter may be random"),
        (ChanceBreaksTies, rf"({EQUALS} {AFTER}|{NOT_THE_SAME}).*nothing about a drafter may be random"),
        (BreaksTiesWhenOpened, rf"({EQUALS} {AFTER}|{NOT_THE_SAME}).*nothing about a drafter may be random"),
        (BreaksTiesAlikeThreeTimes, rf"({EQUALS} {AFTER}|{NOT_THE_SAME}).*nothing about a drafter may be random"),
        (LooksAtSiblings, rf"proposed .* {AFTER}.*, where other nodes were drafted from as well"),
        (LooksAtOtherNodes, rf"proposed .* {AFTER}.*, where other nodes were drafted from as well"),
        (TakesNoPaths, rf"proposed .* {AFTER}.*, where other nodes were drafted from as well"),
        (LooksAtTheWidth, rf"proposed .* {AFTER}.*, where .* or fewer candidates were wanted"),
        (OffersLessTheMoreIsWanted, rf"proposed 1 candidates of [23] that were asked for instead of \d {AFTER}"),
        (KeepsWhatItDrafted, rf"proposed .* {AFTER}.*, of which a part had come by commit after drafting"),
        (CommitsNodesAlone, rf"proposed .* {AFTER}.*, which had come by commit; "),
        (CommitsDraftedTokensAlone, rf"proposed .* {AFTER}.*, which had come by commit; "),
        (ReadsOnePartAlone, rf"proposed .* {AFTER}.*, of which the prompt was read in parts; "),
        (LooksAtNeighbours, rf"proposed .* {AFTER}.*, while other slots were in use; "),
        (MixesSlotsUp, rf"proposed .* {AFTER}.*, (while other slots were in use|where other nodes were); "),
        (ForgetsAllWhenOneLeaves, rf"proposed .* {AFTER}.*, while other slots were in use; "),
        (RemembersTheSlot, rf"proposed .* {AFTER}.*, in a slot that had held another text; "),
        (ForgetsOnlyWhenClosed, rf"proposed .* {AFTER}.*, in a slot that had held another text; "),
        (TakesTooMuchOver, rf"proposed .* {AFTER}.*, where texts were taken over by resume; "),
        (NeedsToBeToldMoreThanAll, r"returned \d+ from resume; it must be a number of tokens, at most \d+"),
        (ResumesWithoutTheRest, rf"proposed .* {AFTER}.*, where texts were taken over by resume; "),
        (LawsNowAndThen, rf"proposed no law instead of a law {AFTER}"),
        (FailsInLaws, r"raised KeyError in law: 0$"),
        (ShortensLaws, r"gave another law at node \d+ when it was asked for again at the end of the round"),
        (AnswersInTheTreesOrder, rf"proposed .* {AFTER}.*, where other nodes were drafted from as well"),
        (OfSixteenRows, rf"proposed .* {AFTER}.*, where other nodes were drafted from as well"),
        (OfFiveLayers, rf"proposed .* {AFTER}.*, where other nodes were drafted from as well"),
        (
            OfThreeSlots,
            rf"proposed .* {AFTER}.*, (while other slots were in use|in a slot that had held another text); ",
        ),
        (Raises, r"raised KeyError in commit: 'on purpose'"),
        (EntersOnce, r"raised \w+ in session: "),
        (ForetellsLess, r"gave the log-probability -20.0 in likeliest, and -\S+ to its first candidate there"),
        (ForetellsTheRoot, r"gave the log-probability -\S+ in likeliest, and -\S+ to its first candidate there"),
        (ForetellsInWords, r"returned 'likely' from likeliest; it must return a log-probability, a float of at most 0"),
        (GuessesElsewhere, r"likeliest behind the tokens \d and \d, and left these out in guessable, asked for at"),
        (
            GuessesTheSure,
            r"gave the log-probability -\S+ in likeliest .* left these out in guessable, asked for at least",
        ),
        (GuessesUnsorted, r"returned a Behind from guessable whose pairs do not rise"),
        (GuessesInWords, r"returned \[3\] from guessable; it must return None, or a Behind whose tokens and pairs are"),
        (BelowNothing, r"has a max_depth of -1; it must be a whole number of at least 0"),
    ],
)
def test_a_mistake_is_refused_in_words(mistaken, complaint):
    name = THE_DRAFTER.format(mistaken.__name__)
    with pytest.raises((AssertionError, PluginError), match=rf"(?s){name}.*{complaint}"):
        check_drafter(mistaken, Hearable(LOGITS), tolerance=0)


@pytest.mark.usefixtures("unshrunk")
@pytest.mark.parametrize("times", [1, 20])
def test_many_candidates_are_asked_for_where_the_vocabulary_has_as_many(times):
    with pytest.raises(PluginError, match=r"OfEightColumns.* raised ValueError in propose: could not broadcast"):
        check_drafter(OfEightColumns, Hearable(np.zeros((40, 40))), tolerance=0, max_examples=times)


@pytest.mark.usefixtures("unshrunk")
def test_what_is_left_over_from_another_drafter_is_refused():
    SharesMemory.told.clear()
    with pytest.raises(AssertionError, match=rf"proposed .* instead of .* {AFTER}"):
        check_drafter(SharesMemory, Hearable(LOGITS), tolerance=0)


@attrs.frozen
class Spec(DrafterSpec):
    name = "mistaken"

    def open(self, target):
        return Right(target)


@attrs.frozen
class Unnamed(Spec):
    name = "Mistaken Drafter"


@attrs.frozen
class ForNumbers(Spec):
    purpose = 5


@attrs.define
class Thawed(DrafterSpec):
    name = "mistaken"

    def open(self, target):
        return Right(target)


@attrs.frozen
class ReadsUnsaid(Spec):
    def open(self, target):
        drafter = Right(target)
        drafter.catch_up = lambda: True
        return drafter


@attrs.frozen
class WantsStates(Spec):
    def features(self, num_layers):
        return (-1, 2)


@attrs.frozen
class OpensNothing(Spec):
    def open(self, target):
        return None


@attrs.frozen
class DoesNotFit(Spec):
    def open(self, target):
        raise ValueError("drafter 'mistaken' needs a model")


@pytest.mark.parametrize(
    ("drafter", "error", "complaint"),
    [
        (Unnamed, AssertionError, "has the name 'Mistaken Drafter'; a name is lower case"),
        (ForNumbers, AssertionError, "has purpose = 5; it must be a few words, or nothing: ''$"),
        (Thawed, AssertionError, "must be an @attrs.frozen class"),
        (ReadsUnsaid(), AssertionError, "reads in catch_up, and its options say catches_up is False; they must agree"),
        (WantsStates(), ValueError, r"wants the hidden states \(-1, 2\), and this Hearable returns none; "),
        (OpensNothing, PluginError, "returned None from open; it must return a Drafter"),
        (DoesNotFit, ValueError, "^drafter 'mistaken' needs a model$"),
        (lambda target: None, PluginError, "returned None; it must return a Drafter"),
        (TableDrafter(LAWS), TypeError, "no function that opens one; .* give the DrafterSpec, or lambda target:"),
        ("ngram", TypeError, "^'ngram' is no drafter's options"),
    ],
)
def test_what_is_no_drafter_for_this_target_is_refused_in_words(drafter, error, complaint):
    with pytest.raises(error, match=complaint):
        check_drafter(drafter, Hearable(LOGITS))


@pytest.mark.parametrize("prompt", [[], [0, VOCAB], [-1]])
def test_a_prompt_of_foreign_tokens_or_none_is_refused(prompt):
    with pytest.raises(ValueError, match=rf"a prompt is \[.*\]; it must be at least one token id, 0 to {VOCAB - 1}"):
        check_drafter(Spec, Hearable(LOGITS), prompts=[prompt])


def test_the_slots_of_others_are_left_alone():
    target = Hearable(LOGITS)
    target.open(1, 10)
    target.read({1: np.array([2, 3])})
    target.occupied.add(1)
    check_drafter(Spec, target, max_examples=3)
    assert target.occupied == {1}
    target.close(1)
    assert not target._prefixes


def test_within_the_tolerance_sums_may_be_rounded():
    class Rounded(Right):
        def law(self, slot, path):
            law = super().law(slot, path)
            return law.astype(np.float16).astype(np.float64) if len(self.texts[slot]) % 2 else law

        def offer(self, one):
            found = super().offer(one)
            return changed(found, law=LawRows(found.law.rows / found.law.rows.sum(axis=1, keepdims=True)))

    check_drafter(Rounded, Hearable(LOGITS), tolerance=1e-2)


def test_a_token_that_is_not_offered_anew_is_told_with_how_many_are():
    mine = Row(2, np.array([4, 1]), np.array([0.5, 0.4]), None)
    right = Row(2, np.array([1, 2]), np.array([0.4, 0.3]), None)
    assert difference(mine, right, 1e-4) == "token 4 with probability 0.5, which is not among the 2 likeliest"
    assert difference(right, right, 1e-4) is None
