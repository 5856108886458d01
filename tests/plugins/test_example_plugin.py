"""The manual's example plugin, installed as a user would install it, found by name and used from the command line."""

import shutil

import pytest

from talon_tests.installed import DOCS, copied, environment_with


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return copied("example-plugin", tmp_path_factory)


@pytest.fixture(scope="module")
def environment(tmp_path_factory, folder, forked_python):
    return environment_with(folder, tmp_path_factory, forked_python)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A folder with a random Llama of two small layers, and a tokenizer of bytes."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    path = tmp_path_factory.mktemp("model")
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({"</s>": 0} | {char: i for i, char in enumerate(alphabet, start=1)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>").save_pretrained(path)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=1 + len(alphabet),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=0,
        tie_word_embeddings=True,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return str(path)


def test_it_is_listed_with_its_distribution_and_its_options(environment):
    listed = environment.json("list", "policies")
    (nucleus,) = [policy for policy in listed["policies"] if policy["name"] == "nucleus"]
    assert nucleus["plugin"] == "talon-nucleus:talon-nucleus"
    assert {option["name"]: option["default"] for option in nucleus["options"]} == {"budget": 16, "share": 0.6}
    assert all(option["description"] for option in nucleus["options"])
    assert {policy["plugin"] for policy in listed["policies"]} == {
        "talon-core:talon-strategies",
        "talon-nucleus:talon-nucleus",
    }


def test_it_generates_by_name_what_the_model_alone_generates(environment, model):
    def generated(*options):
        return environment.generated("abcabcabcabcab", "--model", model, "--max-new-tokens", "24", *options)

    drafted = generated("--policy", "nucleus:budget=6,share=0.5")
    assert drafted["policy"] == "nucleus:budget=6,share=0.5"
    assert drafted["token_ids"] == generated("--policy", "none")["token_ids"]
    assert drafted["stats"]["nodes_verified"] > drafted["stats"]["rounds"]


def test_a_bad_value_for_its_option_is_one_sentence_and_status_2(environment):
    done = environment.talon("generate", "a", "--policy", "nucleus:share=3", check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip() == "talon: tree policy 'nucleus': 'share' must be <= 1: 3.0"


def test_its_own_tests_pass_where_it_is_installed_and_compare_it_with_ours(environment, folder):
    done = environment.own_tests(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    for policy in ("nucleus", "talon", "eagle2"):
        assert f"test_its_speed[{policy}:budget=16]" in done.stdout


@pytest.fixture
def hostile(environment):
    """A distribution beside it that uses TALON's own entry-point name and cannot be imported."""
    info = environment.site_packages / "aaa_hostile-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: aaa-hostile\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[talon]\ntalon-strategies = aaa_hostile_that_is_not_there\n")
    yield "aaa-hostile:talon-strategies"
    shutil.rmtree(info)


def test_a_hostile_distribution_of_the_same_entry_point_name_takes_nothing_away(environment, hostile):
    listed = environment.json("list", "policies")
    assert {"nucleus", "talon", "chain"} <= {policy["name"] for policy in listed["policies"]}
    assert "aaa_hostile_that_is_not_there" in listed["failures"][hostile]
    done = environment.talon("generate", "a", "--policy", "nuclues", check=False)
    assert done.returncode == 2
    assert "did you mean 'nucleus'?" in done.stderr
    assert f"failed to load: {hostile} (ModuleNotFoundError: " in done.stderr


def test_the_manual_shows_the_class_as_it_is_installed():
    source = (DOCS / "example-plugin" / "src" / "talon_nucleus" / "__init__.py").read_text()
    body = source[source.index('    name = "nucleus"') : source.index("@hookimpl")].strip()
    assert body in (DOCS / "writing-a-policy.md").read_text()
