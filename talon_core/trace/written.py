"""A target that writes a text which is known, and takes what its passes cost."""

from collections.abc import Callable, Mapping

import attrs
import torch

from talon_core.choices import Choices
from talon_core.costs import Costs
from talon_core.laws import Laws
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.target import ALL_WALKED, NOT_GREEDY, NOTHING_DRAWN, Further, NodeDraws, NodeOutputs, Target, Verified
from talon_core.trace.clocked import Clock
from talon_core.trace.columns import TextTrace
from talon_core.tree import IntArray, TokenTree


class Written(Target):
    """A target that writes a text which is known; its passes take what they cost. It has one slot.

    Args:
        text: what it writes.
        vocab_size: likewise.
        weight_bits: likewise.
        costs: what its passes take.
        clock: whose time passes.
        during: lets time pass in which the target works, and perhaps somebody else as well.

    Attributes:
        done: new tokens that are committed.
    """

    context_length = None

    def __init__(
        self,
        text: TextTrace,
        vocab_size: int,
        weight_bits: int | None,
        costs: Costs,
        clock: Clock,
        during: Callable[[float], None],
    ) -> None:
        self.text, self.costs, self.clock = text, costs, clock
        self.vocab_size, self.weight_bits = vocab_size, weight_bits
        self.device = torch.device("cpu")
        self.done = 0
        self._during = during

    @property
    def left(self) -> IntArray:
        """The new tokens that are not committed, shape `(left,)`, int64."""
        return self.text.ids[self.text.prompt_tokens + self.done :]

    def open(self, slot: int, room: int) -> None:
        self.done = 0

    def close(self, slot: int) -> None:
        pass

    def read(self, parts: Mapping[int, IntArray]) -> Mapping[int, None]:
        self.clock.spend(self.costs.read(self.text.prompt_tokens))
        return dict.fromkeys(parts)

    def verify(
        self,
        trees: Mapping[int, TokenTree],
        greedy: Mapping[int, frozenset[int]] = NOT_GREEDY,
        unwalked: Mapping[int, int] = ALL_WALKED,
        drawn: Mapping[int, NodeDraws] = NOTHING_DRAWN,
        further: Further | None = None,
    ) -> Verified:
        ((slot, tree),) = trees.items()
        self._during(self.costs.verify(len(tree), self.text.prompt_tokens + self.done) or 0.0)
        return Verified({slot: NodeOutputs(torch.zeros(1, 1).expand(len(tree), self.vocab_size))})

    def commit(self, paths: Mapping[int, IntArray]) -> None:
        (path,) = paths.values()
        self.clock.spend(self.costs.commit(len(path)))
        self.done += len(path)


@attrs.frozen(eq=False)
class Copies(AcceptanceRule):
    """Accepts what stands in the text that is written, and takes what a walk costs.

    Attributes:
        target: writes it.
    """

    name = "copies"
    exact_for = frozenset({"any"})
    target: Written

    def walk(self, tree: TokenTree, laws: Laws, choices: Choices) -> Accepted:
        target = self.target
        target.clock.spend(target.costs.accept(len(tree)))
        path = tree.follow(target.left[:-1])
        return Accepted(path, int(target.left[len(path) - 1]))
