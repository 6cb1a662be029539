"""How each type of the record vocabulary is written as JSON values, derived from its annotations.

An attrs object becomes a JSON object by field names, without the fields that equal their
defaults; an argument starts with its ``kind``. What does not fit its annotation is refused.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from enum import Enum
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs

from lazytrace._trace.plain import UnencodableError, pack, pack_mapping, unpack, unpack_mapping
from lazytrace.lines import MAX_DEPTH

_UNIONS = (types.UnionType, Union)


@attrs.frozen
class Form:
    """How values of one annotation are packed and unpacked, given the depth of nesting."""

    pack: Callable[[Any, int], Any]
    unpack: Callable[[Any, int], Any]


@attrs.frozen
class _Field:
    name: str
    form: Form
    default: Any


@cache
def _fields(cls: type) -> tuple[_Field, ...]:
    hints = get_type_hints(cls)
    fields = []
    for attribute in attrs.fields(cls):
        hint = hints[attribute.name]
        default = attribute.default
        if isinstance(default, attrs.Factory):  # type: ignore[arg-type]
            default = default.factory()
        elif default is attrs.NOTHING and type(None) in get_args(hint):
            default = None
        fields.append(_Field(attribute.name, form_of(hint), default))
    return tuple(fields)


def pack_object(value: Any, depth: int) -> dict[str, Any]:
    """An attrs object as a JSON object."""
    if depth > MAX_DEPTH:
        raise UnencodableError(f"nested deeper than {MAX_DEPTH}")
    packed = {}
    cls: type = type(value)
    for field in _fields(cls):
        item, default = getattr(value, field.name), field.default
        if item is default or (type(item) is type(default) and item == default):
            continue
        packed[field.name] = field.form.pack(item, depth)
    return packed


def unpack_object(cls: type, packed: Any, depth: int) -> Any:
    """The object of this class that ``pack_object`` was given; unknown keys are ignored."""
    if not isinstance(packed, dict):
        raise ValueError(f"expected an object for {cls.__name__}")
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    values = {}
    for field in _fields(cls):
        if field.name in packed:
            try:
                values[field.name] = field.form.unpack(packed[field.name], depth)
            except ValueError as error:
                raise ValueError(f"{field.name}: {error}") from error
        elif field.default is attrs.NOTHING:
            raise ValueError(f"{field.name} is missing")
        else:
            values[field.name] = field.default
    return cls(**values)


@cache
def form_of(hint: Any) -> Form:
    """The form of an annotation of the record vocabulary."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in _UNIONS:
        return _union_form(arguments)
    if origin is tuple:
        return _tuple_form(arguments)
    if origin is not None and issubclass(origin, Mapping):
        return _mapping_form(arguments[1])
    if hint is Any:
        return Form(pack, unpack)
    if attrs.has(hint):
        return Form(pack_object, lambda packed, depth: unpack_object(hint, packed, depth + 1))
    if issubclass(hint, Enum):
        return _enum_form(hint)
    return _scalar_form((hint,))


def _scalar_form(allowed: tuple[type, ...]) -> Form:
    # JSON written by other tools may have lost the point of a whole float.
    accepted = frozenset((*allowed, int) if float in allowed else allowed)
    names = " or ".join(kind.__name__ for kind in allowed)

    def unpack_scalar(packed: Any, depth: int) -> Any:
        value = unpack(packed, depth) if type(packed) is dict else packed
        if type(value) not in accepted:
            raise ValueError(f"expected {names}")
        return value

    return Form(pack, unpack_scalar)


def _enum_form(cls: type[Enum]) -> Form:
    members = {member.value: member for member in cls}

    def unpack_member(packed: Any, _: int) -> Enum:
        member = members.get(packed) if isinstance(packed, str) else None
        if member is None:
            raise ValueError(f"no such {cls.__name__}")
        return member

    return Form(lambda member, _: member.value, unpack_member)


def _union_form(members: tuple[Any, ...]) -> Form:
    solid = tuple(member for member in members if member is not type(None))
    if len(solid) == 1:
        form = form_of(solid[0])
    elif all(attrs.has(member) for member in solid):
        form = _kind_form({member.kind.value: member for member in solid})
    else:
        form = _scalar_form(solid)
    if len(solid) == len(members):
        return form
    return Form(
        lambda value, depth: None if value is None else form.pack(value, depth),
        lambda packed, depth: None if packed is None else form.unpack(packed, depth),
    )


def _kind_form(classes: dict[str, type]) -> Form:
    def pack_kind(value: Any, depth: int) -> dict[str, Any]:
        if not attrs.has(type(value)):
            raise UnencodableError(f"no argument: {type(value).__name__}")
        return {"kind": value.kind.value, **pack_object(value, depth + 1)}

    def unpack_kind(packed: Any, depth: int) -> Any:
        kind = packed.get("kind") if isinstance(packed, dict) else None
        if not isinstance(kind, str) or kind not in classes:
            raise ValueError("an argument of no known kind")
        return unpack_object(classes[kind], packed, depth + 1)

    return Form(pack_kind, unpack_kind)


def _tuple_form(members: tuple[Any, ...]) -> Form:
    item = form_of(members[0])
    length = None if members[-1] is Ellipsis else len(members)

    def unpack_tuple(packed: Any, depth: int) -> tuple[Any, ...]:
        if not isinstance(packed, list) or length not in (None, len(packed)):
            raise ValueError("expected a list" + (f" of {length}" if length else ""))
        return tuple([item.unpack(value, depth) for value in packed])

    return Form(lambda values, depth: [item.pack(value, depth) for value in values], unpack_tuple)


def _mapping_form(member: Any) -> Form:
    item = form_of(member)

    def unpack_typed(packed: Any, depth: int) -> dict[Any, Any]:
        mapping = unpack_mapping(packed, item.unpack, depth)
        if member is not Any and not all(isinstance(key, str) for key in mapping):
            raise ValueError("a key that is no text")
        return mapping

    return Form(lambda mapping, depth: pack_mapping(mapping, item.pack, depth), unpack_typed)
