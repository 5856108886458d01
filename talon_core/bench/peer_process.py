"""A peer in a process of its own: what it loads and starts is not in the process in which TALON decodes."""

import gc
import json
import logging
import os
import pickle
import select
import signal
import subprocess
import sys
from contextlib import suppress
from typing import Any, Literal

import attrs

from talon_core.basics.waiting import WATCHED
from talon_core.bench.timed import AT_REST, busy_after
from talon_core.errors import PluginError, naming, one_line
from talon_core.peer import Peer, PeerAnswer
from talon_core.request import Request
from talon_core.runtime.weights import weights_hash

BEGIN = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from talon_core.bench.peer_child import serve
serve()
"""
"""What the process runs."""
ENDING = 10.0
"""Seconds that a process has to end in, once it has been told to."""

Doing = Literal["open", "decode", "close"]


class PeerFailure(PluginError):
    """A peer has failed at a prompt. Others, and the same peer with other prompts, may go on."""


@attrs.frozen
class Wanted:
    """What a peer is opened with, as its process is told: no model, but where the same one is found.

    Attributes:
        method: what the run calls the peer.
        name: what plugins call it.
        where: its class's module and name there.
        options: its options by name.
        source: where the model came from.
        trust_remote_code: whether the model's own code is run.
        dtype: the format of its weights.
        device: what it is on.
        sha256: tells the model from others, see `weights_hash`.
        eos: as in `PeerSetting`.
        room: likewise.
        threads: likewise.
        vocab_size: how many tokens there are.
        collected: the garbage collector's thresholds.
    """

    method: str
    name: str
    where: tuple[str, str]
    options: dict[str, Any]
    source: str
    trust_remote_code: bool
    dtype: str
    device: str
    sha256: str
    eos: frozenset[int]
    room: int
    threads: int
    vocab_size: int
    collected: tuple[int, int, int] = attrs.field(factory=gc.get_threshold)


def wanted(method: str, peer: Peer, model: Any, **setting: Any) -> Wanted:
    """What a peer's process is told.

    Args:
        method: what the run calls the peer.
        peer: its options.
        model: the loaded target.
        setting: the other fields of `Wanted`.
    """
    cls: Any = type(peer)
    options = {field.alias: getattr(peer, field.name) for field in attrs.fields(cls) if field.init}
    dtype = str(model.dtype).removeprefix("torch.")
    where = (cls.__module__, cls.__qualname__)
    return Wanted(
        method, peer.name, where, options, dtype=dtype, device=str(model.device), sha256=weights_hash(model), **setting
    )


class PeerProcess:
    """The process of one peer: started and opened here, asked with `decode`, ended with `close`.

    Where it has died at a prompt, another one is started for the next.

    Args:
        peer: its options.
        opening: what it is opened with.

    Raises:
        ValueError: if the peer cannot decode with this model, or cannot be sent to another process; the sentence names
            it.
        PluginError: if it fails otherwise, or its process dies.
    """

    def __init__(self, peer: Peer, opening: Wanted) -> None:
        self._peer, self._opening = peer, opening
        self._process: subprocess.Popen[bytes] | None = None
        self._waiting = False  # for an answer
        self.described: dict[str, Any] = self._started()
        """What the manifest has of the open peer."""

    def decode(self, request: Request) -> tuple[PeerAnswer, float]:
        """Let it decode a prompt while this process rests.

        Returns:
            What it gave, and the seconds that it took there.

        Raises:
            PeerFailure: if it fails, or its process dies; the message names the peer.
            ValueError: if the request cannot be sent to another process.
        """
        asked = self._pickled(request, "what is to be decoded")
        try:
            if self._process is None:
                self._started()
                self._answer("decode", asked)  # the first time is warming up
            busy_after()
            answer, seconds, busy = self._answer("decode", asked)
        except PeerFailure:
            raise
        except PluginError as error:
            raise PeerFailure(str(error)) from error
        if busy >= AT_REST:
            raise PluginError(
                f"{self._named} goes on computing after it has answered, on {busy:.2g} of a core; no other method can "
                "be measured beside it, so leave it out"
            )
        found: PeerAnswer = answer
        return found, seconds

    def close(self) -> None:
        """Let the peer give up what it holds, and end its process; one that is at a prompt is ended at once.

        Raises:
            PluginError: if the peer fails at it.
        """
        try:
            if self._process is not None and not self._waiting:
                self._answer("close", b"")
        finally:
            self._end(ENDING)

    @property
    def _named(self) -> str:
        return naming("peer", self._peer)

    def _pickled(self, thing: object, what: str) -> bytes:
        try:
            return pickle.dumps(thing)
        except Exception as error:  # whatever the objects of others raise
            raise ValueError(
                f"peer '{self._opening.method}' decodes in a process of its own, and {what} cannot be sent there: "
                f"{one_line(error)}"
            ) from error

    def _started(self) -> dict[str, Any]:
        opening = self._pickled(self._opening, "its options")
        # -P: no module of the user's own folder stands in the place of Python's
        command = [sys.executable, "-P", "-c", BEGIN, json.dumps([each for each in sys.path if isinstance(each, str)])]
        try:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env={**os.environ, **_environment(self._opening.threads)},
                start_new_session=True,  # Ctrl-C is for this process, which ends the other
            )
            described: dict[str, Any] = self._answer("open", opening)
        except BaseException:
            self._end(0)
            raise
        return described

    def _answer(self, doing: Doing, asked: bytes) -> Any:
        """What the process answers.

        Raises:
            what has been raised there, as `_raised` does.
        """
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        self._waiting = True
        try:
            with suppress(BrokenPipeError):  # that it has died is seen at its answer
                pickle.dump((doing, asked), process.stdin)
                process.stdin.flush()
            _wait_for_answer(process)
            kind, found = pickle.load(process.stdout)
        except EOFError as error:
            raise PeerFailure(f"{self._named} was at {doing} when its process {self._death()}") from error
        except Exception as error:  # whatever comes of bytes that are no pickle
            self._end(0)
            raise PeerFailure(
                f"{self._named} was at {doing} when something that is no answer came from its process; what it runs "
                "has written into the pipe of its answers"
            ) from error
        self._waiting = False
        if kind is not None:
            raise self._raised(kind, found)
        return found

    def _raised(self, kind: str, found: Any) -> Exception:
        """An error of the process, as `peer_child.told` has sent it."""
        if kind == "system":
            return OSError(*found)
        if kind == "memory":
            return MemoryError(f"peer '{self._opening.method}': {found}")
        return {"plugin": PluginError, "value": ValueError}.get(kind, RuntimeError)(found)

    def _death(self) -> str:
        """How the process has ended, as the end of a sentence."""
        process = self._process
        assert process is not None
        with suppress(subprocess.TimeoutExpired):
            process.wait(ENDING)
        self._end(0)
        status = process.returncode
        if status >= 0:
            return f"ended with status {status}"
        names = {each.value: each.name for each in signal.Signals}
        why = "; the machine may have run out of memory" if names.get(-status) == "SIGKILL" else ""
        return f"was ended by {names.get(-status, f'signal {-status}')}{why}"

    def _end(self, patience: float) -> None:
        """End the process and what it has started; it has so many seconds to do so itself, if it does not compute."""
        process, self._process = self._process, None
        if process is None:
            return
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(0 if self._waiting else patience)
        _kill(process)
        process.wait()
        self._waiting = False


def _wait_for_answer(process: "subprocess.Popen[bytes]") -> None:
    """Wait until a process answers.

    Raises:
        EOFError: if it has ended; the end of its pipe does not tell, as processes that it has forked hold it open.
        UnpicklingError: if what comes is no answer; to read it as one might wait for more.
    """
    answers: Any = process.stdout
    while hasattr(os, "killpg") and not select.select([answers], [], [], WATCHED)[0]:
        if process.poll() is not None:
            raise EOFError
    if answers.peek(1)[:1] not in (b"", pickle.PROTO):
        raise pickle.UnpicklingError


def _kill(process: "subprocess.Popen[bytes]") -> None:
    """End a process and those that it has started."""
    if hasattr(os, "killpg"):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
    process.kill()


def _environment(threads: int) -> dict[str, str]:
    """What a peer's process has in its environment besides what is in this one's."""
    from transformers.utils.logging import get_verbosity

    set_here = {"OMP_NUM_THREADS": str(threads)}
    if get_verbosity() >= logging.ERROR:
        set_here |= dict.fromkeys(("TRANSFORMERS_VERBOSITY", "HF_HUB_VERBOSITY"), "error")
        set_here["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    return set_here
