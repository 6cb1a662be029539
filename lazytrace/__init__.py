"""Traces Triton kernel launches with their arguments, also inside CUDA graph capture."""

from lazytrace._api import (
    coverage,
    disable,
    enable,
    flush,
    mark,
    name_graph,
    paused,
    problems,
    records,
    trace,
)
from lazytrace._version import __version__
from lazytrace.config import Ignore
from lazytrace.errors import (
    AlreadyEnabledError,
    DanglingInputError,
    InternalError,
    LazytraceError,
    MissingDependencyError,
    NewerSchemaError,
    NotATraceError,
    NotEnabledError,
    OptionError,
    OutputError,
    TraceError,
)
from lazytrace.problems import Problem
from lazytrace.reader import Trace, read
from lazytrace.records import Coverage, FlushResult, LaunchRecord

__all__ = [
    "AlreadyEnabledError",
    "Coverage",
    "DanglingInputError",
    "FlushResult",
    "Ignore",
    "InternalError",
    "LaunchRecord",
    "LazytraceError",
    "MissingDependencyError",
    "NewerSchemaError",
    "NotATraceError",
    "NotEnabledError",
    "OptionError",
    "OutputError",
    "Problem",
    "Trace",
    "TraceError",
    "__version__",
    "coverage",
    "disable",
    "enable",
    "flush",
    "mark",
    "name_graph",
    "paused",
    "problems",
    "read",
    "records",
    "trace",
]
