"""`talon doctor`: whether this machine can run TALON, and with what."""

import os
import platform
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from talon_core.basics.processors import processor_name
from talon_core.cli import options as opts
from talon_core.cli.drafter_check import drafter_rows, means_files, measured_drafter, named_drafter
from talon_core.cli.kept_schedules import kept_schedules, row_of, told
from talon_core.cli.listing import list_models
from talon_core.cli.output import print_json, stdout
from talon_core.cli.passes_check import target_passes
from talon_core.defaults import DEFAULT_DRAFTER, DEFAULT_MODEL, DEFAULT_POLICY
from talon_core.errors import PluginError
from talon_core.plugins.backends import choose_attention, made_and_why_not
from talon_core.plugins.chosen import chosen_schedule
from talon_core.plugins.parts import Parts, resolve
from talon_core.plugins.registry import Registry, load_registry

if TYPE_CHECKING:
    from talon_core.cli.session import Session

PACKAGES = ("talon-core", "torch", "transformers", "tokenizers", "safetensors", "numpy", "triton")
OPTIONAL = ("triton",)

SECONDS_TO_ANSWER = 20.0
"""For a compiler that is asked for its version."""

WIDEST = 36
"""Letters of what a row is about, on one line: the path of a model may have many more."""

TOKENS_TRIED = 12
"""Of a text that shows whether passes are recorded."""


def doctor(
    model: Annotated[str | None, typer.Option(help="Load this model too, and say what would run it.")] = None,
    drafter: Annotated[
        str | None,
        typer.Option(
            help="Open this drafter for the model too, and say what it is, how often it guesses right, and whether "
            "drafting while the target verifies can pay: a spec, or the folder or Hugging Face id of a published one."
        ),
    ] = None,
    trust_remote_code: opts.TrustRemoteCode = False,
    as_json: opts.Json = False,
) -> None:
    """Look at this machine: versions, devices, plugins, kernels, models.

    The exit status is 0 if everything is there, or can be fetched, that the default model or the one of --model needs;
    1 if something of it is broken or missing, a drafter of --drafter among it; 2 for bad input; 130 after Ctrl-C.
    """
    report = examine(model, drafter, trust_remote_code)
    if as_json:
        print_json(report)
    else:
        _show(stdout(), report)
    raise typer.Exit(0 if report["ok"] else 1)


def examine(model: str | None = None, drafter: str | None = None, trust_remote_code: bool = False) -> dict[str, Any]:
    """Everything `talon doctor` reports; `problems` holds one sentence for each thing that is needed and broken.

    Args:
        model: a model to load.
        drafter: a drafter to open for it, or for the default model.
        trust_remote_code: run code that the model's folder brings.

    Raises:
        LookupError: for a drafter's name that there is not.
        ValueError: for a bad option of it.
    """
    problems: list[str] = []
    wanted = model if model is not None or drafter is None else DEFAULT_MODEL
    registry = load_registry()
    if drafter is not None and not means_files(drafter, registry):
        with suppress(PluginError):  # a drafter that is broken is a problem, and told below
            named_drafter(drafter, registry)
    packages = _packages(problems)
    devices = _devices() if packages["torch"] is not None else []
    report: dict[str, Any] = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": packages,
        "devices": devices,
        "compiler": _compiler(),
        "attention": _availability(registry, "attention backend", devices),
        "accelerators": _availability(registry, "accelerator", devices),
        "measured": _measured(registry, devices, problems),
        "plugins": sorted(registry.plugins),
        "failures": dict(registry.failures),
        "schedule": _schedule(registry, problems),
        "cache": _cache(DEFAULT_MODEL if wanted is None else None, problems),
        "models": [{key: each[key] for key in ("name", "state", "path")} for each in list_models()],
        "stdout_is_terminal": sys.__stdout__ is not None and sys.__stdout__.isatty(),
    }
    _attempt(problems, "the default parts cannot be made", lambda: resolve(Parts(), registry))
    if devices:
        _attempt(problems, "no attention backend can run", lambda: _default_attention(registry, devices))
    session = _session(wanted, trust_remote_code, problems) if wanted is not None else None
    report["model"] = _model(session, registry, problems) if session is not None else None
    report["schedules"] = _kept_schedules(registry, session, report["model"], problems)
    usable = session if report["model"] is not None else None
    report["drafter"] = _drafter(drafter, usable, registry, problems) if drafter is not None else None
    report["problems"] = problems
    report["ok"] = not problems
    return report


def _attempt(problems: list[str], what: str, do: Callable[[], object]) -> None:
    try:
        do()
    except Exception as error:  # a doctor reports whatever is wrong, and goes on
        problems.append(f"{what}: {error}")


def _packages(problems: list[str]) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = None
            if package not in OPTIONAL:
                problems.append(f"the package {package} is not installed")
    if found["torch"] is not None:
        _attempt(problems, "torch cannot be imported", lambda: __import__("torch"))
    return found


def _devices() -> list[dict[str, Any]]:
    try:
        import torch
    except Exception:  # already among the problems
        return []
    devices: list[dict[str, Any]] = [
        {"name": "cpu", "description": processor_name(), "threads": torch.get_num_threads()}
    ]
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            memory = torch.cuda.get_device_properties(index).total_memory
            devices.append(
                {"name": f"cuda:{index}", "description": torch.cuda.get_device_name(index), "memory_bytes": memory}
            )
    return devices


def _default_attention(registry: Registry, devices: list[dict[str, Any]]) -> object:
    import torch

    return choose_attention(registry, None, torch.device(devices[-1]["name"]), torch.float32)


def _compiler() -> dict[str, str | None]:
    """The C compiler that native kernels are built with; of one that is asked for by `CC` and cannot be used, why."""
    chosen = os.environ.get("CC", "").strip()
    try:
        commands = [shlex.split(chosen)] if chosen else [["cc"], ["gcc"], ["clang"]]
    except ValueError as error:
        return {"path": None, "version": None, "fault": f"CC={chosen} is no command ({error})"}
    for command in commands:
        path = shutil.which(command[0])
        if path is not None:
            return {"path": path, **_version([path, *command[1:]])}
    return {"path": None, "version": None, "fault": f"CC={chosen} names no program" if chosen else None}


def _version(compiler: list[str]) -> dict[str, str | None]:
    asked = [*compiler, "--version"]
    try:
        done = subprocess.run(
            asked, stdin=subprocess.DEVNULL, capture_output=True, timeout=SECONDS_TO_ANSWER, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {"version": None, "fault": str(error)}
    return {"version": (done.stdout.decode(errors="replace").strip().splitlines() or [""])[0], "fault": None}


def _availability(registry: Registry, kind: str, devices: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For everything of a kind and each sort of device, None if it can run there, or why it cannot."""
    if not devices:
        return []
    import torch

    answer = []
    for name in registry.names(kind):
        registered = registry.get(kind, name)
        unavailable: dict[str, str | None] = {}
        for device in devices[:2]:  # the CPU, and the first of the others, which are all alike
            try:
                _, why = made_and_why_not(kind, registered.cls, torch.device(device["name"]), torch.float32)
            except PluginError as error:
                why = str(error)
            unavailable[device["name"]] = why
        answer.append({"name": name, "plugin": registered.plugin, "unavailable": unavailable})
    return answer


def _measured(registry: Registry, devices: list[dict[str, Any]], problems: list[str]) -> dict[str, dict[str, str]]:
    """What accelerators that are taken by themselves measure on the CPU, by their names."""
    found: dict[str, dict[str, str]] = {}
    if not devices:
        return found
    import torch

    for name in registry.names("accelerator"):
        cls: Any = registry.get("accelerator", name).cls
        if not cls.automatic:
            continue

        def measure(name: str = name, cls: Any = cls) -> None:
            made, why = made_and_why_not("accelerator", cls, torch.device("cpu"), torch.float32)
            figures = made.measured() if why is None else {}
            if figures:
                found[name] = dict(figures)

        _attempt(problems, f"accelerator '{name}' cannot be measured", measure)
    return found


def _schedule(registry: Registry, problems: list[str]) -> dict[str, Any]:
    """The schedule that the default policy is decoded with where none is named, and why."""
    found: dict[str, Any] = dict.fromkeys(("schedule", "draft_on", "why"))

    def choose() -> None:
        found.update(told(chosen_schedule(DEFAULT_POLICY, DEFAULT_DRAFTER, registry), registry))

    _attempt(problems, "no schedule can be chosen", choose)
    return found


def _kept_schedules(
    registry: Registry, session: "Session | None", model: Mapping[str, Any] | None, problems: list[str]
) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    _attempt(
        problems, "kept schedules cannot be looked at", lambda: found.extend(kept_schedules(registry, session, model))
    )
    return found


def _cache(needed: str | None, problems: list[str]) -> dict[str, Any]:
    """Where fetched models and built kernels are kept.

    A cache that cannot be written to, or has no room, is broken only if a model that is needed has to go there: what is
    there already is read, and kernels are built in the temporary folder then.

    Args:
        needed: an embedded model that must be there, or fit; a model that is loaded besides tells of itself.
        problems: gets a sentence if it cannot be had.
    """
    from talon_core.basics.paths import cache_folder
    from talon_core.models import MODELS, is_cached

    folder = cache_folder()
    existing = next((each for each in (folder, *folder.parents) if os.path.exists(each)), Path("/"))
    writable = existing.is_dir() and os.access(existing, os.W_OK)
    free = shutil.disk_usage(existing).free
    if needed is not None and not is_cached(needed):
        missing, room = f"model '{needed}' is not here, and cannot be fetched", MODELS[needed].room_needed
        if not writable:
            problems.append(
                f"{missing}: the cache folder '{folder}' cannot be written to; set TALON_CACHE to one that can"
            )
        elif free < room:
            problems.append(
                f"{missing}: it needs {room / 1e6:.0f} MB while it is converted, and '{folder}' has "
                f"{free / 1e6:.0f} MB free; make room, or set TALON_CACHE to a folder on a larger disk"
            )
    return {"path": str(folder), "writable": writable, "free_bytes": free}


def _session(name: str, trust_remote_code: bool, problems: list[str]) -> "Session | None":
    from talon_core.cli.session import open_session

    try:
        return open_session(name, trust_remote_code=trust_remote_code)
    except Exception as error:  # likewise
        problems.append(f"model '{name}' cannot be used: {error}")
        return None


def _model(session: "Session", registry: Registry, problems: list[str]) -> dict[str, Any] | None:
    """What would run a model."""
    from talon_core.hf.checks import devices_of

    try:
        decoder = session.decoder(resolve(Parts(policy=None), registry))
        target = decoder.target
        decoder.generate(np.zeros(2, dtype=np.int64), max_new_tokens=TOKENS_TRIED)
    except Exception as error:
        problems.append(f"model '{session.name}' cannot be used: {error}")
        return None
    accelerator = getattr(target, "accelerator", None)
    return {
        "name": session.name,
        "class": type(session.model).__name__,
        "device": ", ".join(map(str, devices_of(session.model))),
        "dtype": str(session.model.dtype).removeprefix("torch."),
        "weight_bits": target.weight_bits,
        "weights": _weights(session),
        "context_length": target.context_length,
        "vocab_size": target.vocab_size,
        "attention": getattr(getattr(target, "attention", None), "name", None),
        "accelerator": accelerator.name if accelerator is not None else None,
        "passes": target_passes(target),
    }


def _weights(session: "Session") -> str | None:
    """How much of a model from a GGUF file is in the file's blocks; None for another model."""
    from talon_core.models import resolve as path_of
    from talon_core.models.gguf_model import GgufModel
    from talon_core.runtime.blocks import Held

    return str(Held.by(session.model)) if GgufModel.at(Path(path_of(session.name))) is not None else None


def _drafter(given: str, session: "Session | None", registry: Registry, problems: list[str]) -> dict[str, Any] | None:
    """What a drafter is, and how often it guesses right; None if it, or the model, cannot be used."""
    try:
        spec = named_drafter(given, registry)
        return measured_drafter(spec, session, registry) if session is not None else None
    except Exception as error:
        problems.append(f"drafter '{given}' cannot be used: {error}")
        return None


def _show(console: Console, report: Mapping[str, Any]) -> None:
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    table.add_column(style="bold", overflow="fold", max_width=WIDEST)
    table.add_column()
    for what, found in _rows(report):
        table.add_row(Text(what), Text(found))
    console.print(table)
    console.print()
    for problem in report["problems"]:
        console.print(Text(f"broken: {problem}", style="bold red"))
    if report["ok"]:
        console.print(Text("everything that is needed is there", style="bold green"))


def _rows(report: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = [("python", f"{report['python']} on {report['platform']}")]
    rows += [(package, found or "not installed") for package, found in report["packages"].items()]
    for device in report["devices"]:
        threads = device.get("threads")
        size = f"{device['memory_bytes'] / 1e9:.0f} GB" if threads is None else f"{threads} thread{'s' * (threads > 1)}"
        rows.append((device["name"], f"{device['description']}, {size}"))
    compiler = report["compiler"]
    found = f"{compiler['path']}: {compiler['version'] or ''}" if compiler["path"] else "none"
    rows.append(("compiler", f"{found} ({compiler['fault']})" if compiler["fault"] else found))
    for kind in ("attention", "accelerators"):
        for each in report[kind]:
            where = "; ".join(f"{device}: {why or 'can run'}" for device, why in each["unavailable"].items())
            rows.append((f"{kind.removesuffix('s')} {each['name']}", where))
        if not report[kind]:
            rows.append((kind, "none is registered"))
    for name, figures in report["measured"].items():
        rows += [(f"{name}: {what}", figure) for what, figure in figures.items()]
    rows += [(f"plugin {plugin}", report["failures"].get(plugin, "loaded")) for plugin in report["plugins"]]
    rows += [(part, why) for part, why in report["failures"].items() if part not in report["plugins"]]
    cache = report["cache"]
    how = "" if cache["writable"] else ", read only"
    rows.append(("cache", f"{cache['path']}, {cache['free_bytes'] / 1e9:.1f} GB free{how}"))
    schedule = report["schedule"]
    if schedule["schedule"] is not None:
        rows.append(("schedule", row_of(schedule)))
    for each in report["schedules"]:
        rows.append((f"schedule of {each['preset']}", row_of(each)))
    rows += [(f"model {each['name']}", each["state"]) for each in report["models"]]
    rows.append(("stdout", "a terminal" if report["stdout_is_terminal"] else "no terminal"))
    if report["model"] is not None:
        rows += [
            (f"{report['model']['name']}: {key}", str(value))
            for key, value in report["model"].items()
            if key != "name" and value is not None  # which says nothing of this model
        ]
    if report["drafter"] is not None:
        rows += drafter_rows(report["drafter"])
    return rows
