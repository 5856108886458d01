"""Attention modules whose rotary embedding and writes are one launch: the same numbers and tokens, fewer launches."""

from contextlib import nullcontext
from copy import deepcopy

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, DynamicCache, GlmConfig
from transformers.models.llama.modeling_llama import LlamaAttention

from talon_core import TokenTree
from talon_core.attention import TreeLayout
from talon_core.certify.greedy import check_greedy
from talon_core.decoding.decoder import Decoder
from talon_core.hf.frontend import HFFrontend
from talon_core.hf.model import AttentionSwitch
from talon_core.hf.target import HFTarget
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import build
from talon_core.runtime.cache import TreeCache
from talon_core.runtime.cache_keyword import cache_keyword
from talon_core.runtime.pages import PagedCache
from talon_core.runtime.passes import ATTENTION_NAME, PASS_KEYWORD, TreePass
from talon_core.testing.plain_device import PlainDevice
from talon_core.testing.tape import TapedBackend, TapeRecorder
from talon_kernels import TritonAccelerator, TritonAttention
from talon_kernels.fused import fuse
from talon_strategies import Match
from talon_tests.interpreter import tape_launches
from talon_tests.launches import Launches
from talon_tests.tiny_models import SMALL, tiny_model

PROMPT = np.array([5, 6, 7, 5, 6, 7, 5, 6])
TREE = TokenTree(np.array([9, 5, 6, 7, 8, 5, 11]), np.array([-1, 0, 0, 1, 1, 2, 5]), np.zeros(7))
ROTATE = "_rotate"
"""The kernel's name."""

WINDOW = {"sliding_window": 4}
MODELS = {
    "llama": {},
    "qwen2": {},  # with biases
    "qwen3": {},  # norms of each head
    "olmo2": {},  # norms of all heads together
    "mistral-window": WINDOW,
    "gemma2": WINDOW,  # soft-caps
    "gemma3": WINDOW,
    "gpt-oss": WINDOW,  # sinks, and angles of pairs
    "phi": {},  # turns some dimensions
    "glm": {},  # turns some dimensions, interleaved
    "cohere": {},  # interleaved
}

HALVES = {"olmo2", "phi"}
"""Models whose logits are looked at in float16 in every run, one with angles in float32; the others are the matrix."""

GENERATED = {("llama", True), ("gpt-oss", True), ("qwen3", False), ("gemma3", False), ("phi", False)}
"""Models that generate in every run, with recorded passes or without; the others are the matrix."""


@pytest.fixture
def interpreted(device):
    """Launches of kernels are steps on a tape."""
    if device.type != "cpu":
        pytest.skip("launches are counted and taped where they are interpreted")
    with pytest.MonkeyPatch.context() as patch:
        tape_launches(patch)
        yield


CACHE = cache_keyword(tiny_model("llama"))
"""How the modules of this transformers call it."""


def model_of(name, **more):
    if name != "glm":
        return tiny_model(name, **MODELS[name], **more)
    torch.manual_seed(0)
    config = GlmConfig(**{**SMALL, "head_dim": 12, **more})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()


def experts_one_by_one(model):
    """The model, whose experts are computed in float64 too, if it has any."""
    if hasattr(model, "set_experts_implementation"):
        model.set_experts_implementation("eager")
    return model


def target_of(model, fused=True, graphs=None, attention=None):
    accelerator, attention = TritonAccelerator() if fused else None, TapedBackend(attention or PlainDevice())
    return HFTarget(model, attention, accelerator, graphs=graphs, probe=False)


def verified(target, inside=nullcontext()):  # noqa: B008  # it holds nothing
    """The logits of a tree behind a prompt, in float64; in its pass something is entered."""
    with target.session():
        target.open(0, 40)
        target.read({0: PROMPT})
        with inside:
            outputs = target.verify({0: TREE}).outputs
        target.close(0)
    return outputs[0].logits.double()


def launches_of_a_layer(name, fused):
    """What a model with one layer more launches more."""
    counts = []
    for layers in (2, 3):
        launches = Launches()
        verified(target_of(model_of(name, num_hidden_layers=layers), fused), launches)
        counts.append(launches.counts)
    return counts[1] - counts[0]


@pytest.mark.parametrize(
    ("name", "dtype"),  # bfloat16 is cut off by the interpreter where a GPU rounds
    [
        *((name, torch.float32) for name in MODELS),
        *(pytest.param(name, torch.float16, marks=() if name in HALVES else pytest.mark.matrix) for name in MODELS),
    ],
)
def test_a_tree_has_the_logits_of_the_plain_model(interpreted, name, dtype):
    model = model_of(name).to(dtype)
    counted = Launches()
    got = verified(target_of(model), counted)
    assert counted.counts[ROTATE] == model.config.num_hidden_layers
    expected = verified(target_of(model, fused=False))
    exact = verified(target_of(experts_one_by_one(model_of(name).to(dtype)).double(), fused=False))
    assert (got - exact).norm() <= 2 * (expected - exact).norm()  # rounded in other places


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "recorded"),
    [
        pytest.param(name, recorded, marks=() if (name, recorded) in GENERATED else pytest.mark.matrix)
        for name in MODELS
        for recorded in (True, False)
    ],
)
def test_greedy_output_is_that_of_generate(interpreted, name, recorded):
    model, recorders = model_of(name), []

    def recorder():
        recorders.append(TapeRecorder())
        return recorders[-1]

    registry = load_registry()
    drafter, policy = build(registry, "drafter", "ngram"), build(registry, "tree policy", "talon:budget=4,top_k=2")
    target = target_of(model, graphs=recorder if recorded else None)
    decoder = Decoder(target, Match(), policy, drafter, HFFrontend(model))
    assert check_greedy(decoder, model, [PROMPT], 6).passed
    assert len(recorders) == recorded
    assert all(one.recorded and one.repeated for one in recorders)


@pytest.mark.slow
def test_all_kernels_together_give_a_tree_the_logits_of_the_plain_model(interpreted):
    got = verified(target_of(model_of("gemma3"), attention=TritonAttention()))
    expected = verified(target_of(model_of("gemma3"), fused=False))
    exact = verified(target_of(model_of("gemma3").double(), fused=False))
    assert (got - exact).norm() <= 2 * (expected - exact).norm()


LAYER = {
    "aten::linear": 7,
    "aten::add.Tensor": 1,
    "attend_packed": 1,
    "aten::flatten.using_ints": 1,
    "_gate": 1,
    ROTATE: 1,
}
LAUNCHES = {
    "llama": (37, {**LAYER, "_normalise": 2}),
    "qwen3": (49, {**LAYER, "_normalise": 4}),
    "gemma3": (73, {**LAYER, "_normalise": 6, "aten::add.Tensor": 2}),
}
"""Launches of a layer of the plain model, and of each kind with fused layers."""


@pytest.mark.parametrize("name", LAUNCHES)
def test_a_layer_has_few_launches(interpreted, name):
    plain, fused = LAUNCHES[name]
    assert launches_of_a_layer(name, fused=False).total() == plain
    assert launches_of_a_layer(name, fused=True) == fused


@pytest.mark.parametrize("name", ["phi", "glm", "cohere", "gpt-oss"])
def test_rotary_embedding_and_writes_are_a_launch_whatever_is_turned(interpreted, name):
    """A layer that turns queries and keys needs at least ten for that, or concatenates parts, and two writes."""
    plain, fused = (launches_of_a_layer(name, fused) for fused in (False, True))
    assert fused[ROTATE] == 1
    assert plain["aten::cat"] + plain["aten::stack"] >= 2
    assert fused["aten::cat"] == fused["aten::stack"] == fused["aten::neg"] == 0
    assert plain["aten::index_put_"] - fused["aten::index_put_"] == 2


class Calls:
    """Calls an attention module as its layer does in a pass over three nodes, and notes what the pass is asked for.

    Attributes:
        options: what the module handed on last, beside queries, keys and values.
        launches: of all calls.
    """

    def __init__(self, model):
        self._model = model
        self._x = torch.randn(1, 3, model.config.hidden_size, generator=torch.Generator().manual_seed(0))
        self.cos, self.sin = model.model.rotary_emb(self._x, torch.arange(3)[None])
        self.options, self.launches = {}, Launches()

    def __call__(self, **changes):
        cache = PagedCache()
        cache.open(0, 3)
        cache.make_room_for([3])
        cache.stage_at(torch.full((3,), cache.pages[0][0]), torch.arange(3))
        given = {"position_embeddings": (self.cos, self.sin), "attention_mask": None, CACHE: cache}
        given[PASS_KEYWORD] = TreePass(TreeLayout.chain(0, 3), self._attend)
        with AttentionSwitch(self._model).switched(), self.launches:
            return self._model.model.layers[1].self_attn(self._x, **(given | changes))[0]

    def _attend(self, query, key, value, layout, **options):
        self.options = options
        return query.flip(1)

    @property
    def rotated(self):
        return self.launches.counts[ROTATE]


def staged(cache, what):
    cache.open(0, 3)
    getattr(cache, what)(*{"stage": ([3],), "stage_prompts": ([0], [3])}[what])
    return cache


UNUSUAL = {
    "a keyword that was not tried": lambda: {"sliding_window": 2},
    "a mask": lambda: {"attention_mask": torch.ones(3, 3)},
    "no cache": lambda: {CACHE: None},
    "a cache of transformers": lambda: {CACHE: DynamicCache()},
    "rows in one piece": lambda: {CACHE: staged(TreeCache(), "stage")},
    "a prompt": lambda: {CACHE: staged(PagedCache(), "stage_prompts")},
}


@torch.no_grad()
@pytest.mark.parametrize("what", UNUSUAL)
def test_what_is_unusual_is_the_modules_own_business(interpreted, what):
    model = model_of("llama")
    calls, fused = Calls(model), fuse(model)
    with fused:
        calls()
        assert calls.rotated == 1
        got, options = calls(**UNUSUAL[what]()), calls.options
    assert calls.rotated == 1
    assert torch.equal(got, calls(**UNUSUAL[what]()))
    assert options == calls.options


@torch.no_grad()
def test_other_angles_than_were_tried_are_the_modules_own_business(interpreted):
    model = model_of("glm")
    calls = Calls(model)
    with fuse(model):
        calls()
        calls(position_embeddings=(calls.cos[..., :4], calls.sin[..., :4]))
        calls(position_embeddings=[calls.cos, calls.sin])
    assert calls.rotated == 1


def test_a_weight_that_is_to_learn_is_the_modules_own_business(interpreted):
    model = model_of("llama").requires_grad_(False)
    calls = Calls(model)
    with fuse(model):
        assert not calls().requires_grad
        assert calls.rotated == 1
        model.model.layers[1].self_attn.k_proj.weight.requires_grad_()
        calls()
    assert calls.rotated == 1


@torch.no_grad()
def test_hooks_are_called(interpreted):
    model = model_of("qwen3")
    attention, heard = model.model.layers[1].self_attn, []
    for part in (attention, attention.q_proj, attention.q_norm, attention.o_proj):
        part.register_forward_hook(lambda module, *_: heard.append(type(module).__name__))
    attention.unread = torch.nn.Dropout()
    calls, fused = Calls(model), fuse(model)
    heard.clear()
    with fused:
        calls()
        assert calls.rotated == 1
        assert heard == ["Linear", "Qwen3RMSNorm", "Linear", "Qwen3Attention"]
        attention.unread.register_forward_hook(lambda *_: None)
        calls()
    assert calls.rotated == 1


@torch.no_grad()
def test_what_is_handed_on_is_what_the_module_hands_on(interpreted):
    for name in ("mistral-window", "gemma2", "gpt-oss"):
        model = model_of(name)
        calls, own = Calls(model), Calls(model)
        own()
        with fuse(model):
            calls()
        assert (own.rotated, calls.rotated) == (0, 1)
        assert calls.options == own.options
        assert calls.options["sinks"] is (model.model.layers[1].self_attn.sinks if name == "gpt-oss" else None)


@torch.no_grad()
def test_a_setting_that_has_changed_is_noticed_wherever_it_is(interpreted):
    for change in ("config", "module", "another config"):
        model = model_of("mistral-window")
        calls, fused = Calls(model), fuse(model)
        attention = model.model.layers[1].self_attn
        if change == "config":
            model.config.sliding_window = 2
        elif change == "module":
            attention.scaling = 0.5
        else:
            attention.config = deepcopy(model.config)
            attention.config.sliding_window, attention.config._attn_implementation = 2, ATTENTION_NAME
        with fused:
            calls()
        assert calls.rotated == 0
        assert (calls.options["window"], calls.options["scale"]) == ((4, 0.5) if change == "module" else (2, 12**-0.5))


class Doubled(LlamaAttention):
    """Queries are twice what they seem."""

    def forward(self, hidden_states, position_embeddings=None, **kwargs):
        return super().forward(2 * hidden_states, position_embeddings, **kwargs)


class Shifted(LlamaAttention):
    """The cos of another row."""

    def forward(self, hidden_states, position_embeddings=None, **kwargs):
        cos, sin = position_embeddings
        return super().forward(hidden_states, (cos.roll(1, 1), sin), **kwargs)


class Tempered(LlamaAttention):
    """Scales what is far behind the beginning, as Ministral does."""

    def forward(self, hidden_states, position_embeddings=None, position_ids=None, **kwargs):
        scale = 1 + 0.1 * torch.log(1 + torch.floor(position_ids / 16384))
        return super().forward(hidden_states * scale[..., None], position_embeddings, **kwargs)


class Counting(LlamaAttention):
    """Does something else behind a long text."""

    def forward(self, hidden_states, position_embeddings=None, **kwargs):
        factor = 2 if kwargs[CACHE].get_seq_length() > 4096 else 1
        return super().forward(factor * hidden_states, position_embeddings, **kwargs)


class Sunk(LlamaAttention):
    """Has sinks that are no parameter of its own."""

    def forward(self, hidden_states, position_embeddings=None, **kwargs):
        return super().forward(hidden_states, position_embeddings, s_aux=torch.zeros(4), **kwargs)


class Twice(LlamaAttention):
    """Attends twice."""

    def forward(self, hidden_states, position_embeddings=None, **kwargs):
        super().forward(hidden_states, position_embeddings, **kwargs)
        return super().forward(hidden_states, position_embeddings, **kwargs)


class Weighing(LlamaAttention):
    """Returns weights."""

    def forward(self, hidden_states, position_embeddings=None, **kwargs):
        out, _ = super().forward(hidden_states, position_embeddings, **kwargs)
        return out, out


@pytest.mark.parametrize("other", [Doubled, Shifted, Tempered, Counting, Sunk, Twice, Weighing])
def test_a_module_that_does_something_else_is_left_alone(interpreted, other):
    model = model_of("llama", num_hidden_layers=2)
    model.model.layers[1].self_attn.__class__ = other
    found = fuse(model).summary()
    assert (found["attention"], found["left attention"]) == (1, 1)


def test_a_module_with_a_hook_where_nobody_would_call_it_is_left_alone(interpreted):
    model = model_of("llama", num_hidden_layers=2)
    model.model.layers[0].self_attn.unread = torch.nn.Dropout()
    model.model.layers[0].self_attn.unread.register_forward_hook(lambda *_: None)
    with AttentionSwitch(model).switched():
        found = fuse(model).summary()
    assert (found["attention"], found["left attention"]) == (1, 1)


def test_modules_with_other_parts_are_not_tried(interpreted):
    model = model_of("llama", num_hidden_layers=2)
    model.model.layers[0].self_attn.gate = torch.nn.Linear(3, 3)
    model.model.layers[1].self_attn.q_norm = torch.nn.Identity()
    assert not {"attention", "left attention"} & fuse(model).summary().keys()


def test_trying_changes_nothing_of_the_model(interpreted):
    model = model_of("llama")
    before = {name: dict(vars(module)) for name, module in model.named_modules()}, dict(vars(model.config))
    fuse(model)
    assert ({name: dict(vars(module)) for name, module in model.named_modules()}, dict(vars(model.config))) == before
