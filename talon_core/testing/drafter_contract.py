"""What every drafter must keep, as a function that its author runs in a test."""

from collections.abc import Callable, Sequence
from itertools import count, islice
from math import ceil
from typing import Any

import attrs
from hypothesis import HealthCheck, Phase, Verbosity, given, settings
from hypothesis.errors import Flaky

from talon_core.drafter import Drafter, DrafterSpec
from talon_core.engine.checked_drafter import checked_depth, checked_features, checked_sources, described, opened
from talon_core.engine.memory import is_frozen
from talon_core.errors import PluginError, blaming_bugs, is_whole, naming, written
from talon_core.target import Target
from talon_core.testing.claims import check_listed, is_name, require
from talon_core.testing.drafter_answers import difference
from talon_core.testing.drafter_driver import Driver
from talon_core.testing.drafter_events import Player, Subject, Tokens
from talon_core.testing.drafter_faults import Reference, fault
from talon_core.testing.drafter_steps import LARGEST_WIDTH, WIDEST, History, steps

SLOTS, LARGE_SLOTS = 3, 6
"""Sequences at a time in most histories, and in large ones."""

LARGE_SHARE = 10
"""One history in so many is large."""

MOST_COMPARED = 20
"""So many answers of a large history are compared with the right ones."""

MOST_TOLERANCE = 0.05
"""Probabilities that differ by more are not the same, whatever rounded them."""


def check_drafter(
    drafter: DrafterSpec | type[DrafterSpec] | Callable[[Target], Drafter],
    target: Target,
    *,
    prompts: Sequence[Sequence[int]] | None = None,
    max_examples: int = 20,
    tolerance: float = 1e-4,
) -> None:
    """Check that a drafter keeps the contract of `Drafter`.

    It is opened for the target and driven as the engine does it: random prompts come and go in three slots, are read in
    parts or at once, or taken over from another slot by `resume`; trees grow layer by layer, for one slot or several at
    a time, from any of their nodes in any order, and along paths where it `takes_paths`; something, nothing or all is
    accepted, also in rounds in which nothing was drafted; sessions are left and entered again, and there is time to
    `catch_up`. The target runs beside it and gives it the hidden states that it wants. Most trees have at most five
    layers and eight candidates a node; one history in ten is large, with six slots, trees of up to ten layers with
    twenty nodes in one, and up to forty candidates a node, as far as the vocabulary goes.

    Each answer must be what the decoder takes: a row for each node in order, sorted, no token twice, none outside the
    vocabulary, right `path_logp`, at most as many as were wanted, int64 and float64. The probabilities of a row sum to
    at most 1, up to rounding. A law must be one, fit the row up to rounding, and stay what it is until the round is
    over. And each answer must be the one that another drafter gives which was opened anew, got the whole text as a
    prompt, and drafts from this one path alone; where it has `sources`, each alone and all together. Of tokens exactly
    as likely as each other the same ones come first, when as many are wanted. So nothing may be left of what was
    drafted, of another text or of another slot. An `Inquirer` is let ask beside its trees, and gets no answers: only
    they may make a difference. Where that fails, the history is played again with one circumstance more each time, so
    that the error can tell which one it was.

    Args:
        drafter: its options, or their class, or a function that opens one more for a target.
        target: what it drafts for; a `TableTarget` for drafters that read tokens alone. For others an `HFTarget` that
            returns the hidden states that they want.
        prompts: token ids of texts that prompts begin with; by default random ones of four different tokens.
        max_examples: how many histories to try; one at least is small and one large.
        tolerance: by how much two probabilities may differ that should be the same, because sums are rounded; 0 for a
            drafter that must answer exactly the same.

    Raises:
        AssertionError: if the contract is broken in a way that the decoder does not look for.
        PluginError: if it is broken in a way that the decoder would refuse, too.
        ValueError: if the drafter does not fit the target, or for a bad argument.
    """
    if not is_whole(max_examples) or max_examples < 1:
        raise ValueError(f"max_examples is {written(max_examples)}; it must be a whole number and at least 1")
    if not isinstance(tolerance, float | int) or not 0 <= tolerance <= MOST_TOLERANCE:
        raise ValueError(f"tolerance is {written(tolerance)}; it must be from 0 to {MOST_TOLERANCE}")
    subject, make = _subject(drafter, target, tolerance)
    texts = _texts(prompts, target.vocab_size)
    few = ceil(max_examples / LARGE_SHARE)

    # a history is neither simplified, which may take minutes with a network, nor printed: the error says what is wrong
    many = settings(
        max_examples=max(max_examples - few, 1),
        deadline=None,
        report_multiple_bugs=False,
        phases=[Phase.reuse, Phase.generate],
        verbosity=Verbosity.quiet,
        print_blob=False,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )

    @settings(many, max_examples=few)
    @given(steps(texts, target.vocab_size, LARGE_SLOTS, large=True))
    def every_large_history_keeps_the_contract(history: History) -> None:
        _check(subject, make, history, LARGEST_WIDTH, MOST_COMPARED)

    @many
    @given(steps(texts, target.vocab_size, SLOTS))
    def every_history_keeps_the_contract(history: History) -> None:
        _check(subject, make, history, WIDEST)

    target.occupied.update(subject.slots)
    try:
        _check_features(drafter, subject, make)
        every_history_keeps_the_contract()
        every_large_history_keeps_the_contract()
    except Flaky as error:
        raise AssertionError(
            f"{naming('drafter', subject.named)} does not do the same whenever it is told and asked the same; nothing "
            "about a drafter may be random, or left over from another one that was opened before"
        ) from error
    finally:
        target.occupied.difference_update(subject.slots)


def _subject(drafter: Any, target: Target, tolerance: float) -> tuple[Subject, Callable[[], Drafter]]:
    if isinstance(drafter, type) and issubclass(drafter, DrafterSpec):
        drafter = drafter()
    slots = [*islice((slot for slot in count() if slot not in target.occupied), LARGE_SLOTS + 1)]
    slots = [slots[2], slots[0], *slots[3:]]  # in no order, and with one left out
    if isinstance(drafter, DrafterSpec):
        spec = drafter
        _check_claims(spec)
        described(spec, opened(spec, target))
        hears = checked_features(spec, _layers(target)) != ()
        return Subject(spec, target, hears, slots, tolerance), lambda: opened(spec, target)
    if isinstance(drafter, Drafter) or not callable(drafter):
        raise TypeError(
            f"{written(drafter)} is no drafter's options and no function that opens one; several are needed, so give "
            "the DrafterSpec, or lambda target: MyDrafter(...)"
        )
    named = _opened_by(drafter, target)
    described(named, named)
    return Subject(named, target, True, slots, tolerance), lambda: _opened_by(drafter, target)


def _opened_by(make: Callable[..., object], target: Target) -> Drafter:
    with blaming_bugs("drafter", make, "open"):
        drafter: Any = make(target)
    if not isinstance(drafter, Drafter):
        raise PluginError(f"{naming('drafter', make)} returned {written(drafter)}; it must return a Drafter")
    checked_depth(drafter, drafter)
    return drafter


def _check_claims(spec: DrafterSpec) -> None:
    name = getattr(spec, "name", None)
    require(
        is_name(name),
        "drafter",
        spec,
        f"has the name {name!r}; a name is lower case letters and digits with dashes between",
    )
    require(
        attrs.has(type(spec)) and is_frozen(spec),
        "drafter",
        spec,
        "must be an @attrs.frozen class, with options as its fields",
    )
    check_listed("drafter", spec)


def _layers(target: Target) -> int:
    """Layers of a target that is a transformers model; 0 of others."""
    model: Any = getattr(target, "model", None)
    return 0 if model is None else int(model.config.get_text_config().num_hidden_layers)


def _check_features(drafter: object, subject: Subject, make: Callable[[], Drafter]) -> None:
    """Check that the target returns the hidden states that a drafter wants."""
    target = subject.target
    if not isinstance(subject.named, DrafterSpec) or not subject.hears:
        return
    wanted = checked_features(subject.named, _layers(target))
    runner: Any = getattr(target, "runner", None)
    kept: tuple[int, ...] = () if runner is None else tuple(runner.features)
    if kept != wanted:
        raise ValueError(
            f"{naming('drafter', subject.named)} wants the hidden states {wanted}, and this {type(target).__name__} "
            f"returns {kept or 'none'}; take the target of talon_core.load(model, drafter=...)"
        )


def _texts(prompts: Sequence[Sequence[int]] | None, vocab_size: int) -> list[Tokens]:
    texts = [tuple(int(token) for token in prompt) for prompt in prompts or ()]
    for text in texts:
        if not text or not all(0 <= token < vocab_size for token in text):
            raise ValueError(f"a prompt is {written([*text])}; it must be at least one token id, 0 to {vocab_size - 1}")
    return texts


def _check(
    subject: Subject, make: Callable[[], Drafter], history: History, width: int, compared: int | None = None
) -> None:
    """Play a history, and compare answers with the right ones.

    Args:
        subject: what is checked.
        make: opens a drafter.
        history: what happens.
        width: most candidates that are asked for.
        compared: how many answers, from all parts of the history; None for all.
    """
    drafter = make()
    depth, sources = checked_depth(subject.named, drafter), checked_sources(subject.named, drafter)
    if isinstance(subject.named, DrafterSpec):
        told = (
            f"says takes_paths is {subject.named.takes_paths}, and its drafter {drafter.takes_paths}; they must agree"
        )
        require(subject.named.takes_paths == drafter.takes_paths, "drafter", subject.named, told)
    with Player(subject, drafter) as player:
        driver = Driver(subject, player, depth, drafter.takes_paths, len(sources))
        driver.run(history)
    with Player(subject, make()) as player:
        reference = Reference(subject, player, width)
        some = driver.asked[:: 1 if compared is None else ceil(len(driver.asked) / compared) or 1]
        for asked in sorted(some, key=lambda one: (one.text, one.path), reverse=True):  # longest first
            reference.answer(asked)
        found = None
        for asked in some:
            wrong = difference(asked.row, reference.answer(asked), subject.tolerance)
            if wrong is not None:
                found = asked, wrong
                break
    if found is not None:
        raise AssertionError(fault(subject, make, driver.events, *found))
