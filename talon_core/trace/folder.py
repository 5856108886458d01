"""The folder of a trace: `manifest.json` says what was recorded and with what, `texts/` has a file for each text."""

import json
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics import records
from talon_core.basics.paths import UNFINISHED, check_spared, is_unused, small_text, write_whole, write_whole_parts
from talon_core.engine.text_target import TextTarget
from talon_core.trace.columns import TextTrace
from talon_core.trace.kept_laws import KeptLaws

MANIFEST = "manifest.json"
TEXTS = "texts"

KIND = "talon trace"
FORMAT = 1
"""Of the manifest and of the texts; another number is another form."""

READERS: Mapping[str, Mapping[str, records.Reader]] = {
    "settings": {
        "model": records.words,
        "sets": records.dictionaries,
        "max_new_tokens": records.whole,
        "temperature": records.amount,
        "seed": records.whole,
        "raw": records.flag,
        "width": records.whole,
        "depth": records.whole,
        "nodes": records.whole,
        "least": records.amount,
        "laws": records.flag,
    },
    "target": {
        "vocab_size": records.whole,
        "eos": records.wholes,
        "weights_sha256": records.words,
    },
    "drafter": {
        "spec": records.words,
        "name": records.words,
        "reads_texts": records.flag,
        "max_depth": records.maybe(records.whole),
        "sha256": records.words,
    },
}
"""What a manifest has, besides `environment`, `sessions`, `kind` and `format`."""


@attrs.frozen(eq=False)
class Trace:
    """A folder that was recorded.

    Attributes:
        folder: where.
        manifest: what it says of itself; a key of `READERS` each, `environment` and `sessions`.
    """

    folder: Path
    manifest: Mapping[str, Any]

    def __getitem__(self, part: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.manifest[part]
        return found

    @property
    def target(self) -> TextTarget:
        """What stands for the recorded target where a drafter of texts is opened."""
        told = self["environment"].get("tokenizer_sha256")  # traces of earlier versions do not say it
        return TextTarget(int(self["target"]["vocab_size"]), None if told is None else str(told))

    def file(self, set_name: str, prompt: int) -> Path:
        """Where a text is, or is to be."""
        number = [one["name"] for one in self["settings"]["sets"]].index(set_name)
        return self.folder / TEXTS / f"{number:03}-{prompt:05}.safetensors"

    @property
    def planned_texts(self) -> int:
        """How many texts the trace is of, those that are not there yet among them."""
        return sum(one["prompts"] for one in self["settings"]["sets"])

    def planned(self) -> list[tuple[str, int]]:
        """Every text that the trace is of, by set and prompt: the first of each set, then the second ones, and so on.

        So what is there of an unfinished recording is about all sets.
        """
        sets = self["settings"]["sets"]
        most = max((one["prompts"] for one in sets), default=0)
        return [(one["name"], prompt) for prompt in range(most) for one in sets if prompt < one["prompts"]]

    def texts(self) -> list[tuple[str, int]]:
        """Those that are there, in the same order."""
        sets = self["settings"]["sets"]
        found: list[tuple[int, int]] = []
        for file in (self.folder / TEXTS).glob("*.safetensors"):
            number, _, prompt = file.stem.partition("-")
            if number.isdecimal() and prompt.isdecimal() and int(number) < len(sets):
                found += [(int(prompt), int(number))] if int(prompt) < sets[int(number)]["prompts"] else []
        return [(sets[number]["name"], prompt) for prompt, number in sorted(found)]

    @cached_property
    def fingerprint(self) -> str:
        """Tells the trace from others: of all that it depends on, as the manifest says it."""
        return records.sha256_of([self[part] for part in READERS])[:16]

    def unfinished(self) -> list[Path]:
        """Files that a recording has left which was killed."""
        return sorted(left for folder in (self.folder, self.folder / TEXTS) for left in folder.glob(f"*{UNFINISHED}"))

    def text(self, set_name: str, prompt: int) -> TextTrace:
        """Read one.

        Raises:
            ValueError: if its file is none, not whole, or of another text.
        """
        file = self.file(set_name, prompt)
        if not file.is_file():
            raise ValueError(f"'{file}' is no file; a text of the trace must be there")
        found = TextTrace.read(file)
        if found.of != self.fingerprint:
            raise ValueError(f"'{file}' is a text of another trace, or the manifest was changed; record it again")
        if (found.set, found.prompt) != (set_name, prompt):
            raise ValueError(f"'{file}' is prompt {found.prompt} of the set '{found.set}'; a file was put in its place")
        vocab_size = self["target"]["vocab_size"]
        if found.ids.min() < 0 or found.ids.max() >= vocab_size:
            raise ValueError(f"'{file}' holds tokens outside the vocabulary, 0 to {vocab_size - 1}")
        if (found.rows is None) != self["drafter"]["reads_texts"]:
            raise ValueError(f"'{file}' does not fit the trace's drafter, '{self['drafter']['spec']}'")
        return found

    def limit(self, text: TextTrace) -> int:
        """The most new tokens that a text could have had."""
        # one that is over for its length was as long as it could be, which the context may have decided
        return text.positions if text.finish_reason == "length" else int(self["settings"]["max_new_tokens"])

    def __iter__(self) -> Iterator[TextTrace]:
        return (self.text(*one) for one in self.texts())

    def save(self, text: TextTrace, laws: KeptLaws | None = None) -> int:
        """Put a text in its place, with its whole laws where there are such; returns its size in bytes.

        Raises:
            OSError: if it cannot be written; nothing is left then.
        """
        file = self.file(text.set, text.prompt)
        file.parent.mkdir(exist_ok=True)
        return write_whole_parts(file, text.parts(self.fingerprint, laws), UNFINISHED)


def read_trace(folder: Path) -> Trace:
    """Open a folder that `talon trace record` has made.

    Raises:
        ValueError: if it is none, or of another version.
    """
    found = find_trace(folder)
    if found is None:
        raise ValueError(f"there is no {MANIFEST} in '{folder}'; give a folder of talon trace record")
    return found


def check_not_of_trace(path: Path, called: str, folder: Path) -> None:
    """Refuse a trace's manifest for what is found on it, by `ValueError`; see `check_spared`."""
    check_spared(path, called, folder, [MANIFEST], "the trace")


def find_trace(folder: Path) -> Trace | None:
    """The trace in a folder; None if there is no such folder or nothing is in it.

    Raises:
        ValueError: if something else is there.
    """
    file = folder / MANIFEST
    if not file.exists():
        if folder.exists() and (not folder.is_dir() or not is_unused(folder)):
            raise ValueError(f"'{folder}' is no folder of talon trace record: it has no {MANIFEST}; give another one")
        return None
    try:
        return Trace(folder, _manifest(records.parsed(small_text(file))))
    except ValueError as error:
        raise ValueError(f"'{file}' is no manifest of talon trace record: {error}") from error


def _manifest(data: Any) -> dict[str, Any]:
    manifest = records.of_kind(data, KIND, FORMAT)
    for part, readers in READERS.items():
        if manifest.get(part) is None:
            raise ValueError(f"'{part}' is missing")
        try:
            records.holding(readers)(manifest[part])
        except ValueError as error:
            raise ValueError(f"'{part}' {error}") from None
    for one in manifest["settings"]["sets"]:
        for name, read in (("name", records.words), ("prompts", records.whole)):
            try:
                read(one.get(name))
            except ValueError as error:
                raise ValueError(f"'{name}' of a set {error}") from None
    names = [one["name"] for one in manifest["settings"]["sets"]]
    if len(set(names)) < len(names):
        raise ValueError(f"'sets' names one twice: {', '.join(names)}")
    for name in ("width", "depth", "nodes", "max_new_tokens"):
        if manifest["settings"][name] < 1:
            raise ValueError(f"'{name}' in 'settings' is {data['settings'][name]}; it must be at least 1")
    if not isinstance(manifest.get("sessions"), list) or not isinstance(manifest.get("environment"), dict):
        raise ValueError("'sessions' or 'environment' is missing")  # noqa: TRY004 - as for all that a manifest lacks
    return manifest


def write_manifest(trace: Trace) -> None:
    """Write what a trace says of itself."""
    text = json.dumps({"kind": KIND, "format": FORMAT, **trace.manifest}, ensure_ascii=False, indent=2)
    write_whole(trace.folder / MANIFEST, text + "\n", UNFINISHED)
