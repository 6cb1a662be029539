"""The options of a tracer, checked when they are given."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import attrs

from lazytrace.errors import OptionError

_VALUES = ("off", "deferred", "at_launch")
_FLUSH_AT = ("sync", "replay", "exit")
_ON_PROBLEM = ("record", "warn", "raise")


def _one_of(*allowed: str) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if not isinstance(value, str) or value not in allowed:
            raise OptionError(attribute.name, value, "one of " + ", ".join(map(repr, allowed)))

    return check


def _boolean(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise OptionError(attribute.name, value, "True or False")


def _count(least: int, *, or_none: bool = False) -> Any:
    def check(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
        if or_none and value is None:
            return
        if isinstance(value, bool) or not isinstance(value, int) or value < least:
            expected = f"an integer of at least {least}" + (", or None" if or_none else "")
            raise OptionError(attribute.name, value, expected)

    return check


def _patterns(option: str, value: object) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        return (value,)
    if isinstance(value, Iterable):
        patterns = tuple(value)
        if patterns and all(isinstance(pattern, str) for pattern in patterns):
            return patterns
    raise OptionError(option, value, "an fnmatch pattern, a list of them, or None")


def _kernels(value: object) -> tuple[str, ...] | None:
    return _patterns("kernels", value)


def _exclude(value: object) -> tuple[str, ...] | None:
    return _patterns("exclude", value)


def _path(value: object) -> Path | None:
    if value is None:
        return None
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if isinstance(text, str) and text:
        return Path(text).absolute()
    raise OptionError("out", value, "a directory, a path that ends in .ndjson, or None")


def _pattern(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    if not isinstance(value, str) or not value:
        raise OptionError(f"ignore: {attribute.name}", value, "an fnmatch pattern")


def _rows(_: object, attribute: attrs.Attribute[Any], value: object) -> None:
    is_row = isinstance(value, int) and not isinstance(value, bool) and value >= 0
    if not (value is None or is_row or (isinstance(value, str) and value)):
        expected = "a row from 0 on, the name of a scalar argument, or None"
        raise OptionError(f"ignore: {attribute.name}", value, expected)


@attrs.frozen
class Ignore:
    """NaN and infinity that are no problem: those in the arguments that this rule names.

    ``kernel`` and ``argument`` are fnmatch patterns, case and all, on the kernel's name and on the
    argument's path; a path with brackets (``"ts[0]"``) may also be given as it is. Without
    ``rows_from`` whatever the argument holds is ignored. With it, only what lies in rows (indices
    along dimension 0) from that one on, such as padding: an integer, or the name of an integer
    argument of the same launch. Where the launch has no such argument the rule does not hold.

    Only the first non-finite element is located, so an argument with one before ``rows_from`` is
    reported whole, with the counts of all of it. Raises OptionError.
    """

    kernel: str = attrs.field(default="*", validator=_pattern)
    argument: str = attrs.field(default="*", validator=_pattern)
    rows_from: int | str | None = attrs.field(default=None, validator=_rows)

    def names(self, kernel: str, path: str) -> bool:
        """Whether the rule is about the argument at this path of this kernel."""
        return fnmatchcase(kernel, self.kernel) and (
            path == self.argument or fnmatchcase(path, self.argument)
        )


def _ignores(value: object) -> tuple[Ignore, ...]:
    if value is None:
        return ()
    if isinstance(value, Ignore):
        return (value,)
    if isinstance(value, Iterable) and not isinstance(value, str):
        rules = tuple(value)
        if all(isinstance(rule, Ignore) for rule in rules):
            return rules
    raise OptionError("ignore", value, "a list of lazytrace.Ignore(...), or None")


@attrs.frozen(kw_only=True)
class Options:
    """What ``lazytrace.enable()`` was asked for; equal options are the same tracer.

    ``max_read_bytes``, ``max_file_bytes`` and ``save_tensors`` are bytes.
    """

    out: Path | None = attrs.field(default=None, converter=_path)
    values: str = attrs.field(default="deferred", validator=_one_of(*_VALUES))
    flush_at: str = attrs.field(default="sync", validator=_one_of(*_FLUSH_AT))
    kernels: tuple[str, ...] | None = attrs.field(default=None, converter=_kernels)
    exclude: tuple[str, ...] | None = attrs.field(default=None, converter=_exclude)
    eager_samples: int | None = attrs.field(default=2, validator=_count(0, or_none=True))
    trial_values: bool = attrs.field(default=False, validator=_boolean)
    max_read_bytes: int = attrs.field(default=1 << 30, validator=_count(0))
    stacks: bool = attrs.field(default=False, validator=_boolean)
    ir: bool = attrs.field(default=False, validator=_boolean)
    save_tensors: int = attrs.field(default=0, validator=_count(0))
    ignore: tuple[Ignore, ...] = attrs.field(default=(), converter=_ignores)
    on_problem: str = attrs.field(default="record", validator=_one_of(*_ON_PROBLEM))
    max_pending: int = attrs.field(default=1_000_000, validator=_count(1))
    max_records: int = attrs.field(default=100_000, validator=_count(1))
    max_file_bytes: int | None = attrs.field(default=None, validator=_count(1, or_none=True))

    def __attrs_post_init__(self) -> None:
        if self.save_tensors and self.out is None:
            expected = "0 where the trace is in memory only: give enable() an output"
            raise OptionError("save_tensors", self.save_tensors, expected)

    def traces(self, kernel_name: str) -> bool:
        """Whether launches of a kernel of this name are recorded."""
        if self.kernels is not None and not matches(kernel_name, self.kernels):
            return False
        return self.exclude is None or not matches(kernel_name, self.exclude)

    def as_dict(self) -> dict[str, Any]:
        """The options as JSON values, for the session line."""
        plain = attrs.asdict(self)
        plain["out"] = None if self.out is None else str(self.out)
        return plain


def make_options(out: object, given: dict[str, Any]) -> Options:
    """Options from the arguments of enable(); OptionError names the first that is wrong."""
    known = {field.name for field in attrs.fields(Options)}
    for name in given:
        if name not in known:
            raise OptionError(
                name, given[name], "no option of this name: " + ", ".join(sorted(known))
            )
    return Options(out=out, **given)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether one of the fnmatch patterns, case and all, matches the name."""
    return any(fnmatchcase(name, pattern) for pattern in patterns)
