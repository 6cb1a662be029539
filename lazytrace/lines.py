"""The lines of a trace: what was seen, normalised, each line joined to others by id.

A later line of the same id replaces an earlier one (a run that grew, a capture that was
replayed); a later ``values`` line replaces the paths it names.
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from lazytrace.problems import Problem
from lazytrace.records import (
    Arg,
    ArgState,
    CaptureState,
    Frame,
    KernelInfo,
    Outcome,
    Phase,
    Reading,
    Session,
)

SCHEMA_VERSION = 1
BLOBS_SUFFIX = ".blobs"  # of the folder, beside the file, with the tensors' bytes
MAX_DEPTH = 32  # values and arguments nested deeper cannot be written


@attrs.frozen
class KernelLine:
    """A compiled kernel under the id that launches name."""

    id: int
    kernel: KernelInfo


@attrs.frozen
class ArgsLine:
    """A set of argument descriptions, shared by every launch that passed them."""

    id: int
    args: Mapping[str, Arg]


@attrs.frozen
class CaptureLine:
    """A CUDA graph capture. ``graph_storages``: the storages that lie in the graph's own pool.

    ``graph_storages`` is None where the pool could not be asked; ``replays`` counts replays so
    far, ``replays_read`` those after which values were read.
    """

    id: int
    graph: int
    name: str | None
    epoch: int
    cuda_id: int | None
    stream: int
    device: int
    thread: int
    time_ns: int
    state: CaptureState
    launches: int
    replays: int = 0
    replays_read: int = 0
    graph_storages: tuple[int, ...] | None = None


@attrs.frozen
class LaunchLine:
    """A run of launches. ``values`` is what its tensor arguments' values are until a reading."""

    id: int
    kernel: int
    args: int
    grid: tuple[int, int, int]
    outcome: Outcome
    stream: int
    device: int
    thread: int
    time_ns: int
    count: int
    phase: Phase
    mark: str | None
    capture: int | None
    index: int | None
    values: ArgState
    reason: str | None = None
    call_site: tuple[Frame, ...] | None = None


@attrs.frozen
class ValuesLine:
    """Readings by argument path, valid for every run named in ``launches``."""

    launches: tuple[int, ...]
    readings: Mapping[str, Reading]


@attrs.frozen
class ProblemLine:
    """A problem, as soon as it is known."""

    problem: Problem


@attrs.frozen
class EndLine:
    """The tracer was closed: its counters."""

    time_ns: int
    launches: int
    replays: int
    unseen_launches: int = 0
    dropped: Mapping[str, int] = attrs.field(factory=dict)
    errors: Mapping[str, int] = attrs.field(factory=dict)


Line = (
    Session | KernelLine | ArgsLine | CaptureLine | LaunchLine | ValuesLine | ProblemLine | EndLine
)
