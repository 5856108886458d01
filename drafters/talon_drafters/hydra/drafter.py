"""The running side of `hydra`."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from talon_core.candidates import Candidates
from talon_core.drafter import Committed, Drafter, Frontier, Part, Proposed, Reading
from talon_core.runtime.best import Best, best_by, last_rows
from talon_core.runtime.cache_keyword import cache_keyword
from talon_core.runtime.catching_up import timed_reading
from talon_core.runtime.embeddings import embedding_shape, like_output, shared_embedding
from talon_core.runtime.executor import Executor, Numbers, TreeView
from talon_core.runtime.network import NetworkTarget, network_target
from talon_core.runtime.open_slots import OpenSlots
from talon_core.runtime.passes import Pass
from talon_core.runtime.row_sizes import in_rows_of, row_bytes
from talon_core.runtime.rows import KeptRows
from talon_core.runtime.staging import MANY_PENDING
from talon_core.runtime.transfers import sent
from talon_core.target import Target, check_open
from talon_core.tree import IntArray, TokenTree
from talon_drafters.checkpoints.reading import Sizes
from talon_drafters.heads.feature_drafter import KEPT_BYTES, token_bytes
from talon_drafters.heads.opening import checkpoint_for, output_of
from talon_drafters.hydra.files import STEM, ReadHydra, hydra_of
from talon_drafters.hydra.network import HydraHeads

if TYPE_CHECKING:
    from talon_drafters.hydra.options import Hydra


def open_hydra(spec: "Hydra", target: Target) -> "HydraDrafter":
    """Read the heads that `spec` describes; raises as `DrafterSpec.open` does."""
    target = network_target(target, spec.name)
    checkpoint = checkpoint_for(target.model, spec.path, spec.name, STEM)
    sizes = Sizes.of(target)
    read = hydra_of(
        checkpoint,
        sizes,
        like_output(target.model),
        target.model.config.get_text_config(),
    )
    width = embedding_shape(target.model)[1]
    if read.heads.config.grounded and width != sizes.hidden:
        raise checkpoint.error(f"reads token embeddings of width {sizes.hidden}; this target's have width {width}")
    return HydraDrafter(read, target)


@attrs.define(eq=False)
class _Unread:
    """States of a slot that came since its last one was asked for.

    Attributes:
        parts: as they came, each of shape `(new, hidden)`.
        count: of the states in all of them.
    """

    parts: list[Tensor] = attrs.field(factory=list)
    count: int = 0

    def add(self, states: Tensor) -> None:
        """States that come after these, shape `(new, hidden)`."""
        self.parts.append(states)
        self.count += len(states)


class _States:
    """What the heads read of each slot's states: that of the token before the root, through the prefix layer.

    Nothing goes through that layer until somebody asks. Then a text's latest states are a chain of nodes: those of all
    slots share a pass, which the executor may record. Those of a prompt, and of a long pause, are read as a prompt is,
    but for the last one; so they are where more than `KEPT_BYTES` wait, though nobody asks.
    """

    def __init__(self, heads: HydraHeads, executor: Executor) -> None:
        self._heads = heads
        self._executor = executor
        self._cache = executor.cache
        self._unread = OpenSlots[_Unread]()
        self._last: dict[int, Tensor] = {}
        self._rows = KeptRows(executor)  # the states that a pass reads
        if heads.prefix is not None:  # a layer of transformers
            from talon_core.hf.attention import ATTENTION_NAME
            from talon_core.hf.model import set_implementation

            set_implementation(heads.prefix, ATTENTION_NAME)
            self._cache_keyword = cache_keyword(heads.prefix)

    def open(self, slot: int, room: int) -> None:
        self._cache.open(slot, room)
        self._unread[slot] = _Unread()
        self._last.pop(slot, None)

    def resume(self, slot: int, room: int, source: int, length: int) -> int:
        """Take states over; returns of how many tokens."""
        length = max(length - 1, 0)  # one state must be heard of
        waiting = _Unread()
        check_open([source], self._unread)
        if self._heads.prefix is not None:
            first, unread = self._cache.lengths[source], self._unread[source]
            taken = self._cache.resume(slot, room, source, length)
            if taken == first and unread.count and taken < length:
                waiting.add(torch.cat(unread.parts)[: length - taken])
            length = taken + waiting.count
        self._unread[slot] = waiting
        self._last.pop(slot, None)
        return length

    def close(self, slot: int) -> None:
        del self._unread[slot]
        self._cache.close(slot)
        self._last.pop(slot, None)

    def add(self, told: Mapping[int, Tensor | None]) -> None:
        """New states by slot, each of shape `(new, hidden)`."""
        check_open(told, self._unread)
        new = {slot: states for slot, states in told.items() if states is not None and len(states)}
        if self._heads.prefix is None:
            self._last |= {slot: states[-1].clone() for slot, states in new.items()}
            return
        for slot, states in new.items():
            self._unread[slot].add(states)
        self._bound(new)

    @torch.inference_mode()
    def _bound(self, told: Mapping[int, Tensor]) -> None:
        """Read what waits, where too much of it is kept in all.

        Args:
            told: by slot the newest states.
        """
        count = sum([own.count for own in self._unread.values()])
        if count * max([token_bytes(states) for states in told.values()], default=0) <= KEPT_BYTES:
            return
        waiting = self._waiting(told)
        long = self._long(waiting)
        self._read(waiting, long)
        for slot, first in long.items():
            self._unread[slot] = _Unread()
            self._unread[slot].add(waiting[slot][first:].clone())  # so that the others can be freed

    def _waiting(self, slots: Iterable[int]) -> dict[int, Tensor]:
        """What waits in some slots, shape `(count, hidden)`, those left out in which nothing does."""
        return {slot: torch.cat(self._unread[slot].parts) for slot in sorted(slots) if self._unread[slot].count}

    def _long(self, waiting: Mapping[int, Tensor]) -> dict[int, int]:
        """How many of these states are read as those of a prompt are, by slot: all but the last, if any."""
        return {
            slot: len(states) - 1
            for slot, states in waiting.items()
            if slot not in self._last or len(states) > MANY_PENDING
        }

    def of(self, slots: Iterable[int]) -> tuple[dict[int, Tensor], Reading | None]:
        """What is to be read, shape `(hidden,)`, by slot, those without a state left out; and what was read for it."""
        asked, reading = [*slots], None
        waiting = self._waiting(asked)
        if waiting:
            long = self._long(waiting)
            tokens, device = sum(long.values()), self._executor.device
            reading = timed_reading(device, tokens, lambda: self._read(waiting, long))
            self._last |= self._encoded({slot: states[long.get(slot, 0) :] for slot, states in waiting.items()})
            for slot in waiting:
                self._unread[slot] = _Unread()
        return {slot: self._last[slot] for slot in asked if slot in self._last}, reading

    def _read(self, waiting: Mapping[int, Tensor], long: Mapping[int, int]) -> None:
        """Read the first of these states, so many by slot, as a prompt."""
        most = self._executor.prompt_tokens
        for start, group in self._executor.prompt_passes(long):
            parts = [waiting[slot][start : min(long[slot], start + most)] for slot in group]
            with self._executor.reading(group, [len(part) for part in parts]) as (positions, this_pass):
                self._through(pad_sequence(parts, batch_first=True), positions, this_pass)

    def _encoded(self, waiting: dict[int, Tensor]) -> dict[int, Tensor]:
        """Run the prefix layer over the next states of some slots, ascending, all in one pass.

        Args:
            waiting: by slot, shape `(new, hidden)`.

        Returns:
            What it makes of the last of each, shape `(hidden,)`.
        """
        counts = {slot: len(states) for slot, states in waiting.items()}
        self._rows.clear()
        places = self._rows.keep(torch.cat([*waiting.values()]))
        inputs = self._executor.inputs({slot: (_chain(count), 0) for slot, count in counts.items()})
        ends, _ = last_rows(inputs.layout.starts, dict.fromkeys(waiting, 1))
        more = {"places": Numbers(places, one_each=True), "ends": Numbers(ends)}
        found = self._executor.run(inputs, self._at_ends, "states", more)
        self._executor.commit({slot: np.arange(count) for slot, count in counts.items()})
        return dict(zip(waiting, self._executor.lasting(found[: len(ends)]), strict=True))

    def _at_ends(self, view: TreeView) -> Tensor:
        """One pass: what the prefix layer makes at the `ends`."""
        states = self._rows.table.index_select(0, view.more["places"])
        return self._through(states[None], view.positions[None], view.attention)[0].index_select(0, view.more["ends"])

    def _through(self, states: Tensor, positions: Tensor, this_pass: Pass) -> Tensor:
        """Run the prefix layer; states have shape `(batch, length, hidden)`, and so has what it makes of them."""
        with this_pass.running(self._cache) as keyword:
            options: dict[str, Any] = {self._cache_keyword: self._cache, **keyword}
            return self._heads.encode(states, position_ids=positions, use_cache=True, **options)


def _chain(count: int) -> TokenTree:
    """A tree of so many nodes, each the child of the one before; nobody reads its tokens."""
    return TokenTree(np.zeros(count, dtype=np.int64), np.arange(-1, count - 1), np.zeros(count))


class HydraDrafter(Drafter):
    """Runs one of Hydra's heads a layer, on the state of the token before the root and the path to each node.

    Args:
        read: the heads and their vocabulary.
        target: whose states and embeddings they read.

    Attributes:
        executor: runs the heads' passes; its `failure` says why they are not recorded.
    """

    def __init__(self, read: ReadHydra, target: NetworkTarget) -> None:
        self.max_depth = read.heads.config.num_heads
        self._heads = read.heads
        self._target = target
        self._output, self._vocabulary, self._session = output_of(read.heads, read.vocabulary, target)
        self._embed = shared_embedding(target.model)
        self._device = target.device
        self.executor = target.executor()
        self._states = _States(read.heads, self.executor)

    def session(self) -> AbstractContextManager[object]:
        return self._session

    def open(self, slot: int, prompt: IntArray, room: int) -> None:
        self._states.open(slot, room)

    def resume(self, slot: int, prompt: IntArray, room: int, source: int, length: int) -> int:
        return self._states.resume(slot, room, source, length)

    def rows(self, rooms: Mapping[int, int]) -> int:
        if self._heads.prefix is None:
            return 0
        kept = self.executor.cache.rows_for(rooms)
        return in_rows_of(self._target, kept, row_bytes(self._heads.prefix.config, self._target.model.dtype))

    def close(self, slot: int) -> None:
        self._states.close(slot)

    def read(self, parts: Mapping[int, Part]) -> None:
        self._states.add({slot: part.features for slot, part in parts.items()})

    def commit(self, committed: Mapping[int, Committed]) -> None:
        self._states.add({slot: one.features for slot, one in committed.items()})

    @torch.inference_mode()
    def propose(self, frontiers: Sequence[Frontier]) -> Proposed:
        before = self.executor.preparations
        states, reading = self._states.of([one.slot for one in frontiers])
        known = [one for one in frontiers if one.slot in states]
        if not known:
            return Proposed([Candidates.unknown(one.nodes) for one in frontiers])
        paths = [(one.slot, one.tree.tokens[one.tree.path(int(node))]) for one in known for node in one.nodes]
        best = self._best(states, paths, max(one.width for one in known))
        ends = np.cumsum([len(one.nodes) for one in known]).tolist()
        first = {one.slot: end - len(one.nodes) for one, end in zip(known, ends, strict=True)}
        return Proposed(best.shared_out(frontiers, first), 1, reading, self.executor.preparations > before)

    def _best(self, states: dict[int, Tensor], paths: list[tuple[int, IntArray]], width: int) -> Best:
        """The best tokens after each slot's path of tokens, the root first; a row for each path."""
        lengths = [len(tokens) for _, tokens in paths]
        found: list[Best] = []
        order: list[int] = []
        for length in sorted(set(lengths)):
            group = [i for i, own in enumerate(lengths) if own == length]
            inputs = [torch.stack([states[paths[i][0]] for i in group])]  # (group, hidden)
            if self._heads.config.grounded:
                inputs.append(sent(np.stack([paths[i][1] for i in group]), self._device))
            scored = partial(self._scores, length - 1)
            found.append(best_by(self.executor, length, scored, tuple(inputs), width, self._vocabulary))
            order += group
        return found[0] if len(found) == 1 else Best.joined(found, np.argsort(order))

    def _scores(self, head: int, states: Tensor, tokens: Tensor | None = None) -> Tensor:
        """One head's scores, shape `(paths, draft vocab)`."""
        read = states if tokens is None else torch.cat([states, self._embed(tokens).flatten(1)], dim=-1)
        return self._heads.logits(head, read, self._output)
