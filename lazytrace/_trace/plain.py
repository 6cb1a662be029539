"""Python values as JSON values and back, without loss.

What JSON has stays as it is: None, bool, finite floats, integers of up to 64 bits, text, lists,
and dicts with ordinary keys. The rest becomes an object with one key that names the type::

    {"$int": "0x40000000000000000"}   {"$float": "nan"}   {"$complex": [1.0, -0.0]}
    {"$str": "a%ED%A0%80"}            {"$bytes": "AAE="}  {"$tuple": [1, 2]}
    {"$dict": [[1, "one"], [null, "none"]]}
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote, unquote_to_bytes

from lazytrace.lines import MAX_DEPTH

_LEAST, _MOST = -(2**63), 2**64 - 1  # what orjson writes, and reads back as integers
_FLOATS = ("nan", "inf", "-inf")


class UnencodableError(TypeError):
    """The value has no form in the file: of another type, or nested too deeply."""


def pack(value: Any, depth: int = 0) -> Any:
    """The value as JSON values; UnencodableError if it is none that the file can hold."""
    cls = type(value)
    if cls is int and _LEAST <= value <= _MOST:
        return value
    if value is None or cls is bool or (cls is str and value.isascii()):
        return value
    if isinstance(value, str):
        text = str.__str__(value)
        return text if _is_text(text) else {"$str": quote(text, errors="surrogatepass")}
    if isinstance(value, int):
        number = int(value)
        return number if _LEAST <= number <= _MOST else {"$int": hex(number)}
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {"$float": repr(float(value))}
    if isinstance(value, complex):
        return {"$complex": [pack(value.real), pack(value.imag)]}
    if isinstance(value, (bytes, bytearray)):
        return {"$bytes": base64.b64encode(value).decode()}
    return _pack_container(value, depth)


def _pack_container(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise UnencodableError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(value, tuple):
        return {"$tuple": [pack(item, depth + 1) for item in value]}
    if isinstance(value, list):
        return [pack(item, depth + 1) for item in value]
    if isinstance(value, Mapping):
        return pack_mapping(value, pack, depth + 1)
    raise UnencodableError(f"a value of type {type(value).__name__}")


def pack_mapping(
    mapping: Mapping[Any, Any], pack_item: Callable[[Any, int], Any], depth: int
) -> dict[str, Any]:
    """A JSON object where every key can be one, else pairs under ``$dict``."""
    if all(isinstance(key, str) and key[:1] != "$" and _is_text(key) for key in mapping):
        return {key: pack_item(item, depth) for key, item in mapping.items()}
    return {"$dict": [[pack(key, depth), pack_item(item, depth)] for key, item in mapping.items()]}


def _is_text(value: str) -> bool:
    """Whether UTF-8 can hold it: a lone surrogate cannot be."""
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def unpack(packed: Any, depth: int = 0) -> Any:
    """The value that ``pack`` was given; ValueError if no value packs to this."""
    if not isinstance(packed, (list, dict)):
        return packed
    if depth > MAX_DEPTH:
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    if isinstance(packed, list):
        return [unpack(item, depth + 1) for item in packed]
    tag = next(iter(packed), "")
    if not tag.startswith("$") or tag == "$dict":
        return unpack_mapping(packed, unpack, depth + 1)
    if len(packed) != 1 or tag not in _TAGGED:
        raise ValueError(f"no value has the tag {tag[:20]!r}")
    return _TAGGED[tag](packed[tag], depth)


def unpack_mapping(
    packed: Any, unpack_item: Callable[[Any, int], Any], depth: int
) -> dict[Any, Any]:
    """The mapping that ``pack_mapping`` was given; ValueError if it is none."""
    if not isinstance(packed, dict):
        raise ValueError("expected an object")
    if "$dict" not in packed:
        return {key: unpack_item(item, depth) for key, item in packed.items()}
    pairs = packed["$dict"]
    if not isinstance(pairs, list) or not all(isinstance(p, list) and len(p) == 2 for p in pairs):
        raise ValueError("$dict takes a list of pairs")
    return {_unpack_key(key, depth): unpack_item(item, depth) for key, item in pairs}


def _unpack_key(packed: Any, depth: int) -> Any:
    key = unpack(packed, depth)
    try:
        hash(key)
    except TypeError as error:
        raise ValueError("a mapping's key cannot be a list or an object") from error
    return key


def _text(packed: Any) -> str:
    if not isinstance(packed, str):
        raise ValueError("a tagged value that is no text")
    return packed


def _complex(packed: Any) -> complex:
    halves = [unpack(half) for half in packed] if isinstance(packed, list) else []
    if len(halves) != 2 or not all(type(half) is float for half in halves):
        raise ValueError("$complex takes two floats")
    return complex(*halves)


def _float(packed: Any) -> float:
    if _text(packed) not in _FLOATS:
        raise ValueError("$float takes nan, inf or -inf")
    return float(packed)  # a new object each time: NaNs of one identity are one dict key


def _tuple(packed: Any, depth: int) -> tuple[Any, ...]:
    if not isinstance(packed, list):
        raise ValueError("$tuple takes a list")
    return tuple(unpack(item, depth + 1) for item in packed)


_TAGGED: dict[str, Callable[[Any, int], Any]] = {
    "$int": lambda packed, _: int(_text(packed), 16),
    "$float": lambda packed, _: _float(packed),
    "$complex": lambda packed, _: _complex(packed),
    "$str": lambda packed, _: unquote_to_bytes(_text(packed)).decode("utf-8", "surrogatepass"),
    "$bytes": lambda packed, _: base64.b64decode(_text(packed), validate=True),
    "$tuple": _tuple,
}
