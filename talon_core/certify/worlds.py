"""Small worlds in which the probability of every text can be computed: a target, a drafter and a request."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cache, cached_property, lru_cache
from itertools import islice, product
from random import Random
from typing import Any

import attrs
import numpy as np
from hypothesis import strategies as st

from talon_core.certify.kept import as_often_as_wanted
from talon_core.certify.processors import PROCESSORS
from talon_core.errors import blaming_bugs
from talon_core.plugins.specs import describe_options
from talon_core.policy import TreePolicy
from talon_core.request import Request
from talon_core.sampling import temperature_sampling
from talon_core.table import TableDrafter, TableTarget
from talon_core.tree import FloatArray

COMBINATIONS = [
    *[()] * 2 * len(PROCESSORS),
    *((name,) for name in PROCESSORS),
    *(pair for shift in (1, 3) for pair in zip(PROCESSORS, [*PROCESSORS][shift:], strict=False)),
]
"""What worlds use of `PROCESSORS`; half of them use none."""

VARIED: Mapping[str, int] = {"budget": 2, "top_k": 1, "depth": 1, "length": 1}
"""Options of policies that worlds vary, where a policy has them, and their least values."""

TINY = 1e-12
"""A weight that can hardly come out."""

KEPT = 8192
"""Worlds that are kept, with what is known of their targets."""

MOST_PROMPT = 4
"""Most tokens of a prompt."""

Rows = tuple[tuple[float, ...], ...]


@attrs.frozen
class World:
    """A target, a drafter and a request, over two or three tokens.

    Attributes:
        target: weights of the next token, a row for each context: the last token, or the last two.
        drafter: weights of `TableDrafter`'s laws, a row each.
        prompt: token ids.
        max_new_tokens: most tokens of the text.
        temperature: 0 is greedy.
        processors: keys of `PROCESSORS`, in their order.
        eos: tokens that end the text.
        room: tokens that the target's context holds after the prompt; None for no limit.
        knows: most candidates the drafter offers after a node; None for all.
        options: values of the policy's options that this world sets.
    """

    target: Rows
    drafter: Rows
    prompt: tuple[int, ...]
    max_new_tokens: int
    temperature: float
    processors: tuple[str, ...]
    eos: frozenset[int]
    room: int | None
    knows: int | None
    options: Mapping[str, int] = attrs.field(hash=False)

    @property
    def vocab_size(self) -> int:
        """Number of token ids."""
        return len(self.target[0])

    @cached_property
    def request(self) -> Request:
        """What is to be decoded."""
        return Request(
            ids=np.array(self.prompt, dtype=np.int64),
            max_new_tokens=self.max_new_tokens,
            sampling=temperature_sampling(self.temperature, [PROCESSORS[name] for name in self.processors]),
            eos=self.eos,
        )

    def make_target(self) -> TableTarget:
        """The target."""
        context = None if self.room is None else len(self.prompt) + self.room
        return TableTarget(self._logits.copy(), context)

    @cached_property
    def _logits(self) -> FloatArray:
        with np.errstate(divide="ignore"):
            logits: FloatArray = np.log(shares(self.target))
        order = 1 if len(self.target) == self.vocab_size else 2
        return logits.reshape((self.vocab_size,) * (order + 1))

    def make_drafter(self) -> TableDrafter:
        """The drafter."""
        return self._drafts

    @cached_property
    def _drafts(self) -> TableDrafter:  # it remembers nothing
        return TableDrafter(shares(self.drafter), knows=self.knows)

    def varied(self, policy: TreePolicy) -> TreePolicy:
        """The policy with this world's options, as far as it takes them.

        Raises:
            PluginError: if it cannot be made for another reason than that they do not go together.
        """
        own = describe_options(type(policy))
        given = {name: value for name, value in self.options.items() if name in own}
        together = _taken(policy, given)
        if together is not None:
            return together
        for name, value in given.items():
            policy = _taken(policy, {name: value}) or policy
        return policy


def _taken(policy: TreePolicy, options: Mapping[str, int]) -> TreePolicy | None:
    """The policy with these options; None where it refuses them, as they do not go together."""
    try:
        with blaming_bugs("tree policy", policy, "its options"):
            made: TreePolicy = attrs.evolve(policy, **options)  # type: ignore[misc]  # every registered policy is attrs'
            return made
    except ValueError:
        return None


def shares(weights: Rows) -> FloatArray:
    """Rows of weights as laws."""
    rows = np.array(weights, dtype=np.float64)
    laws: FloatArray = rows / rows.sum(axis=1, keepdims=True)
    return laws


@attrs.frozen
class _Sizes:
    """What the parts of worlds of one size are taken from, the simplest first.

    Attributes:
        vocab_size: number of token ids.
        order: how many tokens back the target looks.
        laws: rows of the drafter's table.
        draws: whether trees are drawn.
        vary: options of the policy to set, and their least values.
    """

    vocab_size: int
    order: int
    laws: int
    draws: bool
    vary: tuple[tuple[str, int], ...]

    @property
    def longest(self) -> int:
        """Most tokens of a text."""
        return 3 if self.draws else 4

    def row(self) -> list[Sequence[float]]:
        """Weights of a law: the last token's is never 0, so that every row is one. Small numbers are easy to follow."""
        some: Sequence[float] = (1.0, 2.0, 3.0, 0.0, 5.0, 9.0, TINY)
        return [*[some] * (self.vocab_size - 1), (1.0, 2.0, 4.0, TINY)]

    def parts(self) -> dict[str, Sequence[Any]]:
        """Fields that are one of some values."""
        longest, last = self.longest, self.vocab_size - 1
        return {
            "max_new_tokens": (2, *range(3, longest + 1), longest),  # the last is never drafted
            "temperature": (1.0, 1.0, 0.5, 2.0, 0.0),
            "processors": COMBINATIONS,
            "eos": (frozenset[int](), frozenset[int](), frozenset({last}), frozenset({0})),
            "room": (None, None, None, *range(1, longest + 1)),
            "knows": (None, None, None, *range(self.vocab_size)),
        }

    def options(self) -> dict[str, Sequence[int]]:
        """Values of the policy's options."""
        more = 2 if self.draws else 3
        return {name: range(least, least + more + 1) for name, least in self.vary}


def _sizes(draws: bool, vary: Mapping[str, int]) -> list[_Sizes]:
    given = product([2, 2, 3] if draws else [2, 3, 3], [1, 1, 1, 2], [1, 2, 5])
    return [_Sizes(*size, draws, tuple(vary.items())) for size in given]


def random_worlds(seed: int, *, vary: Mapping[str, int] = VARIED, draws: bool = True) -> Iterator[World]:
    """Worlds without end, as `worlds` has them, at random; the same seed gives the same ones.

    All policies and rules are tried in the same ones, of which the first are kept.

    Args:
        seed: of the random numbers.
        vary: as for `worlds`.
        draws: as there.
    """
    question = seed, tuple(vary.items()), draws
    yield from copy(_first_worlds(*question))
    yield from islice(_without_end(*question), KEPT, None)


@lru_cache(4)
def _first_worlds(seed: int, vary: tuple[tuple[str, int], ...], draws: bool) -> Iterator[World]:
    return as_often_as_wanted(islice(_without_end(seed, vary, draws), KEPT))


def _without_end(seed: int, vary: tuple[tuple[str, int], ...], draws: bool) -> Iterator[World]:
    random, sizes = Random(seed), _sizes(draws, dict(vary))
    while True:
        size = random.choice(sizes)
        row = size.row()

        def rows(count: int, row: list[Sequence[float]] = row) -> Rows:
            return tuple(tuple(random.choice(weights) for weights in row) for _ in range(count))

        yield World(
            target=rows(size.vocab_size**size.order),
            drafter=rows(size.laws),
            prompt=tuple(random.choices(range(size.vocab_size), k=random.randint(1, MOST_PROMPT))),
            options={name: random.choice(values) for name, values in size.options().items()},
            **{name: random.choice(values) for name, values in size.parts().items()},
        )


def worlds(*, vary: Mapping[str, int] = VARIED, draws: bool = True) -> st.SearchStrategy[World]:
    """Worlds that are small enough to enumerate; the simplest first.

    Args:
        vary: options of the policy to set, and their least values; up to 2 or 3 more are tried.
        draws: whether trees are drawn: each drawn token multiplies the outcomes, so worlds are smaller.
    """
    return st.sampled_from(_sizes(draws, vary)).flatmap(_worlds)


def worlds_by_size(*, vary: Mapping[str, int] = VARIED, draws: bool = True) -> list[st.SearchStrategy[World]]:
    """The same worlds, those of each size for themselves, the smallest first."""
    sizes = sorted(set(_sizes(draws, vary)), key=lambda size: (size.vocab_size, size.order, size.laws))
    return [_worlds(size) for size in sizes]


@cache  # making strategies takes longer than drawing from them
def _worlds(size: _Sizes) -> st.SearchStrategy[World]:
    row = st.tuples(*map(st.sampled_from, size.row()))
    return st.builds(
        World,
        target=st.tuples(*[row] * size.vocab_size**size.order),
        drafter=st.tuples(*[row] * size.laws),
        prompt=st.lists(st.integers(0, size.vocab_size - 1), min_size=1, max_size=MOST_PROMPT).map(tuple),
        options=st.fixed_dictionaries({name: st.sampled_from(values) for name, values in size.options().items()}),
        **{name: st.sampled_from(values) for name, values in size.parts().items()},
    )


def described(world: World, policy: Any) -> list[str]:
    """A world in words, a line each."""
    laws = shares(world.target)
    order = 1 if len(laws) == world.vocab_size else 2
    contexts = list(np.ndindex(*(world.vocab_size,) * order))
    lines = [
        f"tokens 0 to {world.vocab_size - 1}, prompt {list(world.prompt)}, at most {world.max_new_tokens} new tokens, "
        f"temperature {world.temperature:g}"
    ]
    if world.processors:
        lines.append("processors: " + ", ".join(world.processors))
    if world.eos:
        lines.append(f"ends at token {', '.join(map(str, sorted(world.eos)))}")
    if world.room is not None:
        lines.append(f"the context holds {world.room} tokens after the prompt")
    for context, law in zip(contexts, laws, strict=True):
        lines.append(f"target after {' '.join(map(str, context))}:  {law_in_words(law)}")
    for row, law in enumerate(shares(world.drafter)):
        which = f"drafter, law {row}:" if len(world.drafter) > 1 else "drafter:"
        lines.append(f"{which}  {law_in_words(law)}")
    if world.knows is not None:
        lines.append(f"the drafter offers at most {world.knows} tokens after a node")
    lines.append(f"policy {policy}")
    return lines


def law_in_words(law: Any) -> str:
    """A law's probabilities."""
    return "  ".join(f"{token}: {prob:.4g}" for token, prob in enumerate(np.asarray(law).tolist()))
