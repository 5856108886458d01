"""One sequence while it is decoded: what it holds, how it is walked, and when it is over."""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from talon_core.chains import Chains
from talon_core.choices import Choices
from talon_core.engine.acceptors import Acceptor
from talon_core.engine.array_laws import ArrayLaws
from talon_core.engine.checked_policy import checked_budgets
from talon_core.engine.drafting import DraftLimits
from talon_core.engine.sequence_laws import SequenceLaws, Warping, no_law
from talon_core.engine.token_buffer import TokenBuffer
from talon_core.engine.walking import walked
from talon_core.errors import PluginError, naming
from talon_core.forest_learner import Together
from talon_core.policy import TreePolicy
from talon_core.request import INTERRUPTED, Request, Result
from talon_core.rounds import Round, Stats
from talon_core.rule import AcceptanceRule, Accepted
from talon_core.target import NO_TOKEN, NodeOutputs
from talon_core.tree import FloatArray, IntArray, TokenTree

if TYPE_CHECKING:
    from torch import Tensor, device

    from talon_core.frontend import Frontend
    from talon_core.rule import Lossless


@attrs.frozen
class Guessed:
    """What a drafter has told of its best guess before a round.

    Attributes:
        overlooked: whether it is too unlikely for anything to be drafted.
        seconds: that it took.
    """

    overlooked: bool
    seconds: float


HELD = ("policy", "acceptor", "growers", "source", "tell", "rests", "overlooks", "said", "follow")
"""What a sequence has of its policy, and of who accepts its tokens, while it has a slot."""


class Sequence:
    """One sequence while it is decoded, from when its request is handed in.

    Args:
        request: what is to be decoded.
        choices: the randomness of its rule; its policy gets some of its own.
        limit: most new tokens.
        children: the kind of trees that the rule was found exact for; None for what the policy says of itself.

    Attributes:
        token_ids: the new tokens.
        rounds: one record per round.
        finish_reason: which stop condition holds; None while none does.
        error: what has ended it early; None if nothing has.
        cancelled: it was ended early, or is to be.
        seconds: from when it was let in to the end of its last round.
        prefill_seconds: in which its prompt was read.
        number: among the sequences that were handed in to its engine, which alone decodes it, from 1; 0 before.
        has_begun: whether it was let in.
        policy: its own tree policy, while it has a slot.
        acceptor: who accepts its tokens, likewise.
        growers: its policy, likewise, if that can be asked together with those of others; otherwise nothing.
        source: says before each tree which source of the drafter is asked, likewise; None for all together.
        tell: tells its policy what became of a tree, likewise.
        rests: says in how many rounds to come its policy drafts nothing, likewise.
        overlooks: says how likely a guess has to be for its policy to draft anything, likewise.
        resting: in so many rounds to come it drafts nothing, and need not be asked.
        guessed: of rounds to come, if it stays alone, what its drafter has told of them before they come.
        said: says whether its policy's trees of rounds to come are chains, likewise.
        follow: tells its policy of a tree that was run ahead, likewise; None where it has to be asked for it.
        policy_choices: the randomness of its policy, which tells nothing of what its rule will draw.
        shared: what an allocator has learnt of its text.
        read: tokens of the prompt that were read; the last one never is, as it is the first root.
        drawn_ahead: whether tokens of the rounds that were run ahead last were to be drawn.
        drafted_at: its length when a layer was last asked for; None before the first one. What a schedule prepares
            meanwhile is not seen.
    """

    policy: TreePolicy
    acceptor: Acceptor
    growers: tuple[Together, ...] = ()
    source: Callable[[], int | None]
    tell: Callable[[Round], None]
    rests: Callable[[], int]
    overlooks: Callable[[], float | None]
    said: Callable[[], Chains | None]
    follow: Callable[[FloatArray, int], None] | None
    _committed: TokenBuffer  # where rules and stop conditions read its tokens
    _warping: Warping

    def __init__(self, request: Request, choices: Choices, limit: int, children: str | None = None) -> None:
        self.request = request
        self.choices = choices
        self.policy_choices = choices.apart(1)
        self.limit = limit
        self.token_ids: list[int] = []
        self.rounds: list[Round] = []
        self.finish_reason: str | None = None
        self.error: Exception | None = None
        self.cancelled = False
        self.seconds = 0.0
        self.prefill_seconds = 0.0
        self.number = 0
        self.has_begun = False
        self.read = 0
        self.drafted_at: int | None = None
        self.resting = 0
        self.guessed: deque[Guessed] = deque()
        self.drawn_ahead = False
        self.shared: dict[str, Any] = {}
        self._begun_at = 0.0
        self._budgets: tuple[int, int] | None = None  # of the policy, when it began
        self._children = children

    @property
    def handed_in(self) -> bool:
        """Whether an engine has got it."""
        return self.number > 0

    @property
    def finished(self) -> bool:
        """Whether no further round will come."""
        return self.finish_reason is not None or self.error is not None or self.cancelled

    @property
    def root(self) -> int:
        """The last committed token."""
        return self.token_ids[-1] if self.token_ids else int(self.request.ids[-1])

    def start(self, policy: TreePolicy, acceptor: Acceptor, where: "device | None", room: int, now: float) -> None:
        """It was let in: there is room for its tokens, where rules and stop conditions read them.

        Args:
            policy: as the attribute.
            acceptor: likewise.
            where: the target's logits are; None for the host.
            room: for so many tokens.
            now: in seconds.
        """
        self.policy, self.acceptor = policy, acceptor
        self._budgets = checked_budgets(policy)
        self._committed = TokenBuffer(self.request.ids, room, where)
        self._warping = Warping(self.request.sampling, self._committed, self.request.eos)
        self._begun_at = now
        self.has_begun = True

    def leave(self) -> None:
        """It has no slot any more: what rounds alone need is given up, however long the sequence is kept."""
        for name in (*HELD, "_committed", "_warping"):
            self.__dict__.pop(name, None)
        self.guessed.clear()
        self.shared = {}

    @property
    def length(self) -> int:
        """Tokens of the text, the prompt's among them."""
        return len(self.request.ids) + len(self.token_ids)

    @property
    def unread(self) -> int:
        """Tokens of the prompt that are still to be read."""
        return len(self.request.ids) - 1 - self.read

    @property
    def is_read(self) -> bool:
        """Whether its prompt is read, so that rounds can begin."""
        return self.has_begun and not self.unread

    @property
    def unheard(self) -> int:
        """Tokens that were committed since a layer was last asked for; 0 before the first one."""
        return 0 if self.drafted_at is None else self.length - self.drafted_at

    def heard(self, count: int, seconds: float) -> None:
        """So many more tokens of its prompt were read."""
        self.read += count
        self.prefill_seconds += seconds

    def committed_ids(self) -> IntArray:
        """The text of which keys and values are there, shape `(tokens,)`, int64: all but the last token."""
        if not self.is_read:
            return self.request.ids[: self.read]
        return np.concatenate([self.request.ids, np.array(self.token_ids, dtype=np.int64)])[:-1]

    @property
    def deepest(self) -> int:
        """Depth of the deepest node that its next round can accept; 0 where it is over."""
        return 0 if self.finished else self.limit - len(self.token_ids) - 1

    @property
    def most_drafted(self) -> int:
        """Drafted tokens of a chain, at most: as its policy's budget has room for, and as may be of use."""
        assert self._budgets is not None
        return min(self._budgets[0] - 1, self.deepest)

    @property
    def alone(self) -> int:
        """Rounds behind this one whose trees will be the root alone, where that of this one is, as far as is known.

        0 where anything but its tokens may end it before.
        """
        if not self.ends_by_tokens:
            return 0
        if not self.resting:
            self.resting = self.rests()
        return min(self.resting, self.deepest)

    @property
    def ends_by_tokens(self) -> bool:
        """Whether nothing but its tokens, and their number, may end it."""
        return not self.request.criteria and self.request.max_seconds is None

    def chains(self) -> Chains | None:
        """As `TreePolicy.chains`; None where anything but its tokens may end it, or nothing is drafted any more."""
        chains = self.said() if self.ends_by_tokens and self.deepest > 0 else None
        if chains is not None and self.follow is not None:
            budget, _ = checked_budgets(self.policy, self._budgets)
            if chains.depth >= budget:
                raise PluginError(
                    f"{naming('tree policy', self.policy)} said chains of {chains.depth} drafted tokens, and with its "
                    f"root a tree has one node more; its budget is {budget}"
                )
        return chains

    def limits(self, vocab_size: int, max_depth: int | None) -> DraftLimits:
        """What bounds its next tree besides its policy: nothing at all is drafted where it is over."""
        deepest = self.deepest
        depth = deepest if max_depth is None else min(deepest, max_depth)
        return DraftLimits(vocab_size, depth, self.request.eos, self._children, self._budgets)

    def laws(self, tree: TokenTree, outputs: NodeOutputs) -> SequenceLaws[Any]:
        """The target's laws at a verified tree, as the request warps them.

        Args:
            tree: the verified tree.
            outputs: the target's, at its nodes.
        """
        if isinstance(outputs.logits, np.ndarray):
            return ArrayLaws(tree, outputs.logits, self._warping)
        from talon_core.engine.warping import WarpedLaws

        return WarpedLaws(tree, outputs.logits, self._warping, outputs.best)

    def accept(self, rule: AcceptanceRule, tree: TokenTree, outputs: NodeOutputs) -> Accepted:
        """Let the rule walk, and check what it says.

        Args:
            rule: the acceptance rule.
            tree: the verified tree.
            outputs: the target's, at its nodes.

        Raises:
            PluginError: if the rule breaks its contract; the message names it.
        """
        laws, features = self.laws(tree, outputs), outputs.features
        walk = walked(rule, tree, laws, self.choices, outputs.logits.shape[1], laws.failures)
        if features is not None:
            from talon_core.runtime.transfers import sent

            features = features.index_select(0, sent(walk.path, features.device))
        return Accepted(walk.path, walk.token, features, laws.asked)

    def taken(self, accepted: Accepted) -> Accepted:
        """What its target has accepted by itself; the numbers that it has drawn with are used now.

        Raises:
            ValueError: if there was no law to draw from.
        """
        self.acceptor.used(accepted)
        if accepted.token == NO_TOKEN:
            raise no_law(self.length + len(accepted.path) - 1)
        return accepted

    def cut(self, tree: TokenTree, accepted: Accepted) -> tuple[IntArray, str | None]:
        """What a walk emits, up to the first token at which a stop condition holds, and the reason to stop there.

        Returns:
            The tokens, shape `(new,)`, int64, and a key of `FINISH_REASONS`; None where it goes on.
        """
        emitted = [*tree.tokens.take(accepted.path[1:]).tolist(), accepted.token]
        tokens, left = np.array(emitted, dtype=np.int64), self.limit - len(self.token_ids)
        for count, token in enumerate(emitted, start=1):
            if token in self.request.eos:
                return tokens[:count], "eos"
            if self.request.criteria and self._stops(self._committed.with_path(tokens[:count])):
                return tokens[:count], "stop"
            if count >= left:
                return tokens[:count], "length"
        return tokens, None

    def emit(self, tree: TokenTree, accepted: Accepted) -> IntArray:
        """Take what a walk emits; sets `finish_reason` where a stop condition holds.

        Returns:
            The tokens that were taken, shape `(new,)`, int64.
        """
        tokens, self.finish_reason = self.cut(tree, accepted)
        self._committed.append(tokens)
        self.token_ids.extend(tokens.tolist())
        return tokens

    def took(self, now: float) -> None:
        """A round is over; sets `finish_reason` where that was the last one there is time for.

        Args:
            now: in seconds, by the clock that `start` was told of.
        """
        self.seconds = now - self._begun_at
        if not self.finished and self.request.max_seconds is not None and self.seconds >= self.request.max_seconds:
            self.finish_reason = "time"

    def _stops(self, ids: "Tensor") -> bool:
        answers = [criterion(ids) for criterion in self.request.criteria]  # all are asked: some keep state
        return any(answers)

    def result(self, frontend: "Frontend | None", lossless: "Lossless") -> Result:
        """What has come out so far; `finish_reason` is "interrupted" if it is not over."""
        return Result(
            prompt_ids=self.request.ids,
            token_ids=[*self.token_ids],
            text=frontend.text(self.token_ids) if frontend is not None else None,
            finish_reason=self.finish_reason or INTERRUPTED,
            lossless=lossless,
            rounds=[*self.rounds],
            stats=Stats.of(self.rounds, self.seconds, self.prefill_seconds),
        )
