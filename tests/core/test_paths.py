"""Files are written as a whole or not at all."""

import errno
from pathlib import Path

import pytest

from talon_core.paths import write_whole


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    file = tmp_path / "tree.svg"
    file.write_text("what was there before")
    write_whole(file, "größer")
    assert file.read_text(encoding="utf-8") == "größer"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tree.svg"]


def test_what_was_there_survives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    file = tmp_path / "tree.svg"
    file.write_text("what was there before")
    monkeypatch.setattr("talon_core.paths.os.replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, "half of it")
    assert file.read_text() == "what was there before"
    assert [entry.name for entry in tmp_path.iterdir()] == ["tree.svg"]


def test_a_device_is_written_to_and_stays_a_device() -> None:
    write_whole(Path("/dev/null"), "anything")
    assert Path("/dev/null").is_char_device()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="there is no /dev/full")
def test_a_full_disk_names_the_file() -> None:
    with pytest.raises(OSError, match="No space left on device: '/dev/full'"):
        write_whole(Path("/dev/full"), "text")


def test_a_folder_that_is_not_there_is_named_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as raised:
        write_whole(tmp_path / "none" / "file.txt", "text")
    assert raised.value.filename == str(tmp_path / "none" / "file.txt")
