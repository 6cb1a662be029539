"""The exceptions that lazytrace raises.

::

    LazytraceError
    ├── OptionError (ValueError)             an option of enable() has no such meaning
    ├── AlreadyEnabledError                  a tracer with other options is active
    ├── NotEnabledError                      nothing was traced yet
    ├── OutputError (OSError)                the trace file cannot be created or written
    ├── MissingDependencyError (ImportError) an extra of lazytrace is not installed
    ├── DanglingInputError                   a graph is about to read freed memory
    ├── TraceError                           a trace cannot be read
    │   ├── NotATraceError                   the file is not a lazytrace trace
    │   └── NewerSchemaError                 the file was written by a newer lazytrace
    └── InternalError                        a fault of lazytrace itself
"""

from __future__ import annotations


class LazytraceError(Exception):
    """Base class of everything that lazytrace raises on purpose."""


class OptionError(LazytraceError, ValueError):
    """An option has no such value.

    ``option`` is the option's name, ``value`` what was given.
    """

    def __init__(self, option: str, value: object, expected: str) -> None:
        self.option = option
        self.value = value
        super().__init__(f"{option}={value!r}: expected {expected}")


class AlreadyEnabledError(LazytraceError):
    """A tracer is active, with other options or where none may be."""


class NotEnabledError(LazytraceError):
    """There is no tracer to answer: ``lazytrace.enable()`` was never called."""

    def __init__(self) -> None:
        super().__init__("nothing was traced yet: call lazytrace.enable() first")


class OutputError(LazytraceError, OSError):
    """The trace file cannot be created. ``path`` names it."""

    def __init__(self, path: str, problem: str, remedy: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}; {remedy}")


class MissingDependencyError(LazytraceError, ImportError):
    """A package that an extra of lazytrace brings is not installed."""


class DanglingInputError(LazytraceError):
    """A captured launch would read memory that was freed. Raised before the replay."""


class TraceError(LazytraceError):
    """A trace cannot be read. ``path`` names the file."""

    def __init__(self, path: str, problem: str) -> None:
        self.path = path
        super().__init__(f"{path}: {problem}")


class NotATraceError(TraceError):
    """The file is not a lazytrace trace."""


class NewerSchemaError(TraceError):
    """The file has a schema version that this lazytrace does not know."""


class InternalError(LazytraceError):
    """A fault of lazytrace itself, not of the traced program."""

    def __init__(self, message: str) -> None:
        super().__init__(f"{message}. This is a bug in lazytrace: please report it.")
