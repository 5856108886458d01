"""What is made of a GGUF file once, so that it loads fast: `python -m`, a process of its own.

So the memory goes back, a warning or a bar never reaches the caller's stdout, and importing the caller loads no torch.
The job comes as one JSON argument; the answer is one JSON line on stdout, `{"error": null}` or the sentence.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

from talon_core.errors import one_line
from talon_core.models.catalogue import EmbeddedModel
from talon_core.models.errors import ModelError, UnreadableFile


def convert(model: EmbeddedModel, gguf: Path, folder: Path, *, progress: bool) -> None:
    """Read the file in a process of its own, write down what was found, and check it against the catalogue.

    Args:
        model: whose file it is; its `config` and `probe` are what the result is held to.
        gguf: the file to read.
        folder: the existing folder that it is in, to write tokenizer, configurations and the layout of weights into.
        progress: whether bars may go to stderr.

    Raises:
        ModelError: the file cannot be read, or not rightly, by this transformers.
        OSError: the disk is full.
    """
    job = {
        "name": model.name,
        "gguf": str(gguf),
        "folder": str(folder),
        "config": dict(model.config),
        "probe": None if model.probe is None else attrs.asdict(model.probe),
        "individual_digits": model.individual_digits,
        "progress": progress,
    }
    # -P: a file of the user's folder that is called like a module of ours is not imported.
    command = [sys.executable, "-P", "-m", "talon_core.models.convert", json.dumps(job)]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "true"}
    done = subprocess.run(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=None if progress else subprocess.PIPE,
        text=True,
        errors="replace",
        check=False,
    )
    answer = _answer(done.stdout)
    if done.returncode == 0 and answer == {"error": None}:
        return
    if answer.get("disk_full"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    if done.returncode < 0:
        raise ModelError(
            f"the reading of '{model.name}' was ended by signal {-done.returncode}, as happens for want of memory; "
            f"it needs about {_memory(model) / 1e9:.1f} GB"
        )
    last = (done.stderr or "").strip().splitlines()[-1:] or ["it said nothing"]
    raise ModelError(answer.get("error") or f"the reading of '{model.name}' failed with {last[0]}")


def _answer(stdout: str) -> dict[str, Any]:
    lines = stdout.strip().splitlines()
    with contextlib.suppress(ValueError, IndexError):
        answer = json.loads(lines[-1])
        if isinstance(answer, dict):
            return answer
    return {}


def _memory(model: EmbeddedModel) -> int:
    """Bytes at the worst moment: the file, all its numbers, and the libraries."""
    return model.gguf_size + 4 * model.parameters + 10**9


def _run(job: Mapping[str, Any]) -> None:
    import transformers
    from tokenizers import pre_tokenizers

    from talon_core.models.gguf_model import read_gguf
    from talon_core.models.gguf_weights import LAYOUT

    transformers.utils.logging.set_verbosity_error()
    if not job["progress"]:
        transformers.utils.logging.disable_progress_bar()
    gguf, folder = Path(job["gguf"]), Path(job["folder"])

    try:
        blank, stored = read_gguf(gguf, lambda _: None)
        _check_config(job, blank.config.to_dict(), transformers.__version__)
        stored.save(folder / LAYOUT)
    except UnreadableFile as error:
        raise ModelError(f"the GGUF file of '{job['name']}' cannot be read: {error}") from error
    config = blank.config
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, gguf_file=gguf.name)
    if job["individual_digits"]:
        # TODO: drop when transformers' GGUF reader knows the pre-tokenizer "smollm".
        tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
        )
    tokenizer.model_max_length = config.max_position_embeddings
    tokenizer.save_pretrained(folder)
    _drop_paths(folder / "tokenizer_config.json")
    for name in ("quantization_config", "_name_or_path", "_model_name_or_path"):  # of this machine, or not so here
        if hasattr(config, name):
            delattr(config, name)
    config.architectures, config.dtype = [type(blank).__name__], "float32"
    config.save_pretrained(folder)
    transformers.GenerationConfig(
        bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    ).save_pretrained(folder)
    if job["probe"] is not None:
        _check_probe(job, folder)


def _drop_paths(path: Path) -> None:
    """Remove what the tokenizer noted about the machine that it was converted on."""
    settings = json.loads(path.read_text(encoding="utf-8"))
    for name in ("is_local", "local_files_only", "name_or_path"):
        settings.pop(name, None)
    path.write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _check_config(job: Mapping[str, Any], found: Mapping[str, Any], version: str) -> None:
    for name, right in job["config"].items():
        if found.get(name) != right:
            raise ModelError(
                f"transformers {version} reads {name}={found.get(name)!r} from the GGUF file of '{job['name']}' where "
                f"{right!r} is right; use the transformers that constraints.txt names"
            )


def _check_probe(job: Mapping[str, Any], folder: Path) -> None:
    import torch
    import transformers

    from talon_core.models.loading import load_model

    probe = job["probe"]
    model, tokenizer = load_model(str(folder))
    ids = tokenizer(probe["text"])["input_ids"]
    remedy = f"use another transformers than {transformers.__version__}, such as the one that constraints.txt names"
    if ids != list(probe["token_ids"]):
        raise ModelError(
            f"the converted tokenizer of '{job['name']}' reads {probe['text']!r} as {ids} where "
            f"{list(probe['token_ids'])} is right; {remedy}"
        )
    with torch.inference_mode():
        best = int(model(torch.tensor([ids], device=model.device)).logits[0, -1].argmax())
    if tokenizer.decode([best]) != probe["next_token"]:
        raise ModelError(
            f"the converted '{job['name']}' continues {probe['text']!r} with {tokenizer.decode([best])!r} where "
            f"{probe['next_token']!r} is right; {remedy}"
        )


def main(arguments: list[str]) -> int:
    """Do the job that the only argument holds, and answer on stdout."""
    job = json.loads(arguments[0])
    answer: dict[str, Any] = {"error": None}
    try:
        # Whatever a library prints must not mix with the answer.
        with contextlib.redirect_stdout(sys.stderr):
            _run(job)
    except ModelError as error:
        answer = {"error": str(error)}
    except Exception as error:
        full = os.strerror(errno.ENOSPC) in str(error)
        kind = f"{type(error).__name__}: {one_line(error)[:300]}"
        answer = {"error": f"the reading of '{job['name']}' failed with {kind}", "disk_full": full}
    print(json.dumps(answer))
    return 0 if answer["error"] is None else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
