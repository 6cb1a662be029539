"""The functions of the package: each asks the tracer that is active, or was last."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from lazytrace.config import Ignore, Options, make_options
from lazytrace.errors import AlreadyEnabledError, MissingDependencyError, NotEnabledError
from lazytrace.problems import Problem
from lazytrace.records import Coverage, FlushResult, LaunchRecord

if TYPE_CHECKING:
    from lazytrace._tracer import Active, Tracer


def _active() -> Active:
    """The process-wide holder; imported late, because it brings torch and triton along."""
    for package in ("torch", "triton"):
        if importlib.util.find_spec(package) is None:
            raise MissingDependencyError(
                f"lazytrace traces Triton kernels, and {package} is not installed: "
                'pip install "lazytrace[torch]", or the build of it that you use'
            )
    from lazytrace._process import ACTIVE

    return ACTIVE


def enable(
    out: str | os.PathLike[str] | None = None,
    *,
    values: str = "deferred",
    flush_at: str = "sync",
    kernels: str | Iterable[str] | None = None,
    exclude: str | Iterable[str] | None = None,
    eager_samples: int | None = 2,
    trial_values: bool = False,
    max_read_bytes: int = 1 << 30,
    stacks: bool = False,
    ir: bool = False,
    save_tensors: int = 0,
    ignore: Ignore | Iterable[Ignore] | None = None,
    on_problem: str = "record",
    max_pending: int = 1_000_000,
    max_records: int = 100_000,
    max_file_bytes: int | None = None,
) -> Tracer:
    """Starts recording every Triton launch of this process, and returns the tracer.

    ``out``: None keeps the trace in memory; a directory gets one file per process; a path that
    ends in ``.ndjson`` is that file, which must not exist. ``values``: ``"deferred"`` reads tensor
    statistics later, ``"off"`` never. ``flush_at``: ``"sync"`` reads after the program's own
    synchronisations, ``"replay"`` inside the first replay (timings are then invalid), ``"exit"``
    only on request and at exit. ``kernels`` and ``exclude`` are fnmatch patterns on kernel names.
    ``eager_samples``: of how many eager launches of each compiled kernel values are read (None:
    all). ``trial_values``: also those of autotune trials. ``max_read_bytes``: per flush.
    ``stacks``: keep call sites. ``ir``: keep TTIR to PTX. ``save_tensors``: how many bytes of each
    tensor that is read are kept, in the folder ``TRACE.blobs`` beside the file (which it needs):
    the first ones, row-major, at most 64 MiB for each kernel and 1 GiB in all; ``Trace.blob``
    gives them back. ``ignore``: NaN and infinity that are no problem. ``on_problem``: ``"record"``
    or ``"warn"``. ``max_pending``, ``max_records`` (runs) and ``max_file_bytes`` bound memory and
    file; what is dropped is counted.

    Called again with equal options it returns the active tracer. Raises OptionError,
    AlreadyEnabledError (other options), OutputError, MissingDependencyError.
    """
    given = dict(locals())
    options = make_options(given.pop("out"), given)
    return _start(options, again=True)


def _start(options: Options, *, again: bool) -> Tracer:
    active = _active()
    running = active.tracer
    if running is not None and running.enabled:
        if again and running.options == options:
            return running
        raise AlreadyEnabledError(
            "a tracer is active already"
            + (" with other options" if again else "")
            + ": disable() it first"
        )
    from lazytrace._tracer import Tracer

    active.watch_forks()
    active.tracer = Tracer.start(options)
    return active.tracer


def _tracer() -> Tracer:
    tracer = _active().tracer
    if tracer is None:
        raise NotEnabledError
    return tracer


def disable() -> None:
    """Ends the active tracer's trace; does nothing if none is active.

    Raises NotEnabledError before any enable().
    """
    _tracer().disable()


def records(
    kernel: str | Iterable[str] | None = None,
    *,
    captured: bool | None = None,
    expand: bool = False,
) -> list[LaunchRecord]:
    """The launches so far, oldest first; see ``Tracer.records``."""
    return _tracer().records(kernel, captured=captured, expand=expand)


def problems() -> list[Problem]:
    """What is wrong with the program as far as it was seen; see ``Tracer.problems``."""
    return _tracer().problems()


def coverage() -> Coverage:
    """How much of what ran was looked at; see ``Tracer.coverage``."""
    return _tracer().coverage()


def flush(*, wait: bool = False, again: bool = False) -> FlushResult:
    """Reads what is due; see ``Tracer.flush``."""
    return _tracer().flush(wait=wait, again=again)


@contextmanager
def trace(out: str | os.PathLike[str] | None = None, **options: Any) -> Iterator[Tracer]:
    """Traces a block; the options are those of ``enable``. Never joins an active tracer."""
    tracer = _start(make_options(out, options), again=False)
    try:
        yield tracer
    finally:
        tracer.disable()


@contextmanager
def paused() -> Iterator[None]:
    """Nothing is recorded in the block, on any thread."""
    tracer = _active().tracer
    with nullcontext() if tracer is None else tracer.paused():
        yield


def mark(label: str | None) -> None:
    """Labels the launches that follow; None ends it."""
    _tracer().mark(label)


def name_graph(graph: Any, name: str) -> None:
    """Names a CUDA graph in the records of its launches."""
    _tracer().name_graph(graph, name)
