"""Work out the profiles that come with TALON from datasheets: `python tools/computed_profiles.py`.

A pass takes as long as reading its bytes from the GPU's memory, or as doing its arithmetic, whichever is more, at the
shares of the datasheet's figures that `BANDWIDTH_SHARE` and `PEAK_SHARE` say. Nothing else counts: no launches of
kernels, no waiting, no host. What they are good for, docs/profiles.md says. `--check` writes nothing, and fails if
the files are not these. With `--out` one profile is written for another GPU or model, and the others are left alone.
"""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics.kept import ENDING
from talon_core.profiles.profile import AXES, Profile, Table
from talon_core.profiles.store import COMPUTED, as_text

BANDWIDTH_SHARE = 0.8
"""Of the memory's bandwidth that a pass gets."""

PEAK_SHARE = 0.6
"""Of the dense bfloat16 arithmetic that it gets."""

BYTES = 2
"""Of a number in bfloat16."""

HEAD_CONTEXT = 1024
"""Tokens that a drafter's layer attends to."""

NODES = (1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256)
CONTEXTS = (256, 1024, 4096)
BATCHES = (1, 4, 16)
ROWS = (1, 4, 16, 64, 256)
TOKENS = (1, 2, 4, 8)
PROMPTS = (64, 128, 192, 256, 512, 1024, 2048, 4096)


@attrs.frozen
class Gpu:
    """A GPU by its datasheet.

    Attributes:
        name: as its driver calls it.
        bandwidth: of its memory, in bytes a second.
        peak: dense bfloat16 arithmetic, in operations a second.
        source: the datasheet.
    """

    name: str
    bandwidth: float
    peak: float
    source: str

    def seconds(self, moved: float, operations: float) -> float:
        """Of a pass that moves so many bytes and does so many operations."""
        return max(moved / (BANDWIDTH_SHARE * self.bandwidth), operations / (PEAK_SHARE * self.peak))


@attrs.frozen
class Shape:
    """A model by its configuration, and the EAGLE-3 head that goes with it: one layer of its shape.

    Attributes:
        name: of the model.
        hidden: width of its states.
        inner: width of its MLPs.
        layers: how many.
        heads: of queries.
        kv_heads: of keys and values.
        head_dim: width of a head.
        vocab: tokens.
        draft_vocab: tokens that the head can draft.
    """

    name: str
    hidden: int
    inner: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    draft_vocab: int = 32_000

    def weights(self, wide: int = 1) -> int:
        """Of one layer whose queries, keys and values are made of states so many times as wide."""
        queries, keys = self.heads * self.head_dim, self.kv_heads * self.head_dim
        return self.hidden * (wide * (queries + 2 * keys) + queries + 3 * self.inner)

    @property
    def kv_bytes(self) -> int:
        """Of the keys and values of one token in one layer."""
        return 2 * self.kv_heads * self.head_dim * BYTES

    def attending(self, queries: int, keys: float) -> float:
        """Operations of attention in one layer."""
        return 4.0 * self.heads * self.head_dim * queries * keys

    @property
    def parameters(self) -> int:
        """Of the model, with embeddings and LM head, without norms."""
        return self.layers * self.weights() + 2 * self.vocab * self.hidden


GPUS = {
    "a100": Gpu("NVIDIA A100-SXM4-80GB", 2.039e12, 312e12, "NVIDIA A100 Tensor Core GPU datasheet, SXM, 80 GB"),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 3.35e12, 989e12, "NVIDIA H100 Tensor Core GPU datasheet, SXM"),
    "h200": Gpu("NVIDIA H200", 4.8e12, 989e12, "NVIDIA H200 Tensor Core GPU datasheet, SXM"),
}
SHAPES = {
    "llama-3.1-8b": Shape("Llama-3.1-8B", 4096, 14336, 32, 32, 8, 128, 128_256),
    "qwen3-32b": Shape("Qwen3-32B", 5120, 25600, 64, 64, 8, 128, 151_936),
}


def verify(gpu: Gpu, shape: Shape, nodes: int, context: int, batch: int) -> float:
    """A pass of the target over `batch` trees of `nodes` each."""
    rows = nodes * batch
    weights = shape.layers * shape.weights() + shape.vocab * shape.hidden
    cache = batch * (context + 2 * nodes) * shape.layers * shape.kv_bytes  # those of the nodes are written, and read
    attention = batch * shape.layers * shape.attending(nodes, context + nodes)
    return gpu.seconds(BYTES * weights + cache, 2.0 * weights * rows + attention)


def draft(gpu: Gpu, shape: Shape, rows: int) -> float:
    """A layer of the head over so many nodes."""
    weights = shape.weights(wide=2) + shape.draft_vocab * shape.hidden
    cache = (HEAD_CONTEXT + 2 * rows) * shape.kv_bytes
    return gpu.seconds(BYTES * weights + cache, 2.0 * weights * rows + shape.attending(rows, HEAD_CONTEXT + rows))


def tell(gpu: Gpu, shape: Shape, tokens: int) -> float:
    """Fusing the target's three states, and what running the accepted tokens again adds to the next first layer."""
    fusing = 3 * shape.hidden * shape.hidden
    again = 2.0 * shape.weights(wide=2) * (tokens - 1) / (PEAK_SHARE * gpu.peak)
    return gpu.seconds(BYTES * fusing, 2.0 * fusing * tokens) + again


def commit(gpu: Gpu, shape: Shape, tokens: int) -> float:
    """Moving the accepted rows of the cache: each is read and written."""
    return gpu.seconds(2.0 * tokens * shape.layers * shape.kv_bytes, 0.0)


def read(gpu: Gpu, shape: Shape, tokens: int) -> float:
    """Reading a prompt, by the target."""
    return reading(gpu, shape, shape.layers, shape.layers * shape.weights(), tokens)


def catch_up(gpu: Gpu, shape: Shape, tokens: int) -> float:
    """Reading it by the head, which fuses the target's three states before."""
    return reading(gpu, shape, 1, shape.weights(wide=2) + 3 * shape.hidden * shape.hidden, tokens)


def reading(gpu: Gpu, shape: Shape, layers: int, weights: int, tokens: int) -> float:
    """Reading so many tokens by some layers, with so many weights in all; each token attends to half of them."""
    moved = BYTES * weights + tokens * layers * shape.kv_bytes
    return gpu.seconds(moved, 2.0 * weights * tokens + layers * shape.attending(tokens, tokens / 2))


def computed(name: str, gpu: Gpu, shape: Shape) -> Profile:
    """One profile."""
    points = {
        "verify": {
            (nodes, context, batch): verify(gpu, shape, nodes, context, batch)
            for batch in BATCHES
            for context in CONTEXTS
            for nodes in NODES
        },
        "draft": {(rows, 1): draft(gpu, shape, rows) for rows in ROWS},
        "accept": {},
        "commit": {(tokens,): commit(gpu, shape, tokens) for tokens in TOKENS},
        "tell": {(tokens,): tell(gpu, shape, tokens) for tokens in TOKENS},
        "read": {(tokens,): read(gpu, shape, tokens) for tokens in PROMPTS},
        "catch_up": {(tokens,): catch_up(gpu, shape, tokens) for tokens in PROMPTS},
        "rest": {},
        "chain": {},
    }
    rounded = {kind: {sizes: float(f"{seconds:.5g}") for sizes, seconds in points[kind].items()} for kind in AXES}
    machine = {
        "cpu": None,
        "gpu": [gpu.name],
        "threads": None,
        "device": "cuda",
        "dtype": "bfloat16",
        "attention": None,
        "accelerator": None,
    }
    made = {
        "by": "tools/computed_profiles.py",
        "source": gpu.source,
        "bandwidth": gpu.bandwidth,
        "peak": gpu.peak,
        "bandwidth_share": BANDWIDTH_SHARE,
        "peak_share": PEAK_SHARE,
    }
    model = {"name": shape.name, "parameters": shape.parameters, "weights_sha256": None}
    tables: dict[str, Any] = {f"{kind}_table": Table(kind, rounded[kind]) for kind in AXES}
    return Profile(name, "computed", machine, model, "eagle3", made, **tables)


def files() -> dict[Path, str]:
    """What each file is to hold."""
    profiles = [
        computed(f"{gpu_name}-{shape_name}", gpu, shape)
        for gpu_name, gpu in GPUS.items()
        for shape_name, shape in SHAPES.items()
    ]
    return {COMPUTED / f"{one.name}{ENDING}": as_text(one) for one in profiles}


def shape_of(config: Path) -> Shape:
    """The shape of a model by its `config.json`.

    Raises:
        ValueError: if it does not say what is needed, or is of a mixture of experts, which reads other weights.
    """
    said: dict[str, Any] = json.loads(config.read_text(encoding="utf-8"))
    said = said.get("text_config", said)
    experts = [key for key, value in said.items() if "expert" in key and value]
    if experts:
        raise ValueError(f"'{config}' is of a mixture of experts ({experts[0]}); passes of these are not worked out")
    try:
        hidden, heads = said["hidden_size"], said["num_attention_heads"]
        return Shape(
            name=config.resolve().parent.name,
            hidden=hidden,
            inner=said["intermediate_size"],
            layers=said["num_hidden_layers"],
            heads=heads,
            kv_heads=said.get("num_key_value_heads") or heads,
            head_dim=said.get("head_dim") or hidden // heads,
            vocab=said["vocab_size"],
        )
    except KeyError as error:
        raise ValueError(f"'{config}' does not say {error.args[0]}") from None


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Work out profiles from datasheets.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if the files are not these")
    other = parser.add_argument_group("another GPU or model, whose profile is written to --out")
    other.add_argument("--out", type=Path, metavar="FILE", help="a file that ends in .json")
    other.add_argument(
        "--gpu", metavar="NAME", help=f"one of {', '.join(GPUS)}, or another one, by the next two options"
    )
    other.add_argument("--bandwidth", type=float, metavar="X", help="of its memory, in 10^12 bytes a second")
    other.add_argument("--peak", type=float, metavar="X", help="dense bfloat16, in 10^12 operations a second")
    other.add_argument(
        "--model", metavar="NAME|FOLDER", help=f"one of {', '.join(SHAPES)}, or a folder with config.json"
    )
    other.add_argument("--draft-vocab", type=int, metavar="N", help="tokens that the head can draft, by default 32,000")
    options = parser.parse_args(arguments)
    if options.out is not None and (options.gpu is None or options.model is None):
        parser.error("--out needs --gpu and --model")
    if options.out is not None and options.out.suffix != ENDING:
        parser.error(f"--out is '{options.out}'; its name must end in {ENDING}")
    if options.out is None and (options.gpu is not None or options.model is not None):
        parser.error("--gpu and --model are of one profile, which needs --out")
    figures = [options.bandwidth, options.peak]
    if options.gpu in GPUS and figures != [None, None]:
        parser.error(f"--gpu is '{options.gpu}', whose --bandwidth and --peak are known; leave them out")
    if options.gpu not in (None, *GPUS) and not all(figure is not None and figure > 0 for figure in figures):
        known = ", ".join(GPUS)
        parser.error(
            f"--gpu is '{options.gpu}', which is none of {known}; give its --bandwidth and --peak, more than 0"
        )
    return options


def one_profile(options: argparse.Namespace) -> Profile:
    """The profile that the command line asks for."""
    gpu = GPUS.get(options.gpu)
    if gpu is None:
        gpu = Gpu(options.gpu, options.bandwidth * 1e12, options.peak * 1e12, "the command line")
    shape = SHAPES.get(options.model)
    if shape is None:
        shape = shape_of(Path(options.model) / "config.json")
    if options.draft_vocab is not None:
        shape = attrs.evolve(shape, draft_vocab=options.draft_vocab)
    return computed(options.out.stem, gpu, shape)


def main(arguments: list[str] | None = None) -> None:
    options = _parsed(arguments)
    if options.out is not None:
        try:
            options.out.write_text(as_text(one_profile(options)), encoding="utf-8")
        except (OSError, ValueError) as error:
            sys.exit(str(error))
        return
    for file, text in files().items():
        if options.check and (not file.exists() or file.read_text(encoding="utf-8") != text):
            sys.exit(f"'{file}' is not what tools/computed_profiles.py works out; run it")
        if not options.check:
            file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
