"""Whole laws go to the disk as they come: what memory, the disk and an end in the middle make of a recording."""

import json
import shutil
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load, save

from talon_core.trace import stored
from talon_core.trace.folder import Trace, read_trace
from talon_core.trace.kept_laws import KeptLaws
from talon_core.trace.law_sums import Layout
from talon_core.trace.record import Recorder
from talon_core.trace.superset import Superset
from talon_tests.tiny_models import of_words

WIDE = 20_000
"""Tokens of a vocabulary whose laws are larger than all else that is kept of a text."""


@pytest.fixture(scope="module")
def wide() -> tuple[Any, Any]:
    return of_words(vocab_size=WIDE)


def peak(work: Callable[[], object]) -> int:
    """The most bytes that Python and NumPy have held while something was done."""
    tracemalloc.start()
    try:
        work()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_a_longer_text_takes_no_more_memory_for_its_laws(
    wide: Any, recorder: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored, "PART", 2**12)  # not all of the shorter text's laws
    held, kept = [], []
    for length in (6, 6, 18):  # what is made once is made by the first
        made = recorder(wide, max_new_tokens=length, laws=True, width=8, nodes=2, depth=3)
        folder = tmp_path / f"{len(held)}"
        held.append(peak(lambda made=made, folder=folder: made.run(folder)))
        kept.append(max(len(text.recorded.above) for text in read_trace(folder)) * WIDE * 4)
    assert kept[2] > 3 * kept[1]
    assert held[2] - held[1] < (kept[2] - kept[1]) / 4  # `kept` are of one of the two, which are as large


def test_the_file_is_that_of_laws_that_were_held_together(
    tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held: dict[str, list[np.ndarray[Any, Any]]] = {"drafter": [], "target": []}
    add = KeptLaws.add

    def noted(self: KeptLaws, name: str, law: np.ndarray[Any, Any]) -> None:
        held[name].append(law.copy())
        add(self, name, law)

    monkeypatch.setattr(KeptLaws, "add", noted)
    with KeptLaws(tmp_path, 97) as laws:
        text = recorder(tiny, laws=True, nodes=2, depth=3).text("some", 1, laws)
        data = b"".join(text.parts("this", laws))
    columns, length = load(data), int.from_bytes(data[:8], "little")
    assert len(columns["above"]) == len(held["drafter"]) == len(held["target"])
    for name, of in held.items():
        columns[f"law.{name}"] = np.stack(of).astype(np.float32)
    assert data == save(columns, json.loads(data[8 : 8 + length])["__metadata__"])


def test_a_text_without_rows_has_no_laws(tiny: Any, recorded: Callable[..., Trace]) -> None:
    for text in recorded(tiny, laws=True, max_new_tokens=1):
        assert text.law is not None
        assert not len(text.recorded.above)


def same_files(one: Trace, other: Trace) -> bool:
    """Whether all columns of all texts are equal."""
    pairs = [(load(one.file(*text).read_bytes()), load(other.file(*text).read_bytes())) for text in one.planned()]
    return all(np.array_equal(left[name], right[name]) for left, right in pairs for name in {*left, *right})


@pytest.mark.parametrize("name", ["drafter", "target"])
def test_laws_of_a_text_that_was_interrupted_are_not_left(
    tiny: Any,
    recorder: Callable[..., Recorder],
    recorded: Callable[..., Trace],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
) -> None:
    small: dict[str, Any] = {"laws": True, "nodes": 2, "depth": 3}
    add, texts, seen = KeptLaws.add, tmp_path / "trace" / "texts", []

    def interrupted(self: KeptLaws, of: str, law: Any) -> None:
        add(self, of, law)
        seen.append([each.name for each in texts.iterdir()])
        if of == name and seen[-1] and len(seen) % 7 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(KeptLaws, "add", interrupted)
    with pytest.raises(KeyboardInterrupt):
        recorder(tiny, **small).run(texts.parent)
    assert seen[0] == []  # so that a process that is killed leaves nothing either
    assert [each.suffix for each in texts.iterdir()] == [".safetensors"]
    monkeypatch.setattr(KeptLaws, "add", add)
    done = recorder(tiny, **small).run(texts.parent)
    assert done.texts == 3
    assert same_files(done.trace, recorded(tiny, **small))


def test_laws_that_the_disk_has_no_room_for_are_refused_before_they_come(
    tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = recorder(tiny, laws=True, width=16, nodes=2, depth=3)
    rows = 21 * 21 + 11 + 1  # of 24 positions; the last three have fewer layers
    needed = rows * (3 * 97 * 4 + Layout(97, (1.0, 0.8)).size)
    room, asked = [needed - 1], []

    def usage(folder: Path) -> Any:
        asked.append(folder)
        return SimpleNamespace(free=room[0])

    monkeypatch.setattr(shutil, "disk_usage", usage)
    said = (
        r"^prompt 0 of the set 'other': recording its laws takes about 2\.4 MB on the disk of '.+texts', which has "
        r"2\.4 MB left; give a folder with more room, or a smaller --max-new-tokens or --depth$"
    )
    with pytest.raises(ValueError, match=said):
        made.run(tmp_path / "trace")
    assert asked == [tmp_path / "trace" / "texts"]
    assert [*asked[0].iterdir()] == []
    room[0] = needed
    assert made.run(tmp_path / "trace").texts == 4
    recorder(tiny).run(tmp_path / "without")
    assert len(asked) == 5  # once a text, and without laws never


def test_laws_of_two_texts_are_not_mixed_and_none_are_lost(
    tiny: Any, recorder: Callable[..., Recorder], tmp_path: Path
) -> None:
    made = recorder(tiny, laws=True, max_new_tokens=3, nodes=2, depth=3)
    laws = KeptLaws(tmp_path, 97)
    with pytest.raises(ValueError, match=r"^prompt 0 of the set 'some': its laws have no files; write 'with KeptLaws"):
        made.text("some", 0, laws)
    with laws:
        made.text("some", 0, laws)
        with pytest.raises(ValueError, match=r"^prompt 1 of the set 'some': the laws of another text are kept here;"):
            made.text("some", 1, laws)


@pytest.mark.parametrize(("width", "nodes", "depth"), [(16, 1, 4), (2, 3, 5), (1, 9, 3), (1, 1, 13), (97, 30, 2)])
def test_a_text_has_no_fewer_rows_than_is_said_before(
    tiny: Any, recorded: Callable[..., Trace], width: int, nodes: int, depth: int
) -> None:
    fewest = Superset(width, depth, nodes).fewest
    for text in recorded(tiny, width=width, nodes=nodes, depth=depth):
        rows = len(text.recorded.above)
        assert rows / 3 < fewest(text.positions, None) <= rows
        assert fewest(text.positions, 1) == text.positions - 1
