"""Plugins that tests install: a distribution of one module in a folder."""

from pathlib import Path


def install(folder: Path, name: str, source: str) -> None:
    """Write a module and the record of its installation; the folder has to be on `sys.path`.

    Args:
        folder: where.
        name: of the module and of the distribution.
        source: the module's text.
    """
    record = folder / f"{name}-1.0.dist-info"
    record.mkdir()
    (folder / f"{name}.py").write_text(source)
    (record / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (record / "entry_points.txt").write_text(f"[talon]\n{name} = {name}\n")
