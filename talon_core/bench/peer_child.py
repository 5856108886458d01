"""The process of a peer: it loads the model, opens the peer, and decodes what it is asked to."""

import gc
import os
import pickle
import sys
import traceback
from typing import IO, TYPE_CHECKING, Any

from talon_core.basics.waiting import end_with
from talon_core.bench.peer_process import Wanted
from talon_core.bench.peers import asked, close_peer, described, open_peer
from talon_core.bench.timed import Timed, busy_after, timed
from talon_core.errors import PluginError, of_the_machine, one_line
from talon_core.peer import Peer, PeerEngine, PeerSetting

if TYPE_CHECKING:
    from talon_core.request import Request


def serve() -> None:
    """Answer on stdout what is asked on stdin, until that is closed. What libraries print goes to stderr."""
    asking, answering = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    end_with(os.getppid())
    _answer(asking, answering, _Served())


def _answer(asking: IO[bytes], answering: IO[bytes], served: "_Served") -> None:
    own = os.getpid()
    while True:
        try:
            doing, message = pickle.load(asking)
        except EOFError:
            return
        try:
            found: Any = None, getattr(served, doing)(message)
        except BaseException as error:
            found = told(error)
        if os.getpid() != own:  # a process that the peer has forked, which answers nobody
            os._exit(1)
        try:
            pickle.dump(found, answering)
            answering.flush()
        except BrokenPipeError:
            return


class _Served:
    """One peer and what it is asked, a method for each word of `Doing`."""

    def __init__(self) -> None:
        self._peer: Peer
        self._opened: PeerEngine
        self._decode: Timed

    def open(self, message: bytes) -> dict[str, Any]:
        wanted: Wanted = pickle.loads(message)
        gc.set_threshold(*wanted.collected)
        self._peer = made(wanted)
        setting = setting_of(wanted)
        device = setting.model.device
        self._opened = open_peer(wanted.method, self._peer, setting)
        ask = asked(self._peer, self._opened, wanted.vocab_size, wanted.threads)
        self._decode = timed(ask, device)
        return described(self._opened)

    def decode(self, message: bytes) -> Any:
        request: Request = pickle.loads(message)
        answer, seconds = self._decode(request)
        return answer, seconds, busy_after()

    def close(self, message: bytes) -> None:
        close_peer(self._peer, self._opened)


def made(wanted: Wanted) -> Peer:
    """The peer, found by its name as plugins register it.

    Raises:
        ValueError: if it is not found, or is another class than in the process that asks.
    """
    from talon_core.plugins.registry import load_registry

    registry = load_registry()
    known = registry.entries["peer"].get(wanted.name)
    if known is None or (known.cls.__module__, known.cls.__qualname__) != wanted.where:
        raise ValueError(
            f"peer '{wanted.method}' decodes in a process of its own, and there no plugin registers its class "
            f"{'.'.join(wanted.where)} by this name; name the plugin by an entry point in the group talon"
            f"{registry.failed}"
        )
    peer: Peer = known.cls(**wanted.options)
    return peer


def setting_of(wanted: Wanted) -> PeerSetting:
    """The same model and the same threads as in the process that asks.

    Raises:
        ValueError: if the model cannot be loaded, or is another one.
    """
    import torch

    from talon_core.models.loading import load_model
    from talon_core.runtime.weights import weights_hash

    torch.set_num_threads(1)  # of OpenMP, which counts the threads of the process, there are no more than peers start
    dtype = getattr(torch, wanted.dtype)
    model, tokenizer = load_model(
        wanted.source, trust_remote_code=wanted.trust_remote_code, dequantize=True, dtype=dtype
    )
    if str(model.device) != wanted.device:
        model = model.to(wanted.device)
    if weights_hash(model) != wanted.sha256:
        raise ValueError(
            f"peer '{wanted.method}' decodes in a process of its own, and the model '{wanted.source}' that is loaded "
            "there has other weights; it may have been written anew, so begin again"
        )
    torch.set_num_threads(wanted.threads)
    return PeerSetting(model, tokenizer, wanted.source, wanted.eos, wanted.room, wanted.threads)


def told(error: BaseException) -> tuple[str, Any]:
    """An error in a form that the process that asks can read: those of others cannot always be sent."""
    if isinstance(error, PluginError):
        return "plugin", str(error)
    if isinstance(error, OSError) and error.errno is not None:
        return "system", (error.errno, str(error.strerror), None if error.filename is None else str(error.filename))
    if of_the_machine(error):
        return "memory", one_line(error)
    if isinstance(error, ValueError | LookupError | OSError):
        return "value", one_line(error)
    traceback.print_exception(error)  # a mistake of ours
    return "other", f"{type(error).__name__}: {one_line(error)}"
