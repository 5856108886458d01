"""Certificates in files: to which code they belong, when they count, and what is left out."""

import importlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import attrs
import pytest

import talon_core
from talon_core import AcceptanceRule, TreePolicy
from talon_core.basics.loaded import noting_imports
from talon_core.certificates import code, store
from talon_core.certificates.code import UntoldError, digest, source_file
from talon_core.certificates.standing import standing
from talon_core.certificates.store import SHIPPED, WORLDS, certificates_folder, find, keep, read, why_not, write
from talon_core.certificates.subject import Subject
from talon_core.certify.trial import Certificate
from talon_core.certify.worlds import VARIED
from talon_core.plugins.registry import load_registry
from talon_core.plugins.specs import spelled
from talon_core.testing import certify
from talon_strategies import Chain, RecursiveRejection, SampledChain


def earned(policy: TreePolicy | None, rule: AcceptanceRule, **changed: Any) -> Certificate:
    """A certificate as `certify` makes it, without the wait."""
    made: dict[str, Any] = {
        "policy": spelled(policy) if policy is not None else "none",
        "rule": spelled(rule),
        "drafter": "random tables",
        "worlds": WORLDS,
        "outcomes": 9,
        "accepting": 5,
        "left_out": 0,
        "largest_error": 1e-16,
        "tolerance": 1e-12,
        "seed": 0,
        "seconds": 1.0,
        "versions": {"Python": "3.11"},
        "subject": Subject.of(policy, rule, VARIED),
    }
    return Certificate(**{**made, **changed})


@pytest.fixture
def pair(liar: Any) -> tuple[TreePolicy, AcceptanceRule]:
    """Somebody's policy that draws, and a rule of ours that tests draws."""
    return liar.Draws(), RecursiveRejection()


def test_a_certificate_turns_a_claim_into_knowledge(pair: Any) -> None:
    policy, rule = pair
    assert standing(rule, policy) == "claimed"
    file = keep(earned(policy, rule).record())
    assert standing(rule, policy) is True
    found = find(policy, rule)
    assert found is not None
    assert (found.file, found.policy, found.rule, found.worlds, found.package) == (file, "draws", "rrs", WORLDS, None)
    assert why_not(found) is None


def test_it_is_about_these_options_and_any_value_of_those_that_worlds_set(liar: Any) -> None:
    rule = RecursiveRejection()
    keep(earned(liar.Draws(budget=5, often=0.25), rule).record())
    assert standing(rule, liar.Draws(budget=99, often=0.25)) is True
    assert standing(rule, liar.Draws(budget=5)) == "claimed"


def test_it_is_about_this_rule_and_this_policy(liar: Any) -> None:
    keep(earned(Chain(), liar.Honest()).record())
    assert standing(liar.Honest(), Chain()) is True
    for rule, policy in [(liar.Honest(), None), (liar.Honest(), liar.Fixed()), (liar.TakesAll(), Chain())]:
        assert standing(rule, policy) == "claimed"
    keep(earned(None, liar.Honest()).record())
    assert standing(liar.Honest(), None) is True


@pytest.mark.parametrize("change", ["edited", "added", "removed"])
def test_it_is_about_this_code(pair: Any, liar: Any, change: str) -> None:
    policy, rule = pair
    keep(earned(policy, rule).record())
    helper = Path(liar.__file__).with_name("helper.py")
    if change == "edited":
        helper.write_text("FACTOR = 3\n")
    elif change == "added":
        helper.with_name("another.py").write_text("")
    else:
        helper.unlink()
    assert standing(rule, policy) == "claimed"
    (found,) = store.in_folder(certificates_folder())
    why = str(why_not(found))
    if change == "removed":  # nobody has loaded it
        assert why == "the code of 'liar' is another one"
    else:
        assert why.endswith("so the code of 'liar' that is loaded may be another one; start Python anew")


def test_it_counts_again_where_the_code_is_loaded_anew(pair: Any, liar: Any) -> None:
    policy, rule = pair
    keep(earned(policy, rule).record())
    helper = Path(liar.__file__).with_name("helper.py")
    helper.write_text("FACTOR = 3\n")
    helper.write_text("FACTOR = 2\n")
    assert standing(rule, policy) == "claimed"
    for name in [name for name in sys.modules if name.partition(".")[0] == "liar"]:
        del sys.modules[name]
    load_registry()
    assert standing(rule, sys.modules["liar"].Draws()) is True


def test_none_is_made_of_code_that_was_edited_before_anybody_asked(pair: Any, liar: Any) -> None:
    Path(liar.__file__).write_text(Path(liar.__file__).read_text() + "# edited\n")
    with pytest.raises(UntoldError, match=r"__init__.py' has changed while Python ran, so the code of 'liar'"):
        Subject.of(*pair)


def test_none_is_made_of_code_that_was_written_and_imported_while_python_ran(
    liar: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "written_now.py").write_text(Path(liar.__file__).read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        written: Any = importlib.import_module("written_now")
        with pytest.raises(UntoldError, match=r"written_now.py' has changed while Python ran"):
            Subject.of(written.Draws(), RecursiveRejection())
    finally:
        sys.modules.pop("written_now")


def test_none_is_made_of_code_whose_file_is_gone(pair: Any, liar: Any) -> None:
    importlib.import_module("liar.helper")
    Path(liar.__file__).with_name("helper.py").unlink()
    with pytest.raises(UntoldError, match=r"'liar' is loaded from '.*helper.py', which is gone; start Python anew"):
        Subject.of(*pair)


def test_code_behind_a_link_counts_and_a_link_in_a_circle_ends(tmp_path: Path) -> None:
    package, elsewhere = tmp_path / "package", tmp_path / "elsewhere"
    package.mkdir()
    elsewhere.mkdir()
    (elsewhere / "part.py").write_text("FACTOR = 2\n")
    before = digest(package)
    (package / "part").symlink_to(elsewhere)
    linked = digest(package)
    assert linked != before
    (package / "back").symlink_to(package)
    (elsewhere / "up").symlink_to(package)
    (package / "nowhere").symlink_to(tmp_path / "none")
    assert digest(package) == linked
    (elsewhere / "part.py").write_text("FACTOR = 3\n")
    assert digest(package) != linked


def test_a_package_that_has_not_changed_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(code, "SETTLED", -10_000_000_000)  # as if it had been written long ago
    (tmp_path / "part.py").write_text("FACTOR = 2\n")
    read: list[Path] = []
    whole = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path) or whole(path))  # type: ignore[func-returns-value]
    assert digest(tmp_path) == digest(tmp_path)
    assert len(read) == 1
    (tmp_path / "part.py").write_text("FACTOR = 32\n")
    digest(tmp_path)
    assert len(read) == 2


def test_what_python_leaves_beside_the_code_does_not_matter(pair: Any, liar: Any) -> None:
    policy, rule = pair
    keep(earned(policy, rule).record())
    folder = Path(liar.__file__).parent
    (folder / "__pycache__").mkdir(exist_ok=True)
    (folder / "__pycache__" / "helper.cpython-311.pyc").write_bytes(b"\0")
    (folder / "notes.txt").write_text("to do")
    assert standing(rule, policy) is True


def test_it_is_about_this_version_of_talon(pair: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, rule = pair
    keep(earned(policy, rule).record())
    monkeypatch.setattr(talon_core, "__version__", "9.9")
    assert standing(rule, policy) == "claimed"
    (found,) = store.in_folder(certificates_folder())
    assert str(why_not(found)).endswith("and this is 9.9")


def test_a_plugin_may_ship_one_and_it_is_held_against_the_code(pair: Any, liar: Any) -> None:
    policy, rule = pair
    package = Path(liar.__file__).parent
    write(earned(policy, rule).record(), package / SHIPPED / "draws.json")
    assert standing(rule, policy) is True
    found = find(policy, rule)
    assert found is not None
    assert found.package == "liar"
    (package / "helper.py").write_text("FACTOR = 3\n")
    assert standing(rule, policy) == "claimed"


def test_the_code_of_a_policy_around_another_one_is_that_of_both(liar: Any, tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "around.py").write_text(
        "import attrs\nfrom talon_core import TreePolicy\n\n"
        "@attrs.frozen\nclass Around(TreePolicy):\n"
        "    name = 'around'\n    children = 'sampled-chain'\n    default_rule = 'rrs'\n"
        "    inner: TreePolicy\n    budget: int = 4\n\n"
        "    def grow(self, tree, candidates, choices):\n        return self.inner.grow(tree, candidates, choices)\n"
    )
    with noting_imports():
        around: Any = __import__("around")
    try:
        subject = Subject.of(around.Around(liar.Draws()), RecursiveRejection(), VARIED)
        assert set(subject.code) == {"around", "liar"}
        assert subject.code["around"] == digest(tmp_path / "around.py")
        assert subject != Subject.of(around.Around(liar.Draws(often=0.1)), RecursiveRejection(), VARIED)
    finally:
        sys.modules.pop("around")


# What has no certificate


def test_the_code_of_a_class_of_a_function_cannot_be_told() -> None:
    @attrs.frozen
    class Local(SampledChain):
        pass

    with pytest.raises(UntoldError, match=r"the code of tree policy .*Local.* move it from the notebook"):
        Subject.of(Local(), RecursiveRejection())
    assert standing(RecursiveRejection(), Local()) == "claimed"
    certificate = certify(Local(), worlds=20)
    assert certificate.subject is None
    with pytest.raises(ValueError, match="move it from the notebook"):
        certificate.record()


def test_the_code_of_a_notebook_cannot_be_told(liar: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(liar.Draws, "__module__", "__main__")
    assert source_file(liar.Draws) is None
    with pytest.raises(UntoldError, match="move it from the notebook, script or function into a module"):
        Subject.of(liar.Draws(), RecursiveRejection())


def test_an_option_that_is_more_than_a_value_cannot_be_named(liar: Any) -> None:
    with pytest.raises(UntoldError, match=r"option 'often' of tree policy 'draws' .* is of type function; .* numbers"):
        Subject.of(liar.Draws(often=lambda: 0.5), RecursiveRejection())


def test_too_few_worlds_or_one_drafter_make_none_that_is_kept() -> None:
    assert "it is about 20 worlds" in str(certify("chain", worlds=20).unkept)
    refused = certify("chain", drafter="ngram", worlds=20)
    with pytest.raises(ValueError, match=r"it is about 20 worlds; .* at least 2000"):
        refused.record()


# Files


def test_a_file_is_for_people_and_is_replaced_as_a_whole(pair: Any) -> None:
    file = keep(earned(*pair).record())
    assert file == keep(earned(*pair, seed=7).record())
    assert file.name.startswith("draws-rrs-")
    told = json.loads(file.read_text(encoding="utf-8"))
    assert told["format"] == "talon certificate 1"
    assert (told["policy"], told["seed"], told["subject"]["varied"]) == ("draws", 7, ["budget"])
    assert told["subject"]["policy"] == {"class": "liar.Draws", "options": {"often": 0.5}}
    assert {"worlds", "outcomes", "largest_error", "versions", "date"} <= set(told)
    assert [each.name for each in file.parent.iterdir()] == [file.name]


DAMAGE = {
    "cut": lambda text: text[:40],
    "nothing was ever accepted": lambda text: json.dumps({**json.loads(text), "accepting": 0}),
    "more was accepted than there were worlds": lambda text: json.dumps({**json.loads(text), "accepting": 10**9}),
    "options that are no text": lambda text: json.dumps(
        {**json.loads(text), "subject": {**json.loads(text)["subject"], "varied": [["a"]]}}
    ),
    "no JSON": lambda text: "certified!",
    "a list": lambda text: "[1]",
    "foreign": lambda text: '{"name": "something else"}',
    "no subject": lambda text: json.dumps({**json.loads(text), "subject": None}),
    "code is a list": lambda text: text.replace('"code": {', '"code": [], "more": {'),
    "few worlds": lambda text: text.replace(f'"worlds": {WORLDS}', '"worlds": 5'),
    "an error": lambda text: text.replace("1e-16", "1e-3"),
    "NaN": lambda text: text.replace("1e-16", "NaN"),
    "one drafter": lambda text: text.replace("random tables", "ngram"),
    "deep": lambda text: "[" * 100_000,
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_file_that_is_no_certificate_is_left_out_with_a_warning(pair: Any, caplog: Any, damage: str) -> None:
    policy, rule = pair
    file = keep(earned(policy, rule).record())
    file.write_text(DAMAGE[damage](file.read_text()))
    with pytest.raises(ValueError, match=r"is no certificate: "):
        read(file)
    assert standing(rule, policy) == "claimed"
    assert "is no certificate" in caplog.text
    assert caplog.records[0].name.startswith("talon_core.")
    assert len(caplog.text.splitlines()) == 1


@pytest.mark.timeout(20)
@pytest.mark.parametrize("what", ["folder", "pipe", "huge", "link to nothing"])
def test_what_is_no_small_file_is_left_out_with_a_warning(pair: Any, caplog: Any, what: str) -> None:
    policy, rule = pair
    file = keep(earned(policy, rule).record())
    file.unlink()
    if what == "folder":
        file.mkdir()
    elif what == "pipe":
        os.mkfifo(file)
    elif what == "huge":
        with file.open("w") as made:
            made.truncate(2**40)
    else:
        file.symlink_to("nothing.json")
    assert standing(rule, policy) == "claimed"
    assert len(caplog.text.splitlines()) == 1
    assert {
        "folder": "is no file",
        "pipe": "is no file",
        "huge": "has 1099511627776 bytes; at most 1048576 are read",
        "link to nothing": "cannot be read: No such file",
    }[what] in caplog.text


WRONG = [
    (("subject",), None, "'subject' is no subject: None is no dictionary"),
    (("subject",), 7, "'subject' is no subject: 7 is no dictionary"),
    (("subject", "rule"), None, "'rule' is None; it must be a dictionary"),
    (("subject", "policy"), "x", "'policy' is 'x'; it must be a dictionary"),
    (("subject", "varied"), None, "'varied' is None; it must be a list of texts"),
    (("subject", "code"), {"a": None}, "'code' has a 'a' that is None; it must be text"),
    (("subject", "talon"), 1, "'talon' is 1; it must be text"),
    (("worlds",), None, "'worlds' is None; it must be a whole number of at least 2000"),
    (("worlds",), True, "'worlds' is True; it must be a whole number"),
    (("accepting",), 1.5, "'accepting' is 1.5; it must be a whole number"),
    (("largest_error",), [], "'largest_error' is []; it must be a number"),
    (("date",), None, "'date' is None; it must be text"),
    (("versions",), None, "'versions' is None; it must be a dictionary"),
    (("drafter",), None, "its 'drafter' is None; one that counts was made with 'random tables'"),
]


@pytest.mark.parametrize(("where", "value", "sentence"), WRONG)
def test_what_a_certificate_cannot_say_is_told_with_what_would_be_right(
    pair: Any, where: tuple[str, ...], value: Any, sentence: str
) -> None:
    file = keep(earned(*pair).record())
    told: Any = json.loads(file.read_text())
    (told if len(where) == 1 else told[where[0]])[where[-1]] = value
    file.write_text(json.dumps(told))
    with pytest.raises(ValueError, match=r"^'.*json' is no certificate: ") as caught:
        read(file)
    assert sentence in str(caught.value)
