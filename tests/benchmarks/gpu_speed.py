"""The figures of docs/performance.md that need a GPU, in one command: `make gpu-speed`.

Attention: the time of 64 tree nodes over long prefixes, as a share of the bandwidth that a copy reaches on the same
card, beside the ways that PyTorch has to do it and, where it is installed, FlashInfer's. Model: a Llama of the shape of
Llama-3-8B with random weights; verifying 64 nodes and a pass of an EAGLE-3 head, over one autoregressive step, and how
much of a round the GPU waits for the host. Drawing: above temperature 0, tokens that are drawn on the device for all
nodes, over those that are drawn on the host for each node that is visited. Schedules: drafting while the target
verifies over both in turn, in a stream of its own on the same GPU and, where there is a second one, in a process on
that. Batches: tokens per second of 1 to 64 sequences, drafting and not, from one interleaved run. With --prompts also
`talon bench run` over prompt sets. Prints tables and writes JSON.

`--smoke` goes through all of it in miniature, on the CPU where there is no GPU: it shows that the script works and says
nothing about speed.
"""

import argparse
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np

if "--smoke" in sys.argv and not any(Path("/dev").glob("nvidia[0-9]*")):
    os.environ["TRITON_INTERPRET"] = "1"  # before anything imports triton

sys.path.insert(0, str(Path(__file__).parent.parent))  # where pytest finds `talon_tests` too

import torch
import torch.nn.functional as F
from figures_file import check_options, write_figures
from rich.console import Console
from rich.table import Table
from schedule_ways import measured, ways_of
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig

from talon_core.attention import TreeLayout
from talon_core.bench.environment import describe_environment, describe_session
from talon_core.decoding.decoder import Decoder
from talon_core.decoding.loading import decoder_for_model
from talon_core.drafter import Frontier, Part
from talon_core.engine.bounds import Bounds
from talon_core.hf.target import HFTarget
from talon_core.models.loading import load_model
from talon_core.plugins.parts import Parts
from talon_core.rule import AcceptanceRule
from talon_core.runtime.pages import PAGE_ROWS
from talon_core.runtime.recording import CudaGraphs
from talon_core.tree import TokenTree
from talon_drafters.eagle3.network import Eagle3Config, Eagle3Head
from talon_drafters.heads.feature_drafter import FeatureDrafter
from talon_kernels import TritonAttention
from talon_kernels.tree_attention.triton import tree_attention_triton
from talon_strategies import RejectionWithoutReplacement, Traversal
from talon_tests.attention_baselines import flashinfer_way, pytorch_ways
from talon_tests.drawing_ways import ways_to_draw, ways_to_test

DRAWN = {
    "temperature": {"temperature": 0.8},
    "top-p": {"temperature": 0.8, "top_k": 0, "top_p": 0.95},
    "top-k and top-p": {"temperature": 0.8, "top_k": 50, "top_p": 0.95},
}
"""How scores are warped where drawing is timed."""

TESTING = RejectionWithoutReplacement(), Traversal()
"""Rules whose tests are timed."""

VISITED = 4
"""Nodes of a path, where drawing is timed."""

AGAIN = Bounds(keep=False)
"""Prompts come several times, and each time they are read."""

PROMPT = "Write a short story about a lighthouse keeper who finds a message in a bottle."


@attrs.frozen
class Sizes:
    """What is measured.

    Attributes:
        contexts: committed tokens, for attention alone.
        nodes: of a tree.
        llama: changes to a `LlamaConfig`.
        draft_vocab: of the EAGLE-3 head.
        prefix: committed tokens, for the model.
        batches: sequences at a time.
        new: tokens of each sequence.
        repetitions: how often everything is timed.
        schedules: what is prepared, besides nothing.
        texts: with which schedules are compared.
    """

    contexts: tuple[int, ...] = (8192, 32768)
    nodes: int = 64
    llama: dict[str, Any] = attrs.field(
        factory=lambda: {
            "vocab_size": 128256,
            "hidden_size": 4096,
            "intermediate_size": 14336,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 8,
            "max_position_embeddings": 8192,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
        }
    )
    draft_vocab: int = 32000
    prefix: int = 2048
    batches: tuple[int, ...] = (1, 4, 16, 64)
    new: int = 128
    repetitions: int = 15
    schedules: tuple[str, ...] = ("cached:budget=8", "pearl")
    texts: int = 3


SMOKE = Sizes(
    (100,),
    8,
    {
        "vocab_size": 128,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    },
    32,
    8,
    (1, 2),
    4,
    1,
    texts=1,
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="in miniature, to see that it works")
    parser.add_argument("--model", default="smollm2-135m", help="for the batches and the prompt sets")
    parser.add_argument("--drafter", default="eagle3")
    parser.add_argument("--policy", default="talon:budget=24,top_k=6,mu=0.05")
    parser.add_argument("--ahead", default="chain:length=4", help="the policy with which schedules are compared")
    parser.add_argument("--prompts", type=Path, default=None, help="a folder of prompt sets, for talon bench run")
    parser.add_argument("--out", type=Path, default=None, help="write the figures to this JSON file")
    options = parser.parse_args()
    check_options(parser, options)
    if not options.smoke and not torch.cuda.is_available():
        parser.error("there is no GPU here; --smoke goes through everything in miniature on the CPU")
    bench = Bench(SMOKE if options.smoke else Sizes())
    model, tokenizer = load_model(options.model)
    plain = decoder_for_model(model, tokenizer, Parts(policy="none"), bounds=AGAIN)
    fast = decoder_for_model(model, tokenizer, Parts(options.drafter, options.policy), bounds=AGAIN)
    figures = {
        "manifest": {
            "smoke": options.smoke,
            "model": options.model,
            "methods": {"plain": "policy none", "fast": f"{options.drafter} {options.policy}"},
            **describe_environment(model, tokenizer, plain.target),
            **describe_session(),
        },
        "attention": [bench.attention(context) for context in bench.sizes.contexts],
        "model": bench.model(),
        "drawing": [bench.drawing(fast, name) for name in DRAWN],
        "testing": [bench.testing(fast, rule) for rule in TESTING],
        "schedules": bench.schedules(model, tokenizer, options.model, options.drafter, options.ahead),
        "accelerators": [
            bench.accelerator(model, tokenizer, method, parts)
            for method, parts in (("plain", Parts(policy="none")), ("fast", Parts(options.drafter, options.policy)))
        ],
        "batches": bench.batches(plain, fast),
        "waiting": {"plain": bench.waiting(plain), "fast": bench.waiting(fast)},
    }
    show(figures)
    write_figures(options.out, figures)
    if options.prompts is not None:
        ahead = f"{options.drafter} / {options.ahead}"
        methods = [f"{options.drafter} / {options.policy}", ahead]
        methods += [f"{ahead} @ {spec} @ {place}" for spec in bench.sizes.schedules for place in places()]
        command = [str(Path(sys.executable).parent / "talon"), "bench", "run", *methods, "--model", options.model]
        subprocess.run([*command, "--prompts", str(options.prompts)], check=True)


def random_tree(rng: np.random.Generator, nodes: int, vocab: int) -> TokenTree:
    """A tree in which each node hangs from a random one before it."""
    parents = np.array([-1, *(int(rng.integers(0, node)) for node in range(1, nodes))])
    return TokenTree(rng.integers(0, vocab, nodes), parents, np.zeros(nodes))


def drawing_on_the_host(fast: Decoder) -> Decoder:
    """Another decoder of the same parts, whose rule draws: who draws is settled when a decoder is made."""
    draws, fast.target.can_draw = fast.target.can_draw, False
    host = Decoder(fast.target, fast.rule, fast.policy, fast.drafter, fast.frontend, bounds=AGAIN)
    fast.target.can_draw = draws
    return host


class Bench:
    """The measurements, on the GPU if there is one."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        self.on_gpu = torch.cuda.is_available()
        self.device = torch.device("cuda" if self.on_gpu else "cpu")
        self.dtype = torch.bfloat16 if self.on_gpu else torch.float32
        self.rng = np.random.default_rng(0)

    def seconds(self, functions: dict[str, Callable[[], Any]], recorded: bool = False) -> dict[str, float]:
        """Median seconds of each, in turn, each time with a cold L2 cache; `recorded` as a captured graph."""
        trash = torch.empty(2**28 if self.on_gpu else 1, dtype=torch.int8, device=self.device)
        if recorded and self.on_gpu:
            functions = {name: CudaGraphs().record(function)[1] for name, function in functions.items()}
        times: dict[str, list[float]] = {name: [] for name in functions}
        for repetition in range(-2 if self.on_gpu else 0, self.sizes.repetitions):  # twice to warm up
            for name, function in functions.items():
                if self.on_gpu:
                    torch.cuda.synchronize()
                trash.zero_()  # also hides how long the launch takes that follows
                seconds = self._one(function)
                if repetition >= 0:
                    times[name].append(seconds)
        return {name: statistics.median(of) for name, of in times.items()}

    def _one(self, function: Callable[[], Any]) -> float:
        if not self.on_gpu:
            started = time.perf_counter()
            function()
            return time.perf_counter() - started
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        function()
        end.record()
        torch.cuda.synchronize()
        return float(begin.elapsed_time(end)) / 1e3

    @torch.inference_mode()
    def attention(self, context: int) -> dict[str, float]:
        """One layer's attention of one tree, in the head layout of Llama-3-8B."""
        nodes = self.sizes.nodes
        heads, kv_heads, dim = (32, 8, 128) if self.on_gpu else (4, 2, 16)
        tree, scale = random_tree(self.rng, nodes, 100), dim**-0.5
        query = torch.randn(nodes, heads, dim, device=self.device, dtype=self.dtype).transpose(0, 1)
        key, value = torch.randn(2, 1, kv_heads, context + nodes, dim, device=self.device, dtype=self.dtype)
        packed = TreeLayout.of([tree], [context]).packed(self.device)
        given = query, key, value, torch.from_numpy(tree.ancestor_mask()).to(self.device), scale
        ways = {f"sdpa_{name}": way for name, way in pytorch_ways(*given).items()}
        source = torch.empty(2**30 if self.on_gpu else 2**20, dtype=torch.int8, device=self.device)
        target = torch.empty_like(source)
        pages, table = self._in_pages(torch.stack([key, value]))
        functions: dict[str, Callable[[], Any]] = {
            "copy": lambda: target.copy_(source),
            "triton": lambda: tree_attention_triton(query, *pages, packed, scale=scale, table=table),
            **ways,
            **flashinfer_way(*given),
        }
        times = self.seconds(functions, recorded=True)
        read, bandwidth = key.nbytes + value.nbytes, 2 * source.nbytes / times["copy"]
        return {
            "context": context,
            "megabytes_read": read / 1e6,
            "copy_gigabytes_per_second": bandwidth / 1e9,
            **{f"{name}_microseconds": 1e6 * of for name, of in times.items() if name != "copy"},
            "share_of_copy_bandwidth": read / times["triton"] / bandwidth,
            "fastest_sdpa_over_triton": min(times[name] for name in ways) / times["triton"],
            "teraflops": 4e-12 * heads * nodes * (context + nodes) * dim / times["triton"],
        }

    def _in_pages(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of one sequence as a cache has them, in pages that stand anywhere, and the table of these."""
        count = -(-rows.shape[3] // PAGE_ROWS)
        padded = F.pad(rows[:, 0], (0, 0, 0, count * PAGE_ROWS - rows.shape[3]))  # (2, kv_heads, rows, head_dim)
        table = torch.from_numpy(self.rng.permutation(count)).to(self.device)
        own = padded.unflatten(2, (count, PAGE_ROWS)).transpose(1, 2)
        pages = own.new_empty(own.shape)
        pages[:, table] = own
        return pages, table.int()[None]

    @torch.inference_mode()
    def model(self) -> dict[str, float]:
        """Verifying, and drafting a layer, over an autoregressive step, all through the same cache and graphs."""
        config = LlamaConfig(**self.sizes.llama)
        with self.device:
            model: Any = AutoModelForCausalLM.from_config(config, dtype=self.dtype).eval()
        attention, graphs = TritonAttention(), CudaGraphs if self.on_gpu else None
        states = (1, config.num_hidden_layers // 2, config.num_hidden_layers)
        target = HFTarget(model, attention, None, states, graphs=graphs, probe=False)
        head_config = Eagle3Config(config, config.hidden_size, self.sizes.draft_vocab)
        target_ids = torch.arange(self.sizes.draft_vocab)
        with self.device:
            head = Eagle3Head(head_config, target_ids.to(self.device)).to(self.dtype)
        embed = model.get_input_embeddings()
        drafter = FeatureDrafter(head, embed, target.vocab_size, target.executor())
        prompt = self.rng.integers(0, target.vocab_size, self.sizes.prefix + 1)
        trees = {"step": TokenTree.root(1), "verify": random_tree(self.rng, self.sizes.nodes, target.vocab_size)}
        with target.session(), drafter.session():
            target.open(0, len(prompt) + 256)
            drafter.open(0, prompt, len(prompt) + 256)
            features = target.read({0: prompt[:-1]})
            drafter.read({0: Part(0, len(prompt) - 1, features[0])})
            drafter.propose([Frontier(0, trees["step"], np.array([0]), 8)])  # the prompt's last pair
            chain = [trees["step"]]

            def verify(tree: TokenTree) -> None:
                target.verify({0: tree})
                target.runner.cache.committed({0: 0})

            def draft() -> None:
                chain.append(chain[-1].extend(np.array([1]), np.array([len(chain) - 1]), np.zeros(1)))
                drafter.propose([Frontier(0, chain[-1], np.array([len(chain) - 1]), 8)])

            functions = {name: lambda tree=tree: verify(tree) for name, tree in trees.items()}
            times = self.seconds({**functions, "draft": draft})
        failed = target.runner.executor.failure or drafter.executor.failure
        if failed:
            raise RuntimeError(f"passes were not captured, so these are no figures of captured passes: {failed}")
        return {
            **{f"{name}_milliseconds": 1e3 * of for name, of in times.items()},
            "verify_over_step": times["verify"] / times["step"],
            "draft_over_step": times["draft"] / times["step"],
        }

    def drawing(self, fast: Decoder, warped: str) -> dict[str, Any]:
        """Drawing the tokens of a tree in both ways; and whole texts, where the device draws and where it does not."""
        given = {"do_sample": True, "max_new_tokens": self.sizes.new, "seed": 0, **DRAWN[warped]}
        (request,) = fast.requests([PROMPT], given)
        with self.device:
            logits = (torch.randn(self.sizes.nodes, self.sizes.llama["vocab_size"]) * 3).to(self.dtype)
        times = self.seconds(ways_to_draw(logits, request, VISITED))
        speeds: dict[Decoder, list[float]] = {(host := drawing_on_the_host(fast)): [], fast: []}
        for repetition in range(-1, max(1, self.sizes.repetitions // 3)):
            for decoder, of in speeds.items():
                stats = decoder.run_all([request])[0].stats
                if repetition >= 0:
                    of.append(stats.tokens_per_second)
        return {
            "warped": warped,
            "nodes": self.sizes.nodes,
            "visited": VISITED,
            **{f"{name}_milliseconds": 1e3 * of for name, of in times.items()},
            "host_over_device": times["host"] / times["device"],
            "texts_device_over_host": statistics.median(a / b for a, b in zip(speeds[fast], speeds[host], strict=True)),
        }

    def testing(self, fast: Decoder, rule: AcceptanceRule) -> dict[str, Any]:
        """Testing the drawn children of a tree in both ways."""
        (request,) = fast.requests([PROMPT], {"do_sample": True, "max_new_tokens": 1, **DRAWN["temperature"]})
        with self.device:
            logits = (torch.randn(self.sizes.nodes, self.sizes.llama["vocab_size"]) * 3).to(self.dtype)
        times = self.seconds(ways_to_test(logits, request, rule, 4))
        return {
            "rule": rule.name,
            "nodes": self.sizes.nodes,
            **{f"{name}_milliseconds": 1e3 * of for name, of in times.items()},
            "host_over_device": times["host"] / times["device"],
        }

    def schedules(self, model: Any, tokenizer: Any, source: str, drafter: str, policy: str) -> dict[str, Any]:
        """Schedules in each place over drafting and verifying in turn, all ways in turns on each prompt."""
        ways = ways_of(model, tokenizer, source, drafter, policy, self.sizes.schedules, places())
        texts = [f"{PROMPT} Its number is {number}." for number in range(self.sizes.texts)]
        return measured("schedules", ways, texts, self.sizes.new, max(1, self.sizes.repetitions // 5))

    def batches(self, plain: Decoder, fast: Decoder) -> list[dict[str, float]]:
        """Tokens per second of all sequences together, prefill included, methods in turn."""
        found = []
        for batch in self.sizes.batches:
            prompts = [f"{PROMPT} Its number is {number}." for number in range(batch)]
            found.append({"batch": batch, **self._speeds(prompts, plain=plain, fast=fast)})
        return found

    def accelerator(self, model: Any, tokenizer: Any, method: str, parts: Parts) -> dict[str, Any]:
        """Tokens per second of one sequence with PyTorch's operations in layers, and with kernels that fuse them."""
        kernels = "triton" if self.on_gpu else "native"
        ways = {
            name: decoder_for_model(model, tokenizer, attrs.evolve(parts, accelerate=given), bounds=AGAIN)
            for name, given in (("without", False), ("with", kernels))
        }
        return {"method": method, "accelerator": kernels, **self._speeds([PROMPT], **ways)}

    def _speeds(self, prompts: list[Any], **decoders: Decoder) -> dict[str, float]:
        """Tokens per second of two decoders in turn, and the second over the first; a round of warming up before."""
        speeds: dict[str, list[float]] = {name: [] for name in decoders}
        for repetition in range(-1, max(1, self.sizes.repetitions // 3)):
            for name, decoder in decoders.items():
                started = time.perf_counter()
                results = decoder.generate(prompts, max_new_tokens=self.sizes.new)
                seconds = time.perf_counter() - started
                if repetition >= 0:
                    speeds[name].append(sum(result.stats.new_tokens for result in results) / seconds)
        first, second = speeds.values()
        medians = {f"{name}_tokens_per_second": statistics.median(of) for name, of in speeds.items()}
        return {**medians, "ratio": statistics.median(b / a for a, b in zip(first, second, strict=True))}

    def waiting(self, decoder: Decoder) -> float | None:
        """The share of a generation's time in which the GPU has nothing to do; None without one."""
        if not self.on_gpu:
            return None
        decoder.generate(PROMPT, max_new_tokens=self.sizes.new)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            result = decoder.generate(PROMPT, max_new_tokens=self.sizes.new)
        busy = sum(event.self_device_time_total for event in profile.key_averages()) / 1e6
        return 1 - busy / result.stats.seconds


def places() -> list[str]:
    """Where what is prepared is drafted: in a stream of its own, and in a process on a second GPU."""
    return ["thread", *(["cuda:1"] if torch.cuda.device_count() > 1 else [])]


def show(figures: dict[str, Any]) -> None:
    console = Console()
    console.print(", ".join(f"{name} {value}" for name, value in figures["manifest"].items()))
    for part in ("attention", "drawing", "testing", "accelerators", "batches"):
        table = Table(*figures[part][0], title=part)
        for row in figures[part]:
            table.add_row(*(value if isinstance(value, str) else f"{value:.4g}" for value in row.values()))
        console.print(table)
    table = Table("schedule", "tokens/s", "over sync", "hits", "waited, s", title="schedules")
    for name, one in figures["schedules"]["ways"].items():
        begun = one["hits"] + one["misses"]
        hits = f"{one['hits'] / begun:.0%}" if begun else ""
        over = f"{one['over_sync']['median']:.2f}"
        table.add_row(name, f"{one['tokens_per_second']:.1f}", over, hits, f"{one['waited']:.2f}")
    for where in figures["schedules"]["texts_differ"]:
        console.print(f"another text than sync's: {where}")
    console.print(table)
    for part in ("model", "waiting"):
        table = Table(*figures[part], title=part)
        table.add_row(*("" if value is None else f"{value:.4g}" for value in figures[part].values()))
        console.print(table)


if __name__ == "__main__":
    main()
