"""Where a run was measured: versions, devices, and what exactly the model is."""

import hashlib
import platform
import shutil
import subprocess
from datetime import datetime
from importlib.metadata import PackageNotFoundError, version
from math import prod
from pathlib import Path
from typing import Any

import talon_core
from talon_core.runtime.blocks import named_weights
from talon_core.runtime.machine import describe_machine
from talon_core.runtime.weights import shape_of, weights_hash

PACKAGES = ("torch", "transformers", "tokenizers", "numpy", "triton")


def describe_environment(model: Any, tokenizer: Any, target: Any) -> dict[str, Any]:
    """Everything that a figure depends on besides the run's settings.

    Args:
        model: a transformers causal LM.
        tokenizer: its tokenizer.
        target: a `HFTarget` over the model.
    """
    template = getattr(tokenizer, "chat_template", None)
    accelerator = getattr(target, "accelerator", None)
    return {
        "python": platform.python_version(),
        "talon": talon_core.__version__,
        **{package: _version(package) for package in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        **describe_machine(),
        "device": str(model.device),
        "dtype": str(model.dtype).removeprefix("torch."),
        "weight_bits": getattr(target, "weight_bits", None),
        "attention": getattr(getattr(target, "attention", None), "name", None),
        "accelerator": accelerator.name if accelerator is not None else None,
        "architecture": type(model).__name__,
        "parameters": sum(prod(shape_of(weight)) for _, weight in named_weights(model)),
        "revision": getattr(model.config, "_commit_hash", None),
        "weights_sha256": weights_hash(model),
        "chat_template_sha256": None if template is None else hashlib.sha256(str(template).encode()).hexdigest(),
    }


def describe_session() -> dict[str, Any]:
    """When this is, and the commit of the checkout that runs, with a plus sign if files in it were changed."""
    return {"started": datetime.now().astimezone().isoformat(timespec="seconds"), "commit": _commit()}


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _commit() -> str | None:
    """Of the checkout that this module is in; None where it is installed."""
    root = Path(talon_core.__file__).parents[1]
    git = shutil.which("git")
    if git is None or not (root / ".git").exists():
        return None

    def ask(*arguments: str) -> str:
        done = subprocess.run([git, "-C", str(root), *arguments], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    commit = ask("rev-parse", "HEAD")
    return commit + ("+" if ask("status", "--porcelain", "--untracked-files=no") else "") if commit else None
