"""Every numeric option of every command: what is no number in its range gets one sentence and status 2."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import attrs
import pytest
import typer

from talon_core.basics.numerals import rounded
from talon_core.cli import options as opts
from talon_core.cli.app import app
from talon_core.plugins.registry import KINDS, load_registry
from talon_core.plugins.specs import build, describe_options
from talon_core.recipe import TrainingJob

WRONG = ("nan", "inf", "-inf", "1e400", "1_000", "٣", "0x10", "", "1" * 5000, "five")
BASE = {
    ("generate",): ["hi"],
    ("demo",): [],
    ("certify",): ["--policy", "talon"],
    ("datastore", "build"): ["text.txt", "--out", "out"],
    ("bench", "run"): ["ngram", "--prompts", "prompts.txt"],
    ("bench", "report"): ["folder"],
    ("train",): ["medusa", "--out", "out"],
    ("trace", "record"): ["--prompts", "prompts.txt", "--out", "out"],
    ("trace", "replay"): ["folder", "talon"],
    ("trace", "simulate"): ["folder", "talon", "--profile", "here"],
    ("trace", "sweep"): ["talon", "--trace", "folder", "--out", "out"],
    ("profile", "measure"): ["here"],
    ("profile", "beside"): [],
    ("tune",): ["folder", "talon"],
}
"""For each command that has numeric options, what it needs besides."""


def commands(group: typer.Typer, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Callable[..., None]]]:
    for info in group.registered_commands:
        assert info.callback is not None
        yield (*path, info.name or info.callback.__name__), info.callback
    for inner in group.registered_groups:
        assert inner.typer_instance is not None
        yield from commands(inner.typer_instance, (*path, str(inner.name)))


def numeric_options() -> Iterator[tuple[tuple[str, ...], str, object]]:
    """For each: the command, the option, what reads it."""
    for path, command in commands(app):
        for name, annotation in get_type_hints(command, include_extras=True).items():
            of, *about = get_args(annotation) if get_origin(annotation) is Annotated else (annotation,)
            kinds = {of, *get_args(of)}
            if kinds & {int, float}:
                yield path, "--" + name.replace("_", "-"), about[0].parser


def test_all_numbers_are_read_in_one_way():
    """No option is left to typer's reading, which takes NaN and 1_000."""
    found = list(numeric_options())
    assert {path for path, _, _ in found} == set(BASE)
    assert len(found) >= 27
    assert {reader for _, _, reader in found} == {opts.number, opts.whole_number}


def test_what_is_no_number_is_refused_everywhere(talon, monkeypatch):
    monkeypatch.setattr("talon_core.cli.session.open_session", lambda *_, **__: pytest.fail("a model was loaded"))
    for path, option, reader in numeric_options():
        for text in (*WRONG, *(("0.5", "1e3", "9" * 20) if reader is opts.whole_number else ())):
            said = talon(*path, *BASE[path], f"{option}={text}").refusal
            assert f"'{option}'" in said or f"{option} is" in said
            assert len(said) < 200


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("learning_rate", ["0", "-1", "2"]),
        ("epochs", ["0", "1e30"]),
        ("temperature", ["-0.1", "1e30", "1e-40"]),
        ("seed", ["-1", "4294967296"]),
        ("held_out", ["0.6"]),
    ],
)
def test_settings_of_a_training_have_two_sides(option, values, tmp_path):
    for value in [*values, "nan", "inf"]:
        changed: dict[str, Any] = {option: float(value)}
        with pytest.raises(ValueError, match=option):
            TrainingJob("target", tmp_path, **changed)


def test_numbers_of_a_training_are_refused_before_anything_is_loaded(talon):
    for given in ("--learning-rate=5", "--seed=4294967296", "--epochs=1e30"):
        assert given.split("=")[0] in talon("train", "medusa", "--out", "out", "--self-written", "4", given).refusal


@pytest.mark.parametrize("value", ["5e-324", "1e-40", "-1"])
def test_a_temperature_that_no_float32_can_be_divided_by_is_refused_before_anything_is_loaded(talon, value):
    for command in (["generate", "hi"], ["bench", "run", "ngram", "--prompts", "none.txt"]):
        said = talon(*command, "--model", "nowhere", "--temperature", value).refusal
        assert f"--temperature is {float(value)}; it must be 0 (greedy), or a finite number of at least 1e-30" in said


def test_options_of_every_plugin_refuse_what_is_no_finite_number():
    registry = load_registry()
    for kind in KINDS:
        for name in registry.names(kind):
            options = describe_options(registry.get(kind, name).cls)
            needed = "".join(f"{option}=some," for option, default in options.items() if default is attrs.NOTHING)
            for option, default in options.items():
                if isinstance(default, int | float) and not isinstance(default, bool):
                    for text in ("nan", "inf", "1e400", "1_000", "٣"):
                        with pytest.raises(ValueError, match=option):
                            build(registry, kind, f"{name}:{needed}{option}={text}")


@pytest.mark.parametrize(
    ("value", "said"),
    [
        *((0.0, "0"), (2.0, "2"), (0.5, "0.5"), (1.984, "1.98"), (29.34, "29.3"), (999.4, "999"), (999.6, "1,000")),
        *((1984.0, "1,980"), (2_930_100.0, "2,930,000"), (0.012345, "0.0123"), (1.234e-7, "0.000000123")),
        *((-1984.0, "-1,980"), (float("inf"), "inf"), (0.09996, "0.1")),
    ],
)
def test_a_number_is_rounded_to_digits_that_count_and_has_no_exponent(value: float, said: str) -> None:
    assert rounded(value) == said
