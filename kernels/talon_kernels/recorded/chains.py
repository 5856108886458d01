"""Rounds whose draft trees are chains, walked by C; see `ChainRun`."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from talon_core.runtime.host_draws import warps_of
from talon_core.runtime.recording import ChainPass, ChainRecord, ChainRun, RanChains
from talon_kernels.native import Library
from talon_kernels.recorded.tape import View
from talon_kernels.recorded.wanted import walk_on

if TYPE_CHECKING:
    from talon_kernels.recorded.recorder import Walked

MOST_DRAFTED = 32
"""Drafted tokens of a round, at most; as in `chains.c`."""

BLOCK = 256
"""Numbers of a law go by so many, as in `draw.c`: there is room for whole ones."""

_WHOLE, _AT = ctypes.c_int64, ctypes.c_void_p


class PassFields(ctypes.Structure):
    """`ChainPass` of `chains.c`."""

    _fields_ = (
        *(("steps", _AT), ("count", _WHOLE), ("memory", _AT), ("counts", _AT)),
        *((name, _AT) for name in ("ids", "positions", "sources", "made", "ends")),
        *(("layout", _AT), ("batch", _WHOLE), ("slot", _WHOLE), ("found", _AT), ("scores", _AT)),
    )


class RoundsFields(ctypes.Structure):
    """`ChainRounds` of `chains.c`."""

    _fields_ = (
        *((name, PassFields) for name in ("first", "next", "target")),
        *(("given", _AT), ("best", _AT)),
        *((name, _WHOLE) for name in ("features", "width", "vocabulary")),
        *(("ids", _AT), ("depth", _WHOLE), ("joins", _AT), ("goes_on", _AT), ("stops", _AT)),
        *((name, _WHOLE) for name in ("stop_count", "threads", "rounds", "left")),
        *((name, ctypes.c_double) for name in ("credit", "least", "layer_price", "token_price")),
        ("node_prices", _AT),
        *((name, _WHOLE) for name in ("target_rows", "drafter_rows", "least_pending", "least_drafted", "pending")),
        *((name, _AT) for name in ("records", "root", "tokens", "drafted", "numbers", "laws", "states", "seconds")),
        *((name, _AT) for name in ("after", "warp", "draws")),
        ("after_size", _WHOLE),
        ("draft_temperature", ctypes.c_double),
        *((name, _AT) for name in ("draft_draws", "draft_laws", "draft_logp")),
        *((name, _WHOLE) for name in ("done", "used", "drafts", "brought")),
    )


class _Bound:
    """A pass as C walks it, and what keeps its memory alive.

    Args:
        of: the pass.
        slot: whose text it reads.
        choosing: as for `RecordedPass.run`.
        nodes: of the largest tree.
    """

    def __init__(self, of: ChainPass, slot: int, choosing: bool, nodes: int) -> None:
        walked: Walked[Any] = of.recorded  # type: ignore[assignment]  # a recorder is given its own
        self.program, layout, counts, inputs = walked.ready(of.inputs, of.more, choosing, of.rows)
        self.made = walked.made
        self.in_order = not walked.ends_in_torch
        batch = len(of.inputs.counts)
        self.layout = np.zeros(3 * batch + nodes, dtype=np.int32)
        self.layout[:batch] = layout.numbers[:batch]
        steps, count, memory = self.program.at
        held = {name: inputs[name].ctypes.data for name in inputs}
        self.fields = PassFields(
            *(steps, count, memory, counts.ctypes.data),
            *(held.get(name) for name in ("ids", "positions", "sources", "made", "ends")),
            *(self.layout.ctypes.data, batch, slot),
        )

    def at(self, view: Any) -> torch.Tensor | None:
        """A row of what the pass returns; None where there is none, or rows do not lie one behind another."""
        if not isinstance(view, View):
            return None
        if not (self.in_order and self.program.tensor(view, 2).is_contiguous()):
            return None
        return self.program.tensor(view, 1)


def run_chains(library: Library, run: ChainRun) -> RanChains | None:
    """As `PassRecorder.run_chains`."""
    chains, slot = run.chains, run.slot
    if chains.depth > MOST_DRAFTED:
        return None
    nodes = max(len(run.pending), chains.depth + 1) + chains.depth
    draws = run.draws
    # the first may be in the place of the next one
    order = (run.next, False), (run.first, False), (run.target, draws is None)
    following, first, target = (_Bound(one, slot, choosing, nodes) for one, choosing in order)
    features = run.features(target.made[1] if draws is None else target.made)
    wanted = [(bound, view) for bound in (first, following) for view in bound.made] + [
        (target, target.made[0]),
        (target, features),
    ]
    at = [row for bound, view in wanted if (row := bound.at(view)) is not None]
    if len(at) < len(wanted):
        return None
    # chosen: the tokens, or the scores that they are drawn from
    numbers, scores, next_numbers, next_scores, chosen, states = at
    (_, twice), (_, vocabulary), (_, width) = numbers.shape, scores.shape, states.shape
    if run.drafts is not None:  # C takes what was drafted off the target's law
        largest = vocabulary if run.ids is None else 1 + int(run.ids.max())
        if largest > chosen.shape[-1]:
            return None
    if run.given.shape[1] != width or run.given.dtype != torch.float32 or twice != next_numbers.shape[1]:
        return None
    for bound, found_at in ((first, numbers), (following, next_numbers), (target, states)):
        bound.fields.found = found_at.data_ptr()
    for bound, scores_at in ((first, scores), (following, next_scores)):
        bound.fields.scores = scores_at.data_ptr()
    rounds, depth = run.rounds, chains.depth
    records, drafted = (np.zeros((rounds, columns), dtype=np.int64) for columns in (5, depth))
    roots, taken = np.zeros((2, rounds), dtype=np.int64)
    seconds = np.zeros((rounds, depth + 1))
    roots[0] = run.pending[-1]
    kept = torch.empty((rounds, depth, twice)), torch.empty((rounds, depth, vocabulary))
    kept_states = torch.empty((rounds, depth + 1, width))
    joins, goes_on = np.array(chains.joins), np.array(chains.goes_on)
    stops = np.array([end for end in run.ends if 0 <= end < 2**63], dtype=np.int64)
    best: int | None = chosen.data_ptr()
    warp = np.zeros(0)
    drawing: tuple[int | None, int | None, int | None, int] = None, None, None, 0
    if draws is not None:
        warp = warps_of([draws.warp])
        best, drawing = None, (best, warp.ctypes.data, draws.numbers.ctypes.data, chosen.shape[1])
    account, prices, spending = chains.account, None, (0.0, 0.0, 0.0, 0.0)
    if account is not None:
        prices = np.array(account.nodes)
        spending = account.credit, account.least, account.layer, account.token
    logp = np.zeros((rounds, depth))
    drafting: tuple[float, int | None, int | None, int | None] = 0.0, None, None, None
    laws = np.empty((depth if run.drafts is not None else 0, -(-vocabulary // BLOCK) * BLOCK))
    if run.drafts is not None:
        assert chains.drawn is not None
        drafting = chains.drawn, run.drafts.ctypes.data, laws.ctypes.data, logp.ctypes.data
    ids = None if run.ids is None else np.ascontiguousarray(run.ids, dtype=np.int64)
    fields = RoundsFields(
        *(first.fields, following.fields, target.fields, run.given.data_ptr(), best),
        *(width, twice // 2, vocabulary, None if ids is None else ids.ctypes.data, depth),
        *(joins.ctypes.data, goes_on.ctypes.data, stops.ctypes.data, len(stops), torch.get_num_threads()),
        *(rounds, run.left, *spending, None if prices is None else prices.ctypes.data),
        *(run.target.rows, run.first.rows, run.least_pending, run.least_drafted, len(run.pending)),
        *(one.ctypes.data for one in (records, roots, taken, drafted)),
        *(one.data_ptr() for one in kept),
        *(kept_states.data_ptr(), seconds.ctypes.data, *drawing, *drafting),
    )

    found: list[ChainRecord] = []

    def walk(count: int) -> int:
        fields.rounds = count
        library.walk_chains(ctypes.addressof(fields))
        part = slice(len(found), fields.done)
        told = zip(*(one[part].tolist() for one in (records, drafted, taken, logp, seconds)), strict=True)
        for (pending, layers, nodes, accepted, used), chain, after, by, took in told:
            drawn = by[:nodes] if run.drafts is not None else []
            spent = [*took[:layers], took[-1]]
            found.append(ChainRecord(pending, layers, chain[:nodes], accepted, after, used, drawn, spent))
        return len(found)

    def brought(before: int, done: int) -> list[int]:
        return found[-1].emitted if fields.left > 1 else []

    walk_on(walk, brought, rounds, run.wanted)
    return RanChains(found, *kept, kept_states)
