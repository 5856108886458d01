"""A `python` that is there at once: a fork of a process that has imported what takes long already.

A run has two such servers. That of the fixture `forked_python` has torch, transformers and TALON; the fixture is a
command that takes `-c` or `-m` as `python` does. It hands its streams, folder and environment to a fork, passes signals
on to it, and ends as it ends; `Forked` takes the place of `subprocess.Popen`. What an interpreter does at its start a
fork does not do again, but for the encoding of `PYTHONIOENCODING`. The other server has the command line alone; there
`run` asks for a process.
"""

import atexit
import contextlib
import gc
import io
import json
import os
import re
import runpy
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Sequence
from importlib import import_module
from types import FrameType, ModuleType
from typing import Any, NoReturn, TextIO

IMPORTED = (
    *("talon_core.cli.run", "talon_core.cli.session", "talon_core.decoding.loading", "talon_core.decoding.decoder"),
    *("talon_core.engine.engine", "talon_core.hf.frontend", "talon_core.hf.target", "talon_core.certify.composed"),
    *("talon_strategies", "talon_drafters.eagle3.drafter", "talon_kernels.acceleration", "pydantic"),
    *("transformers.models.llama.modeling_llama", "transformers.models.llama.tokenization_llama"),
)
STREAMS = (0, 1, 2)
MOST_DESCRIPTORS = 8
"""That are handed to a fork."""
SECONDS = 60
"""What `run` gives a process."""
REDIRECTION = re.compile(r"(\d?)([<>])(&-|/\S+)")


def serve(address: str, imported: str) -> None:
    """Say on stdout when one can connect, and answer each connection in a process of its own, while stdin is open.

    Args:
        address: of the socket.
        imported: what is imported when somebody connects first: "all", or "cli" for the command line without torch.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(address)
        listener.listen()
        print("ready", flush=True)
        prepared = False
        while listener in select.select([listener, sys.stdin], [], [])[0]:
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            channel, _ = listener.accept()
            if not prepared:
                prepare(IMPORTED if imported == "all" else ())
                prepared = True
            with channel:
                if not os.fork():
                    listener.close()
                    attend(channel)


def prepare(modules: Sequence[str]) -> None:
    """Import the command line and what else takes long, and leave a fork little to do at its end."""
    for module in modules:
        import_module(module)
    talon = import_module("talon_core.cli").main
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for arguments in ([], ["list"], ["lst"]):
            talon(arguments)  # for its imports
    for finalizer in [*weakref.finalize._registry]:  # type: ignore[attr-defined]  # of torch's libraries
        finalizer.atexit = False
    gc.freeze()


def attend(channel: socket.socket) -> NoReturn:
    """Start the process that is asked for, and tell its number and, in the end, its status."""
    _, streams, _, _ = socket.recv_fds(channel, 1, MOST_DESCRIPTORS)
    asked = json.loads(channel.makefile().readline())
    running, held = os.pipe()  # the process holds its end until it ends
    child = os.fork()
    if not child:
        os.close(running)
        channel.close()
        become(asked, streams)
    for descriptor in (held, *streams):
        os.close(descriptor)
    tell(channel, child)
    if channel in select.select([channel, running], [], [])[0]:  # who asked is gone
        os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    tell(channel, os.waitstatus_to_exitcode(status))
    os._exit(0)


def tell(channel: socket.socket, number: int) -> None:
    """Send a number to whoever asked, if it is still there."""
    with contextlib.suppress(BrokenPipeError):
        channel.sendall(b"%d\n" % number)


def become(asked: dict[str, Any], streams: list[int]) -> NoReturn:
    """Be that process, until its end."""
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler if asked["interruptible"] else signal.SIG_IGN)
    kept = dict(zip(asked.get("kept", ()), map(str, streams[len(STREAMS) :]), strict=True))
    for number, descriptor in zip(STREAMS, streams, strict=False):
        os.dup2(descriptor, number)
        os.close(descriptor)
    encoding = asked["environment"].get("PYTHONIOENCODING", "").partition(":")[0] or "utf-8"
    for number, (name, mode) in enumerate({"stdin": "r", "stdout": "w", "stderr": "w"}.items()):
        errors, lines = ("backslashreplace", 1) if name == "stderr" else ("strict", -1)
        stream = os.fdopen(number, mode, lines, encoding=encoding, errors=errors, closefd=False)
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
    redirect(asked.get("redirect", ""))
    signal.alarm(asked.get("seconds", 0))
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    *options, how, what = asked["command"]
    if "-P" not in options:
        sys.path.insert(0, "")
    sys.argv = [how, *(kept.get(word, word) for word in asked["arguments"])]
    try:
        if how == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            sys.modules["__main__"] = main = ModuleType("__main__")
            exec(compile(what, "<string>", "exec"), vars(main))
        sys.exit()
    except SystemExit as leaving:
        if leaving.code is not None and not isinstance(leaving.code, int):
            print(leaving.code, file=sys.stderr)
            leave(1)
        else:
            leave(leaving.code or 0)
        raise
    except KeyboardInterrupt:
        raise
    except BaseException:
        sys.excepthook(*sys.exc_info())
        leave(1)
        raise
    finally:
        gc.unfreeze()  # the interpreter takes apart all there is


def redirect(words: str) -> None:
    """Do what a shell does with these words; a stream whose descriptor is closed is None, as at a process's start."""
    for number, direction, target in REDIRECTION.findall(words):
        descriptor = int(number or direction == ">")
        if target == "&-":
            os.close(descriptor)
            name = ("stdin", "stdout", "stderr")[descriptor]
            setattr(sys, name, None)
            setattr(sys, f"__{name}__", None)
        else:
            os.dup2(os.open(target, os.O_WRONLY), descriptor)


def leave(status: int) -> None:
    """End as an interpreter does, without taking apart what is imported, which takes a second; return if it cannot."""
    threading._shutdown()
    atexit._run_exitfuncs()
    with contextlib.suppress(OSError, ValueError):
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(status)


def run(address: str, script: str, *arguments: str, redirect: str = "") -> tuple[int, str, str]:
    """Run a script as `python -c` does; its exit status (negative: killed by a signal), stdout and stderr.

    Args:
        address: of the server.
        script: what is run, for a minute at the most.
        arguments: what follows it on the command line.
        redirect: redirections of the streams as a shell writes them: `2>&-`, `>/dev/full`.
    """
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err, open(os.devnull) as nothing:
        streams = [one.fileno() for one in (nothing, out, err)]
        asked = {"command": ["-c", script], "arguments": arguments, "redirect": redirect, "seconds": SECONDS}
        with socket.socket(socket.AF_UNIX) as channel:
            answers = request(channel, address, {**asked, "interruptible": True}, streams)
            answers.readline()
            status = int(answers.readline())
        said = []
        for file in (out, err):
            file.seek(0)
            said.append(file.read())
    return status, said[0], said[1]


class Forked:
    """A process as `subprocess.Popen` makes one, as far as `ProcessWorker` uses it.

    Args:
        address: of the server.
        command: `python -c` with a script and its arguments, the last of which is its parent's number.
        pass_fds: descriptors that it is to have; arguments that are one of these name it there.
        how: other options, which it has anyway.
    """

    def __init__(self, address: str, command: Sequence[str], pass_fds: Sequence[int], **how: object) -> None:
        _, option, script, *arguments = command
        script = f"import os, sys; sys.argv[-1] = str(os.getppid())\n{script}"
        asked = {"command": [option, script], "arguments": arguments, "kept": [*map(str, pass_fds)]}
        self._channel = socket.socket(socket.AF_UNIX)
        with open(os.devnull, "r+") as nothing:
            streams = [nothing.fileno()] * len(STREAMS)
            request(self._channel, address, {**asked, "interruptible": True}, [*streams, *pass_fds])
        self._answers = self._channel.makefile("rb", buffering=0)  # so that the channel tells whether there is more
        self.pid = int(self._answers.readline())
        self.returncode: int | None = None

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._channel], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("", timeout or 0)
            self.returncode = int(self._answers.readline())
            self._answers.close()
            self._channel.close()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def request(channel: socket.socket, address: str, asked: dict[str, Any], streams: Sequence[int]) -> TextIO:
    """Ask for a process in this environment and folder; a line for its number, and one for its status."""
    channel.connect(address)
    socket.send_fds(channel, [b" "], streams)
    here = {"environment": dict(os.environ), "folder": os.getcwd()}
    channel.sendall(json.dumps({**asked, **here}).encode() + b"\n")
    return channel.makefile()


def ask(address: str, *words: str) -> NoReturn:
    """Stand for `python` with these words on its command line."""
    place = next(place for place, word in enumerate(words) if word in ("-c", "-m"))
    asked = {
        "command": words[: place + 2],
        "arguments": words[place + 2 :],
        "interruptible": signal.getsignal(signal.SIGINT) is not signal.SIG_IGN,
    }
    passed_on = (signal.SIGINT, signal.SIGTERM)
    signal.pthread_sigmask(signal.SIG_BLOCK, passed_on)
    with socket.socket(socket.AF_UNIX) as channel:
        answers = request(channel, address, asked, STREAMS)
        child = int(answers.readline())

        def pass_on(number: int, _: FrameType | None) -> None:
            os.kill(child, number)

        for number in passed_on:
            signal.signal(number, pass_on)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, passed_on)
        status = int(answers.readline())
    if status < 0:
        with contextlib.suppress(OSError):  # nobody can hear SIGKILL
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    {"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:])
    os._exit(0)  # what is imported need not be taken apart
