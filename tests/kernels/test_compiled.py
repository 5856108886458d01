"""Norms and MLPs through torch.compile: the same numbers, and nothing left behind."""

import pytest
import torch

from talon_core import load
from talon_core.plugins.backends import choose_accelerator
from talon_core.plugins.registry import load_registry
from talon_kernels import CompileAccelerator
from talon_kernels.compiled import compile_layers
from talon_tests.tiny_models import tiny_model

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _forgets():
    yield
    torch.compiler.reset()


def patched(model):
    return [module for module in model.modules() if "forward" in module.__dict__]


@pytest.mark.parametrize("architecture", ["llama", "gemma3", "gpt2"])
def test_inside_the_numbers_are_the_same_and_outside_nothing_is_left(architecture):
    model = tiny_model(architecture)
    compiled = compile_layers(model, backend="eager")
    ids = torch.arange(3, 12)[None]
    with torch.inference_mode():
        expected = model(input_ids=ids, use_cache=False).logits
        with compiled, compiled:
            assert len(patched(model)) == sum(compiled.summary().values()) > 4
            got = model(input_ids=ids, use_cache=False).logits
        assert patched(model) == []
    torch.testing.assert_close(got, expected)


def test_it_is_taken_by_name_only():
    registry = load_registry()
    assert isinstance(choose_accelerator(registry, "compile", CPU, torch.float32), CompileAccelerator)
    automatic = choose_accelerator(registry, True, CPU, torch.bfloat16)
    assert automatic is None
    with pytest.raises(ValueError, match="accelerator 'native' cannot be used here: it computes in float32"):
        choose_accelerator(registry, "native", CPU, torch.bfloat16)
    with pytest.raises(LookupError, match="no accelerator 'compil'"):
        load(tiny_model("llama"), accelerate="compil")


def test_a_generation_with_it_emits_the_same_tokens(monkeypatch):
    monkeypatch.setattr(CompileAccelerator, "prepare", lambda _self, model: compile_layers(model, backend="eager"))
    model = tiny_model("llama")
    options = {"drafter": "draft-model:skip=1", "policy": "talon:budget=6"}
    plain, fast = load(model, accelerate=False, **options), load(model, accelerate="compile", **options)
    prompt = [5, 6, 7, 5, 6]
    assert fast.generate(prompt, max_new_tokens=15).token_ids == plain.generate(prompt, max_new_tokens=15).token_ids
    assert patched(model) == []
