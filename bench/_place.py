"""Where a script runs, a GPU or the simulator, and the honest line about it."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager

import attrs
import torch
import triton

import lazytrace
from lazytrace.testing import simulate


@attrs.frozen
class Place:
    """A device to measure on: ``device`` is for tensors, ``gpu`` its name or None if simulated."""

    device: str
    gpu: str | None

    @property
    def sentence(self) -> str:
        """The machine and the versions, and what the figures are of."""
        versions = (
            f"lazytrace {lazytrace.__version__}, Python {platform.python_version()}, "
            f"torch {torch.__version__}, Triton {triton.__version__}"
        )
        host = f"{os.cpu_count()} CPU cores ({platform.machine()})"
        if self.gpu is None:
            return (
                f"SIMULATOR, no GPU: host cost only, kernels do not run and device times are "
                f"virtual. {host}. {versions}."
            )
        return f"{self.gpu}, {host}. {versions}."


def has_gpu() -> bool:
    """Whether a CUDA device can be used."""
    return torch.version.cuda is not None and torch.cuda.is_available()


@contextmanager
def place(kernel_ms: float = 1.0) -> Iterator[Place]:
    """The GPU, or the simulator with kernels that take ``kernel_ms`` of its virtual clock."""
    if has_gpu():
        yield Place("cuda", torch.cuda.get_device_name())
        return
    with simulate(execute=False, kernel_ms=kernel_ms):
        yield Place("cpu", None)
