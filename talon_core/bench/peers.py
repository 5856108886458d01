"""Peers of a run: refused before anything is loaded, opened with the model, asked one prompt at a time, and checked."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from talon_core.errors import PluginError, blaming, blaming_bugs, is_number, is_whole, naming, written
from talon_core.peer import Peer, PeerAnswer, PeerEngine, PeerSetting

if TYPE_CHECKING:
    from talon_core.request import Request

LABELS = ("version", "dtype", "device")
"""What an open peer says of itself in words."""


def open_peer(name: str, peer: Peer, setting: PeerSetting) -> PeerEngine:
    """Load a peer for a model. The threads that PyTorch computes on stay as they are.

    Raises:
        ValueError: if it cannot decode with this model; the sentence names it.
        PluginError: if it fails otherwise, or what it gives is no engine.
    """
    from torch import set_num_threads

    try:
        with blaming_bugs("peer", peer, "open"):
            opened: Any = peer.open(setting)
    except ValueError as error:
        raise ValueError(f"peer '{name}': {error}") from error
    finally:
        set_num_threads(setting.threads)
    if not isinstance(opened, PeerEngine):
        raise PluginError(f"{naming('peer', peer)} returned {written(opened)} from open; it must be a PeerEngine")
    for field in LABELS:
        label = getattr(opened, field)
        if not isinstance(label, str) or not label:
            raise PluginError(f"{naming('peer', peer)} says that its {field} is {written(label)}; it must be a text")
    if opened.threads is not None and not (is_whole(opened.threads) and opened.threads > 0):
        raise PluginError(
            f"{naming('peer', peer)} says that its threads are {written(opened.threads)}; they must be a number above "
            "0, or None"
        )
    return opened


def close_peer(peer: Peer, opened: PeerEngine) -> None:
    """Let a peer give up what it holds.

    Raises:
        PluginError: if it fails.
    """
    with blaming("peer", peer, "close"):
        opened.close()


def described(opened: PeerEngine) -> dict[str, Any]:
    """What the manifest has of an open peer: plain data, of no class of the peer's own."""
    return {"threads": _number(opened.threads), **{field: str(getattr(opened, field)) for field in LABELS}}


def unlike(described: Mapping[str, Any], environment: Mapping[str, Any]) -> list[str]:
    """In what a peer is not like the methods that it stands beside, a word or two each.

    Args:
        described: what the manifest has of the peer.
        environment: of the run.
    """
    device, own = environment.get("device"), described.get("device")
    found = [str(described["dtype"])] if described.get("dtype") not in (None, environment.get("dtype")) else []
    threads = described.get("threads")
    if threads is not None and own == "cpu" and threads != environment.get("threads"):
        found.append(f"{threads} thread{'' if threads == 1 else 's'}")
    if own is not None and device is not None and str(own).split(":")[0] != str(device).split(":")[0]:
        found.append(f"on {own}")
    return found


def asked(peer: Peer, opened: PeerEngine, vocab_size: int, threads: int) -> "Callable[[Request], PeerAnswer]":
    """A function that asks an open peer and checks what it answers.

    It raises:
        PluginError: if the peer fails, or gives no tokens or such as there are not; the message names it.
    """

    from torch import get_num_threads, set_num_threads

    def ask(request: "Request") -> PeerAnswer:
        try:
            with blaming("peer", peer, "decode"):
                answer: Any = opened.decode(request)
        finally:
            if get_num_threads() != threads:
                set_num_threads(threads)
        return _checked(peer, answer, vocab_size)

    return ask


def _checked(peer: Peer, answer: Any, vocab_size: int) -> PeerAnswer:
    if not isinstance(answer, PeerAnswer):
        raise PluginError(f"{naming('peer', peer)} returned {written(answer)} from decode; it must be a PeerAnswer")
    for field in ("target_passes", "draft_passes"):
        passes = getattr(answer, field)
        if passes is not None and not (is_whole(passes) and passes >= 0):
            raise PluginError(f"{naming('peer', peer)} tells of {written(passes)} {field}; they are a number, or None")
    reading = answer.prefill_seconds
    if reading is not None and not (is_number(reading) and 0 <= reading < math.inf):
        raise PluginError(
            f"{naming('peer', peer)} tells of {written(reading)} prefill_seconds; they are a number from 0 on, or None"
        )
    with blaming("peer", peer, "decode"):
        tokens = [*answer.token_ids]
    if not tokens:
        raise PluginError(f"{naming('peer', peer)} decoded no token; it must give at least one")
    wrong = next((token for token in tokens if not is_whole(token) or not 0 <= token < vocab_size), None)
    if wrong is not None:
        raise PluginError(
            f"{naming('peer', peer)} decoded token {written(wrong)}; the vocabulary has ids 0 to {vocab_size - 1}"
        )
    return PeerAnswer(
        [int(token) for token in tokens],
        _number(answer.target_passes),
        _number(answer.draft_passes),
        None if reading is None else float(reading),
    )


def _number(passes: int | None) -> int | None:
    return None if passes is None else int(passes)


def check_peers(peers: Sequence[tuple[str, Peer]], temperature: float) -> None:
    """Refuse peers that cannot decode here or not so, before a model is loaded.

    Args:
        peers: each with its name.
        temperature: 0 is greedy.

    Raises:
        ValueError: for the first of them; the sentence says what would be right.
        PluginError: if a peer cannot say it.
    """
    for name, peer in peers:
        with blaming_bugs("peer", peer, "unavailable"):
            why: Any = peer.unavailable()
        if why is not None and not isinstance(why, str):
            raise PluginError(
                f"{naming('peer', peer)} returned {written(why)} from unavailable; it must be a text or None"
            )
        if why is not None:
            raise ValueError(f"peer '{name}' cannot be used here: {why}")
        if temperature and not peer.draws:
            raise ValueError(
                f"peer '{name}' decodes greedily only, and the temperature is {temperature:g}; leave it out, or set "
                "the temperature to 0"
            )
