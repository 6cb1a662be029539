"""Lines of a trace as NDJSON bytes and back, without loss.

Every line is one JSON object that starts with its ``type``; a key means the same, and has the
same JSON type, in every line that has it, so that tables can be loaded by key. Fields that equal
their defaults are left out. A kernel's fields lie flat in its line. A tensor that
lies in a tuple or a descriptor is described once, under its own path: where its container would
hold it stands ``{"kind": "ref", "path": PATH}``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import orjson

from lazytrace._trace.forms import form_of, pack_object, unpack_object
from lazytrace._trace.plain import pack, pack_mapping, unpack_mapping
from lazytrace.errors import InternalError, NewerSchemaError, TraceError
from lazytrace.lines import (
    MAX_DEPTH,
    SCHEMA_VERSION,
    ArgsLine,
    CaptureLine,
    EndLine,
    KernelLine,
    LaunchLine,
    Line,
    ProblemLine,
    ValuesLine,
)
from lazytrace.records import Arg, KernelInfo, Session, TensorArg, parts

_TYPES: dict[str, type] = {
    "session": Session,
    "kernel": KernelLine,
    "args": ArgsLine,
    "capture": CaptureLine,
    "launch": LaunchLine,
    "values": ValuesLine,
    "problem": ProblemLine,
    "end": EndLine,
}
_NAMES = {cls: name for name, cls in _TYPES.items()}
_OPENING = b'{"type":"'


def type_name(line: Line) -> str:
    """The ``type`` of a line in the file."""
    return _NAMES[type(line)]


def encode(line: Line) -> bytes:
    """The line as one line of NDJSON, newline included; InternalError if it cannot be written."""
    name = type_name(line)
    try:
        packed = {"type": name, **_PACKERS.get(name, _pack_plainly)(line)}
        return orjson.dumps(packed, option=orjson.OPT_APPEND_NEWLINE)
    except (TypeError, AttributeError) as error:  # a field that holds what it may not
        raise InternalError(f"line of type {name} cannot be written: {error}") from error


def decode(raw: bytes, path: str, number: int) -> Line | None:
    """The line that ``encode`` was given; None where its type is not known to this version.

    ``path`` and ``number`` (from 1) are what the TraceError names if it is no line of a trace.
    """
    try:
        packed = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise TraceError(path, f"line {number}: not JSON ({error.msg})") from error
    if not isinstance(packed, dict):
        raise TraceError(path, f"line {number}: not a JSON object")
    name = packed.get("type")
    if name == "session":
        _check_schema(packed.get("schema_version"), path)
    if not isinstance(name, str):
        raise TraceError(path, f"line {number}: has no type")
    cls = _TYPES.get(name)
    if cls is None:
        return None
    try:
        line: Line = _UNPACKERS.get(name, _unpack_plainly)(cls, packed)
    except ValueError as error:
        raise TraceError(path, f"line {number}: malformed {name} line: {error}") from error
    return line


def is_torn(raw: bytes) -> bool:
    """Whether this is the beginning of a line whose rest was never written."""
    begun = raw.rstrip(b"\r\n")
    if begun[: len(_OPENING)] != _OPENING[: len(begun)]:
        return False
    try:
        orjson.loads(raw)
    except orjson.JSONDecodeError:
        return True
    return False


def _check_schema(version: object, path: str) -> None:
    if type(version) is int and version > SCHEMA_VERSION:
        raise NewerSchemaError(
            path,
            f"has schema version {version}, this lazytrace reads up to {SCHEMA_VERSION}: "
            "upgrade lazytrace to read it",
        )


def _pack_plainly(line: Any) -> dict[str, Any]:
    return pack_object(line, 0)


def _unpack_plainly(cls: type, packed: dict[str, Any]) -> Any:
    return unpack_object(cls, packed, 0)


def _pack_kernel(line: KernelLine) -> dict[str, Any]:
    return {"id": pack(line.id), **pack_object(line.kernel, 0)}


def _unpack_kernel(_: type, packed: dict[str, Any]) -> KernelLine:
    return KernelLine(_id_of(packed), unpack_object(KernelInfo, packed, 0))


def _pack_args(line: ArgsLine) -> dict[str, Any]:
    form = form_of(Arg)
    packed = {path: form.pack(arg, 0) for path, arg in line.args.items()}
    for path, arg in line.args.items():
        _refer(path, arg, packed[path], packed)
    return {"id": pack(line.id), "arguments": pack_mapping(packed, lambda item, _: item, 0)}


def _refer(path: str, arg: Arg, packed: dict[str, Any], described: dict[str, Any]) -> None:
    """Put references where a container repeats what ``described`` has."""
    for position, (inner, part) in enumerate(parts(path, arg)):
        holder, key = _slot(packed, position)
        if not isinstance(part, TensorArg):
            _refer(inner, part, holder[key], described)
        elif described.get(inner) == holder[key]:
            holder[key] = {"kind": "ref", "path": inner}


def _slot(packed: dict[str, Any], position: int) -> tuple[Any, Any]:
    """The list or object, and the place in it, where a container's part lies."""
    return (packed["items"], position) if "items" in packed else (packed, "base")


def _unpack_args(_: type, packed: dict[str, Any]) -> ArgsLine:
    described = unpack_mapping(packed.get("arguments"), lambda item, _: item, 0)
    form = form_of(Arg)
    args = {}
    for path, item in described.items():
        if not isinstance(path, str):
            raise ValueError("a path that is no text")
        args[path] = form.unpack(_resolve(item, described, 0), 0)
    return ArgsLine(_id_of(packed), args)


def _resolve(item: Any, described: dict[str, Any], depth: int) -> Any:
    """The packed argument with the packed tensors that it refers to."""
    if not isinstance(item, dict) or depth > MAX_DEPTH:
        return item
    if item.get("kind") == "ref":
        path = item.get("path")
        target = described.get(path) if isinstance(path, str) else None
        if not isinstance(target, dict) or target.get("kind") != "tensor":
            raise ValueError("a reference to no tensor")
        return target
    if isinstance(item.get("items"), list):
        return {**item, "items": [_resolve(part, described, depth + 1) for part in item["items"]]}
    if "base" in item:
        return {**item, "base": _resolve(item["base"], described, depth + 1)}
    return item


def _pack_values(line: ValuesLine) -> dict[str, Any]:
    packed = pack_object(line, 0)
    return {"launch_ids": packed["launches"], "readings": packed["readings"]}


def _unpack_values(cls: type, packed: dict[str, Any]) -> Any:
    renamed = {"launches": packed.get("launch_ids"), "readings": packed.get("readings")}
    return unpack_object(cls, renamed, 0)


def _id_of(packed: dict[str, Any]) -> int:
    number: int = form_of(int).unpack(packed.get("id"), 0)
    return number


_PACKERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "kernel": _pack_kernel,
    "args": _pack_args,
    "values": _pack_values,
}
_UNPACKERS: dict[str, Callable[[type, dict[str, Any]], Any]] = {
    "kernel": _unpack_kernel,
    "args": _unpack_args,
    "values": _unpack_values,
}
