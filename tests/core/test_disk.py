"""What libraries say of a full disk is said as the system says it."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models

from talon_core.basics.disk import writing


def test_what_safetensors_says_of_a_file_is_what_the_system_says(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^the head cannot be written: .*No such file"), writing("the head"):
        save_file({"weight": torch.zeros(1)}, tmp_path / "missing" / "a.safetensors")


def test_what_tokenizers_says_of_a_file_is_what_the_system_says(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"^the head cannot be written: .*No such file"), writing("the head"):
        Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(tmp_path / "missing" / "tokenizer.json"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_what_torch_says_of_a_full_disk_is_what_the_system_says() -> None:
    with pytest.raises(OSError, match=r"^the head cannot be written; the disk may be full"), writing("the head"):
        torch.save({"weight": torch.zeros(100_000)}, "/dev/full")


@pytest.mark.parametrize("error", [RuntimeError("a bug"), ValueError("a bad option"), KeyboardInterrupt()])
def test_everything_else_is_said_as_it_is(error: BaseException) -> None:
    with pytest.raises(type(error)) as raised, writing("the head"):
        raise error
    assert raised.value is error
