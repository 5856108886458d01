"""A profile comes back from its file as it was, and whatever else a file holds is refused with a sentence."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import pytest

from talon_core.profiles.profile import AXES, Profile, Table
from talon_core.profiles.store import (
    as_text,
    check_name,
    check_used,
    find_profile,
    known_profiles,
    profiles_folder,
    read_profile,
    save_profile,
)

HERE = {
    "cpu": "AMD EPYC",
    "gpu": [],
    "threads": 1,
    "device": "cpu",
    "dtype": "float32",
    "attention": "native",
    "accelerator": "native",
}


def made(name: str = "mine", **fields: Any) -> Profile:
    grid = {(n, c, b): 1e-3 * (20 + b * n + c / 100) for n in (1, 4, 16) for c in (64, 256) for b in (1, 4)}
    tables: dict[str, Any] = {
        "verify_table": Table("verify", grid),
        "draft_table": Table("draft", {(1, 4): 1e-3, (8, 4): 2e-3}),
        "commit_table": Table("commit", {(1,): 5e-4}),
    }
    model = {"name": "tiny", "parameters": 9, "weights_sha256": "ab"}
    return Profile(name, "measured", HERE, model, "eagle3", {}, **{**tables, **fields})


def test_a_profile_comes_back_as_it_was(tmp_path: Path) -> None:
    file = tmp_path / "one.json"
    file.write_text(as_text(made()))
    found = read_profile(file)
    assert found.as_dict() == made().as_dict()
    drawn = made(temperature=0.7)
    assert Profile.from_dict(drawn.as_dict()).temperature == 0.7
    assert drawn.fingerprint != made().fingerprint
    assert found.verify(10, 100, 2) == made().verify(10, 100, 2)


def test_it_knows_the_drafter_that_it_was_measured_with_by_its_name() -> None:
    assert attrs.evolve(made(), drafter="eagle3:path=./head").know("eagle3")
    assert not attrs.evolve(made(), drafter="eagle3:path=./head").know("ngram")
    assert not attrs.evolve(made(), drafter=None).know("ngram")


def test_it_gives_what_was_measured_and_none_where_nothing_was() -> None:
    profile = made()
    assert profile.verify(16, 256, 4) == pytest.approx(1e-3 * (20 + 16 + 2.56))  # four trees of four nodes
    assert profile.draft(8, 100) == pytest.approx(2e-3)
    assert profile.commit(3) == pytest.approx(5e-4)
    assert (profile.accept(4), profile.tell(2), profile.read(64), profile.catch_up(64)) == (None,) * 4


def test_where_one_batch_is_known_as_many_nodes_altogether_last_as_long() -> None:
    alone = made(verify_table=Table("verify", {(n, 64, 1): 1e-3 * n for n in (1, 4, 16)}))
    assert alone.verify(16, 64, 4) == alone.verify(16, 64, 1) == pytest.approx(16e-3)


@pytest.mark.parametrize("batches", [(1,), (2,), (1, 4)])
def test_passes_over_trees_of_several_sizes_take_what_each_takes(batches: tuple[int, ...]) -> None:
    profile = made(verify_table=Table("verify", {(n, 64, b): 1e-3 * n for n in (1, 4, 16) for b in batches}))
    sizes = np.array([1, 3, 7, 60])
    for batch in (1, 3):
        found = profile.verify_each(sizes, 90, batch)
        assert found is not None
        assert found.tolist() == [profile.verify(size, 90, batch) for size in sizes.tolist()]
        after = profile.verify_after(sizes, [10, 90, 90], batch)
        assert [each.tolist() for each in after if each is not None] == [
            [profile.verify(size, context, batch) for size in sizes.tolist()] for context in (10, 90, 90)
        ]
        assert profile.verify_after(sizes, [], batch) == []


def test_a_saved_profile_is_found_by_its_name() -> None:
    file = save_profile(made("saved-one"))
    assert file == profiles_folder() / "saved-one.json"
    assert known_profiles()["saved-one"] == file
    assert find_profile("saved-one").as_dict() == find_profile(str(file)).as_dict() == made("saved-one").as_dict()


def test_a_name_that_there_is_not_is_a_question() -> None:
    with pytest.raises(LookupError, match=r"no profile 'h100-llama-3\.1-8'; did you mean 'h100-llama-3\.1-8b'"):
        find_profile("h100-llama-3.1-8")


@pytest.mark.parametrize("name", ["", "a/b", "../up", ".hidden", "x.json", "h100-llama-3.1-8b"])
def test_what_is_no_name_of_ones_own_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"is none; it must|comes with TALON"):
        check_name(name)


def changed(**fields: Any) -> Callable[[dict[str, Any]], Any]:
    return lambda data: {**data, **fields}


def without(name: str) -> Callable[[dict[str, Any]], Any]:
    return lambda data: {key: value for key, value in data.items() if key != name}


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda data: [], "it must say that its kind is 'talon profile'"),
        (changed(kind="talon trace"), "it must say that its kind is 'talon profile'"),
        (changed(format=2), "it has format 2; this version reads format 1"),
        (without("verify"), "'verify' is missing"),
        (without("machine"), "'machine' is missing"),
        (changed(machine={"cpu": "x"}), "'machine' has no 'gpu'"),
        (
            changed(machine={**made().machine, "threads": "x"}),
            "'machine' has a 'threads' that is 'x'; it must be a",
        ),
        (changed(machine={**made().machine, "gpu": 3}), "'machine' has a 'gpu' that is 3; it must be a list of texts"),
        (changed(more=1), "'more' is not known"),
        (changed(origin="guessed"), "'origin' is 'guessed'; it must be one of"),
        (changed(temperature="hot"), "'temperature' is 'hot'; it must be a number"),
        (changed(temperature=-1), "'temperature' is -1; it must be a finite number from 0"),
        (changed(verify=[]), "'verify' is empty; it must have at least one point"),
        (changed(verify={}), "'verify' is {}; it must be a list of points"),
        (changed(verify=[[1, 64, 0.1]]), r"'verify' has at 0 what is \[1, 64, 0.1\]; it must be a list of nodes, con"),
        (changed(draft=[[1, 4, -0.1]]), "'draft' has at 0 what is -0.1; it must be a finite number from 0 to 1e15"),
        (
            changed(draft=[[1, 4, 1e308]]),
            "'draft' has at 0 what is 1e\\+308; it must be a finite number from 0 to 1e15",
        ),
        (changed(draft=[[0, 4, 0.1]]), "'draft' has at 0 what is 0; it must be a whole number of at least 1"),
        (changed(draft=[[1, 4, "NaN"]]), "'draft' has at 0 what is 'NaN'; it must be a finite number"),
        (changed(read=[[1, 0.1], [1, 0.2]]), r"'read' has at 1 what is \[1, 0.2\], of sizes that are there before"),
    ],
)
def test_what_is_no_profile_is_refused_with_a_sentence(
    tmp_path: Path, change: Callable[[dict[str, Any]], Any], sentence: str
) -> None:
    file = tmp_path / "one.json"
    file.write_text(json.dumps(change(made().as_dict())))
    with pytest.raises(ValueError, match=f"'{file}' is no profile of talon profile: {sentence}") as refused:
        find_profile(str(file))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("cut", [0, 1, 100, -2])
def test_a_file_that_was_cut_off_is_refused(tmp_path: Path, cut: int) -> None:
    file = tmp_path / "one.json"
    file.write_text(as_text(made()).rstrip()[:cut])
    with pytest.raises(ValueError, match="is no profile of talon profile: it is not JSON"):
        read_profile(file)


@pytest.mark.parametrize("kind", ["catch_up", "rest", "chain", "temperature"])
def test_a_file_from_before_there_was_a_field_knows_nothing_of_it(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "old.json"
    file.write_text(json.dumps(without(kind)(made().as_dict())))
    assert read_profile(file).as_dict() == made().as_dict()


@pytest.mark.parametrize(
    ("field", "other", "sentence"),
    [
        ("cpu", "Intel Xeon", "its cpu is AMD EPYC and not Intel Xeon"),
        ("gpu", ["NVIDIA H200, 570.1, 1980 MHz"], "its gpu is none and not NVIDIA H200"),
        ("threads", 8, "its threads is 1 and not 8"),
        ("dtype", "bfloat16", "its dtype is float32 and not bfloat16"),
        ("device", "cuda:0", "its device is cpu and not cuda:0"),
        ("attention", "eager", "its attention is native and not eager"),
        ("accelerator", None, "its accelerator is native and not none"),
    ],
)
def test_another_machine_is_named_and_refused_unless_it_is_meant(field: str, other: Any, sentence: str) -> None:
    profile = made()
    found = profile.differences({**HERE, field: other})
    assert found == sentence
    with pytest.raises(ValueError, match=f"'mine' is of another machine, model or drafter: {sentence}; make one here"):
        check_used(profile, found, other_machine=False)
    check_used(profile, found, other_machine=True)


def test_a_profile_of_an_earlier_version_is_not_taken_for_this_processors() -> None:
    profile, here = made(), {**HERE, "cpu": "AMD EPYC (family 25, model 17)"}
    found = profile.differences(here)
    assert found == (
        "its cpu is AMD EPYC (noted by an earlier version, which did not tell processors of that name apart) and not "
        "AMD EPYC (family 25, model 17)"
    )
    with pytest.raises(ValueError, match=r"make one here \(talon profile measure\), or say .* \(--other-machine\)$"):
        check_used(profile, found, other_machine=False)
    check_used(profile, found, other_machine=True)
    now = attrs.evolve(profile, machine=here)
    assert now.differences(here) == ""
    other = now.differences({**here, "cpu": "AMD EPYC (family 25, model 1)"})
    assert other == "its cpu is AMD EPYC (family 25, model 17) and not AMD EPYC (family 25, model 1)"


def test_another_model_or_drafter_is_named() -> None:
    profile = made()
    assert profile.differences(HERE, "ab", "eagle3") == ""
    assert profile.differences(HERE, "cd") == "its model is tiny, with other weights"
    assert profile.differences(HERE, "ab", "ngram") == "its drafter is eagle3 and not ngram"


def test_weights_in_fewer_bits_are_others_where_both_are_known() -> None:
    blocks = Profile("p", "measured", {**HERE, "weight_bits": 6}, {}, None, {}, Table("verify", {(1, 1, 1): 1.0}))
    assert blocks.differences({**HERE, "weight_bits": 6}) == ""
    assert blocks.differences({**HERE, "weight_bits": 32}) == "the weights of its model have 6 bits and not 32"
    assert blocks.differences({**HERE, "weight_bits": None}) == ""
    assert made().differences({**HERE, "weight_bits": 32}) == ""  # it was made before that was noted


def test_drivers_and_the_number_of_a_gpu_are_no_other_machine() -> None:
    machine = {**HERE, "gpu": ["NVIDIA H200, 570.1, 1980 MHz"], "device": "cuda:0"}
    profile = Profile("p", "measured", machine, {}, None, {}, Table("verify", {(1, 1, 1): 1.0}))
    assert profile.differences({**machine, "gpu": ["NVIDIA H200, 580.2, 1980 MHz"], "device": "cuda:1"}) == ""


def test_every_table_has_a_method_of_its_name() -> None:
    assert [kind for kind in AXES if not callable(getattr(Profile, kind))] == []
    assert {*made().tables} == {*AXES}
