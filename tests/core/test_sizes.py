"""A model's configuration that asks for more than a machine can hold is refused before anything is made of it."""

import json
from pathlib import Path
from typing import Any

import pytest

from talon_core.models.loading import load_model
from talon_core.models.sizes import check_sizes

LLAMA_405B = {"num_hidden_layers": 126, "hidden_size": 16384, "intermediate_size": 53248, "vocab_size": 128256}


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"num_hidden_layers": 10**9, "hidden_size": 8}, "num_hidden_layers 1000000000, hidden_size 8; a model has at"),
        ({"n_layer": 10**9, "n_embd": 8}, "n_layer 1000000000, n_embd 8; a model has at most 10000 layers"),
        ({"text_config": {"num_layers": 10**6}}, "num_layers 1000000; a model has at most"),
        ({"num_hidden_layers": 2, "hidden_size": 10**9}, "more than 2e.18 weights, and this machine has 64 GB"),
        ({"num_hidden_layers": 2, "hidden_size": 64, "intermediate_size": 10**12}, "more than 1.3e.14 weights"),
        ({"num_hidden_layers": 2, "hidden_size": 64, "vocab_size": 10**12}, "more than 6.4e.13 weights"),
        ({"num_hidden_layers": 9999, "hidden_size": 8192}, "more than 6.7e.11 weights"),
    ],
)
def test_what_no_machine_holds_is_refused_with_its_numbers(config: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=f"its configuration says .*{sentence}"):
        check_sizes(config, 64 * 10**9)


@pytest.mark.parametrize(
    "config",
    [{}, {"num_hidden_layers": "12", "hidden_size": None}, {"num_hidden_layers": True}, {"hidden_size": [1]}],
)
def test_what_it_does_not_understand_is_left_to_transformers(config: dict[str, Any]) -> None:
    check_sizes(config, 1000)


def test_real_models_pass_where_they_could_be_held() -> None:
    check_sizes(LLAMA_405B, 80 * 10**9)
    check_sizes({"text_config": LLAMA_405B, "vision_config": {"num_hidden_layers": 40}}, 80 * 10**9)


def test_a_folder_with_such_a_configuration_is_refused_at_once(tmp_path: Path) -> None:
    config = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 10**9}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=r"cannot be loaded: its configuration says num_hidden_layers 1000000000; a"):
        load_model(str(tmp_path))
