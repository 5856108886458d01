"""What computes: processors, and on how many threads."""

import shutil
import subprocess
from typing import Any

import torch

from talon_core.basics.processors import processor_name


def describe_machine() -> dict[str, Any]:
    """What computes: names of processors, CUDA's version, and on how many threads."""
    return {"cpu": processor_name(), "gpu": _gpus(), "cuda": torch.version.cuda, "threads": torch.get_num_threads()}


def _gpus() -> list[str]:
    """Name, driver and highest clock of each GPU, as far as there are tools to ask."""
    if not torch.cuda.is_available():
        return []
    fields = "--query-gpu=name,driver_version,clocks.max.sm"
    tool = shutil.which("nvidia-smi")
    if tool is not None:
        done = subprocess.run([tool, fields, "--format=csv,noheader"], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return [line.strip() for line in done.stdout.splitlines()]
    return [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
