"""The manual's example plugin, installed as a user would install it, found by name and used from the command line."""

import json
import os
import shutil
import subprocess
import sysconfig
import venv
from pathlib import Path

import attrs
import pytest

EXAMPLE = Path(__file__).parents[2] / "docs" / "example-plugin"
TALON = "import sys; from talon_core.cli import main; sys.exit(main())"


@attrs.frozen
class Environment:
    """A virtual environment that sees this one's packages and has some of its own."""

    folder: Path

    @property
    def site_packages(self) -> Path:
        return Path(sysconfig.get_path("purelib", "venv", vars={"base": str(self.folder)}))

    def python(self, *arguments, check=True, **options):
        python = Path(sysconfig.get_path("scripts", "venv", vars={"base": str(self.folder)})) / "python"
        offline = {**os.environ, "HF_HUB_OFFLINE": "1", "COLUMNS": "200"}
        done = subprocess.run([python, *arguments], capture_output=True, text=True, env=offline, **options)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done

    def talon(self, *arguments, check=True):
        return self.python("-c", TALON, *arguments, check=check)

    def json(self, *arguments):
        return json.loads(self.talon(*arguments, "--json").stdout)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A copy of the example, so that building it leaves nothing in the checkout."""
    copy = tmp_path_factory.mktemp("plugin") / "example-plugin"
    return shutil.copytree(EXAMPLE, copy, ignore=shutil.ignore_patterns("__pycache__", ".*", "dist", "build"))


@pytest.fixture(scope="module")
def environment(tmp_path_factory, folder):
    """An environment with the example installed by pip, offline."""
    made = Environment(tmp_path_factory.mktemp("environment"))
    venv.create(made.folder, symlinks=os.name != "nt")
    ours = sorted({sysconfig.get_path("purelib"), sysconfig.get_path("platlib")})
    # addsitedir also reads the .pth files there, by which an editable install of TALON is found
    lines = [f"import site; site.addsitedir({path!r})\n" for path in ours]
    (made.site_packages / "parent.pth").write_text("".join(lines))
    made.python(
        *("-m", "pip", "install", "--quiet", "--disable-pip-version-check"),
        *("--no-deps", "--no-build-isolation", "--no-index", str(folder)),
    )
    return made


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
        return environment.json("generate", "abcabcabcabcab", "--model", model, "--max-new-tokens", "24", *options)

    drafted = generated("--policy", "nucleus:budget=6,share=0.5")
    assert drafted["policy"] == "nucleus:budget=6,share=0.5"
    assert drafted["token_ids"] == generated("--policy", "none")["token_ids"]
    assert drafted["stats"]["nodes_verified"] > drafted["stats"]["rounds"]


def test_a_bad_value_for_its_option_is_one_sentence_and_status_2(environment):
    done = environment.talon("generate", "a", "--policy", "nucleus:share=3", check=False)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.strip() == "talon: tree policy 'nucleus': 'share' must be <= 1: 3.0"


def test_its_own_test_passes_where_it_is_installed(environment, folder):
    done = environment.python(
        "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder / "tests"), cwd=folder, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


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
    source = (EXAMPLE / "src" / "talon_nucleus" / "__init__.py").read_text()
    body = source[source.index('    name = "nucleus"') : source.index("@hookimpl")].strip()
    assert body in (EXAMPLE.parent / "writing-a-policy.md").read_text()
