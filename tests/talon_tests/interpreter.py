"""Triton's interpreter, which is slow, without what it does again and again to no effect."""

import dataclasses
from typing import Any

import pytest


def patch_once(patch: pytest.MonkeyPatch) -> None:
    """Let the interpreter prepare Triton's language once in each launch for the functions of a module.

    It does so whenever a kernel calls a function, though it stays prepared until the launch is over: by looking at
    every name of the language, which takes longer than most functions do. And for each sum, difference and product of
    integers it works out in 64 bits whether they overflow, and says so to nobody but a debugger: where nobody debugs,
    that is left out.

    Args:
        patch: undoes it.
    """
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    prepare, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    prepared: set[int] = set()  # the global names of modules, in this launch

    def prepare_once(function: Any) -> Any:
        names = id(function.__globals__)
        if names in prepared:
            return None
        prepared.add(names)
        return prepare(function)

    def launched(executor: Any, *arguments: Any, **options: Any) -> None:
        prepared.clear()
        try:
            launch(executor, *arguments, **options)
        finally:
            prepared.clear()

    builder = interpreter.interpreter_builder
    options = dataclasses.replace(builder.options, sanitize_overflow=builder.options.debug)
    patch.setattr(builder, "options", options)
    patch.setattr(interpreter, "_patch_lang", prepare_once)
    patch.setattr(interpreter.GridExecutor, "__call__", launched)
