"""Files are written as a whole or not at all."""

import errno
from pathlib import Path

import pytest

from talon_core.basics.paths import cache_folder, check_file, check_folder, data_folder, from_home, write_whole
from talon_core.models import resolve


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
    monkeypatch.setattr("talon_core.basics.paths.os.replace", full)
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


def test_a_text_that_utf_8_cannot_write_is_shown_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"file\.txt' cannot be written: UTF-8 has no '\\udce9', which is in 'c\\udce9\.g'"
    ):
        write_whole(tmp_path / "file.txt", "c\udce9.g")
    assert not [*tmp_path.iterdir()]


def test_what_can_be_written_passes_and_nothing_is_left(tmp_path: Path) -> None:
    there = tmp_path / "there.json"
    there.write_text("what was there before")
    for file in (there, tmp_path / "new.json", Path("/dev/null")):
        check_file(file, "--out")
    for folder in (tmp_path, tmp_path / "new" / "newer"):
        check_folder(folder, "--out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["there.json"]
    assert there.read_text() == "what was there before"


def test_what_cannot_be_written_is_refused_in_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("a file")
    for wrong in (tmp_path, tmp_path / "none" / "x.json", file / "x.json"):
        with pytest.raises(ValueError, match=r"^--out is '.*'; it must be a file in a folder that exists$"):
            check_file(wrong, "--out")
    for wrong, what in ((file, "which"), (file / "folder", f"and '{file}'")):
        with pytest.raises(ValueError, match=rf"^--out is '{wrong}', {what} is a file; it must be a folder$"):
            check_folder(wrong, "--out")
    (tmp_path / "link").symlink_to(tmp_path / "nothing")
    for wrong, what in ((tmp_path / "link", "which"), (tmp_path / "link" / "folder", f"and '{tmp_path / 'link'}'")):
        with pytest.raises(
            ValueError, match=rf"^--out is '{wrong}', {what} is a link to nothing; it must be a folder$"
        ):
            check_folder(wrong, "--out")
    for check in (check_file, check_folder):
        with pytest.raises(ValueError, match=r"^--out is 'x{999}', which cannot be written: File name too long$"):
            check(Path("x" * 999), "--out")


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="there is no /proc")
def test_a_folder_in_which_nobody_may_write_is_refused() -> None:
    """Whatever its mode says, as root's word counts for more than that."""
    with pytest.raises(ValueError, match=r"^--out is '/proc/x\.json', which cannot be written: "):
        check_file(Path("/proc/x.json"), "--out")
    with pytest.raises(ValueError, match=r"^--out is '/proc/a/b', which cannot be written: "):
        check_folder(Path("/proc/a/b"), "--out")


def test_a_home_folder_that_is_not_known_is_refused_in_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = "~no-such-user/x"
    monkeypatch.setenv("TALON_CACHE", unknown)
    monkeypatch.setenv("TALON_DATA", unknown)
    for ask in (cache_folder, data_folder, lambda: from_home(unknown), lambda: resolve(unknown)):
        with pytest.raises(
            ValueError, match=rf"^the path '{unknown}' begins with a home folder that is not known; write"
        ):
            ask()
    monkeypatch.setenv("HOME", "/somewhere")
    assert from_home("~/x") == Path("/somewhere/x")
