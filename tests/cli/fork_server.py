"""Runs scripts for tests as `python -c` does, each in a fork of this process: what costs time is imported already.

A line on stdin is a request, a line on stdout the answer; both are JSON. The fixture `process` is the other end.
"""

import contextlib
import gc
import io
import json
import os
import re
import signal
import sys
import tempfile
from typing import IO, Any, NoReturn

from talon_core.cli import main as talon

SECONDS = 60
REDIRECTION = re.compile(r"(\d?)([<>])(&-|/\S+)")


def main() -> None:
    """Answer requests until stdin ends."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        for arguments in ([], ["list"], ["lst"]):
            talon(arguments)  # for its imports
    gc.freeze()  # a fork need not look through what is imported when it ends
    for line in iter(sys.stdin.readline, ""):
        request = json.loads(line)
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            child = os.fork()
            if not child:
                run(request, out, err)
            _, status = os.waitpid(child, 0)
            said = []
            for file in (out, err):
                file.seek(0)
                said.append(file.read())
        print(json.dumps([os.waitstatus_to_exitcode(status), *said]), flush=True)


def run(request: dict[str, Any], out: IO[str], err: IO[str]) -> NoReturn:
    """Be the process that was asked for, until its end."""
    signal.alarm(SECONDS)
    for descriptor, file in enumerate((os.open(os.devnull, os.O_RDONLY), out.fileno(), err.fileno())):
        os.dup2(file, descriptor)
    redirect(request["redirect"])
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.path[0] = ""
    sys.argv = ["-c", *request["arguments"]]
    exec(request["script"], {"__name__": "__main__"})
    sys.exit()


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


if __name__ == "__main__":
    main()
