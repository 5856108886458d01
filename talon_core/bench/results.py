"""The folder of a run: `manifest.json` says what was measured and where, `results.jsonl` has a line per measurement."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs

from talon_core.basics import records
from talon_core.basics.paths import (
    LOCK,
    UNFINISHED,
    about,
    check_spared,
    is_unused,
    remove_unfinished,
    small_text,
    write_whole,
)
from talon_core.basics.processors import of_earlier
from talon_core.bench.measurement import Measurement
from talon_core.bench.rounds import ROUNDS
from talon_core.errors import written
from talon_core.rule import CLAIMED, MEASURED

MANIFEST = "manifest.json"
RESULTS = "results.jsonl"
OWN = (MANIFEST, RESULTS, ROUNDS, LOCK)
"""What a run writes into its folder."""
FORMAT = 1
"""Of the manifest and of the lines; another number is another form."""


@attrs.frozen
class Results:
    """What a folder holds.

    Attributes:
        folder: where.
        manifest: its `format`, `settings`, `environment` and `sessions`.
        measurements: in the order in which they were made.
        unfinished: how many lines at the end were left out, because the writing was interrupted there.
    """

    folder: Path
    manifest: Mapping[str, Any]
    measurements: Sequence[Measurement]
    unfinished: int = 0


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """A folder's manifest, None if there is no such folder or nothing is in it.

    Raises:
        ValueError: if the folder is no folder of `talon bench run`.
    """
    file = folder / MANIFEST
    if not file.exists():
        if folder.is_dir() and is_unused(folder):
            return None
        if folder.exists():
            raise ValueError(f"'{folder}' is no folder of talon bench run: it has no {MANIFEST}; give another one")
        return None
    try:
        manifest = _manifest(records.parsed(small_text(file)))
    except ValueError as error:
        raise ValueError(f"'{file}' is no manifest of talon bench run: {error}") from error
    for method in manifest["settings"]["methods"]:
        method.setdefault("lossless", True)  # a folder from before there were lossy rules
    manifest["settings"].setdefault("rounds", False)  # a folder from before they could be kept
    return manifest


def _manifest(data: Any) -> dict[str, Any]:
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        found = data.get("format") if isinstance(data, dict) else data
        raise ValueError(f"it has format {written(found)}; this version reads format {FORMAT}")
    settings = _part(data, "settings", records.dictionary)
    _part({"peers": {}, **_part(data, "environment", records.dictionary)}, "peers", records.table(records.dictionary))
    _part(data, "sessions", records.dictionaries)
    _part(settings, "temperature", records.amount)
    for name, texts in (("methods", ("name",)), ("sets", ("name", "sha256"))):
        if not _part(settings, name, records.dictionaries):
            raise ValueError(f"'{name}' is empty; it must name at least one")
        for each in settings[name]:
            for text in texts:
                _part(each, text, records.words)
    for method in settings["methods"]:
        _part({"lossless": True, **method}, "lossless", records.one_of(True, False, CLAIMED, MEASURED))
    return data


def _part(of: Mapping[str, Any], name: str, read: records.Reader) -> Any:
    if name not in of:
        raise ValueError(f"'{name}' is missing")
    try:
        return read(of[name])
    except ValueError as error:
        raise ValueError(f"'{name}' {error}") from None


def read_results(folder: Path) -> Results:
    """Everything in a folder; units that some method has not decoded, at the end, are left out.

    Raises:
        ValueError: if it is no folder of a run, or a line before the last is no measurement of it, or there twice.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        raise ValueError(f"there is no {MANIFEST} in '{folder}'; give a folder of talon bench run")
    file = folder / RESULTS
    # not splitlines: a name may hold line separators that are no line ends
    if file.exists() and not file.is_file():
        raise ValueError(f"'{file}' is no file; the measurements of a run must be there")
    lines = file.read_text(encoding="utf-8", errors="replace").split("\n") if file.exists() else [""]
    cut = lines.pop()  # nothing, if the last line has its end
    methods = [method["name"] for method in manifest["settings"]["methods"]]
    sets = [one["name"] for one in manifest["settings"]["sets"]]
    measurements: list[Measurement] = []
    seen: set[Any] = set()
    for number, line in enumerate(lines, start=1):
        measurement = Measurement.parse(line, f"line {number} of '{file}'")
        if measurement.method not in methods:
            raise ValueError(
                f"line {number} of '{file}' measures '{measurement.method}', which is no method of the run; "
                f"there are: {', '.join(methods)}"
            )
        if measurement.set not in sets:
            raise ValueError(
                f"line {number} of '{file}' is of the set '{measurement.set}', which is no set of the run; "
                f"there are: {', '.join(map(repr, sets))}"
            )
        if (measurement.unit, measurement.method) in seen:
            raise ValueError(
                f"line {number} of '{file}' measures '{measurement.method}' on {measurement.unit.said} again; each "
                "line must be there once"
            )
        seen.add((measurement.unit, measurement.method))
        measurements.append(measurement)
    counts = Counter(measurement.unit for measurement in measurements)
    whole = [measurement for measurement in measurements if counts[measurement.unit] == len(methods)]
    unfinished = len(measurements) - len(whole) + bool(cut)
    return Results(folder, manifest, whole, unfinished)


def check_not_of_run(path: Path, called: str, folder: Path) -> None:
    """Refuse a file of a run for what is said of it, by `ValueError`; see `check_spared`."""
    check_spared(path, called, folder, OWN, "the run")


def check_settings(folder: Path, manifest: Mapping[str, Any], part: str, now: Mapping[str, Any]) -> None:
    """Refuse to mix measurements that are not made alike.

    Args:
        folder: of the run.
        manifest: what was measured there.
        part: "settings" or "environment".
        now: what is to be measured.

    Raises:
        ValueError: if they differ; the sentence names each difference.
    """
    before, now = _measured(manifest[part]), _measured(now)
    differing = [key for key in {**before, **now} if before.get(key) != now.get(key)]
    if differing:
        told = "; ".join(
            f"{key} was {_shown(before.get(key))}{of_earlier(before.get(key), now.get(key))} and is "
            f"{_shown(now.get(key))}"
            for key in differing
        )
        raise ValueError(f"the run in '{folder}' was made with other {part}, give another folder: {told}")


def _measured(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without what is only said of methods: one may be certified in the middle of a run."""
    said = {**settings}
    if "methods" in said:
        said["methods"] = [{key: own for key, own in each.items() if key != "lossless"} for each in said["methods"]]
    return said


def _shown(value: Any) -> str:
    """A setting in a sentence; methods and sets by their names."""
    if isinstance(value, list) and value and all(isinstance(each, dict) and "name" in each for each in value):
        brief = [f"{each['name']}" + _counted(each) for each in value]
        return f"[{', '.join(brief)}]"
    return json.dumps(value, ensure_ascii=False)


def _counted(each: Mapping[str, Any]) -> str:
    if "sha256" not in each:
        return ""
    return f" ({each['prompts']} of {each['total']} prompts, sha256 {each['sha256'][:8]})"


def open_folder(
    folder: Path, settings: Mapping[str, Any], environment: Mapping[str, Any], session: Mapping[str, Any]
) -> Results:
    """Make a folder, or go on with one: what is unfinished at its end is taken away.

    Args:
        folder: is made if it is not there.
        settings: what is measured.
        environment: where it is measured.
        session: what may differ each time a run is taken up: when, and at which commit.

    Raises:
        ValueError: if the folder has another run, or something else.
    """
    manifest = read_manifest(folder)
    if manifest is None:
        folder.mkdir(parents=True, exist_ok=True)
        manifest = {"format": FORMAT, "settings": settings, "environment": environment, "sessions": []}
        found = Results(folder, manifest, [])
    else:
        check_settings(folder, manifest, "settings", settings)
        check_settings(folder, manifest, "environment", environment)
        found = read_results(folder)
    remove_unfinished(folder)
    manifest = {**found.manifest, "sessions": [*found.manifest["sessions"], session]}
    if found.unfinished:
        write_whole(folder / RESULTS, "".join(measurement.line() for measurement in found.measurements), UNFINISHED)
    write_whole(folder / MANIFEST, json.dumps(manifest, ensure_ascii=False, indent=2) + "\n", UNFINISHED)
    return attrs.evolve(found, manifest=manifest)


def append(folder: Path, measurements: Iterable[Measurement]) -> None:
    """Add the lines of a unit, all methods at once."""
    file = folder / RESULTS
    with about(file), file.open("a", encoding="utf-8", newline="\n") as opened:
        opened.write("".join(measurement.line() for measurement in measurements))
