"""The picture of a tuning: every trial is in it, in both formats, the same one each time."""

import sys
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest

from talon_core.searching import Among, Range
from talon_core.tune.picture import check_picture, draw, matters
from talon_core.tune.run import Tuned
from talon_core.tune.search import Trial
from talon_core.tune.space import Dimension


@pytest.fixture(scope="module", autouse=True)
def fonts() -> None:
    pytest.importorskip("matplotlib")


def test_both_formats_are_written_and_hang_on_the_trials_alone(tune: Callable[..., Tuned], tmp_path: Path) -> None:
    found = tune("eagle2:budget=12", "top_k=2|4", "depth=1..4:log", trials=6)
    import matplotlib

    draw(found, tmp_path / "a.svg")
    with matplotlib.rc_context({"axes.facecolor": "yellow", "font.size": 20}):  # as a user's own style
        draw(found, tmp_path / "b.SVG")
        draw(found, tmp_path / "c.png")
    first, again, png = ((tmp_path / file).read_bytes() for file in ("a.svg", "b.SVG", "c.png"))
    assert first.startswith(b"<?xml")
    assert first == again
    assert png.startswith(b"\x89PNG")
    shown = {element.attrib["id"] for element in ElementTree.parse(tmp_path / "a.svg").iter() if "id" in element.attrib}
    assert {"axes_1", "axes_2", "axes_3"} <= shown  # two options, and the map of both


def test_one_option_needs_no_map(tune: Callable[..., Tuned], tmp_path: Path) -> None:
    draw(tune("chain", trials=3), tmp_path / "one.svg")
    assert 'id="axes_2"' not in (tmp_path / "one.svg").read_text()


def test_an_option_that_decides_matters_more_than_one_that_does_not() -> None:
    decides, other = Dimension("decides", Range(1, 9), True, "1"), Dimension("other", Among(("a", "b")), False, "a")
    trials = [Trial("", {"decides": str(each % 9), "other": "ab"[each % 2]}, 1.0 + each % 9) for each in range(36)]
    assert matters(decides, trials) > 0.9 > 0.1 > matters(other, trials)
    assert matters(other, trials[:1]) == 0
    assert matters(decides, [Trial("", {"decides": "1"}, 2.0)] * 3) == 0
    # an option may be a word by default, which stands nowhere among the numbers that are searched
    by_default = [Trial("", {"decides": "none"}, 2.0)]
    assert matters(decides, by_default * 3) == 0
    assert matters(decides, by_default + trials) == matters(decides, trials)


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ("x.pdf", r"--picture is 'x\.pdf'; it must end in \.png or \.svg"),
        ("nowhere/x.png", "it must be a file in a folder that exists"),
        ("", r"^--picture is an empty path \('' or '\.'\); it must be a file in a folder that exists$"),
    ],
)
def test_what_cannot_become_a_picture_is_refused(file: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_picture(Path(file))


def test_without_matplotlib_a_sentence_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ValueError, match=r"pip install 'talon-core\[plots\]'"):
        check_picture(tmp_path / "x.png")
