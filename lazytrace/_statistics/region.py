"""One tensor view as raw memory, and what its elements are."""

from __future__ import annotations

from enum import Enum
from typing import Final

import attrs

from lazytrace.errors import LazytraceError


class UnsupportedDtype(LazytraceError):
    """There are no statistics of such elements; the message says why."""


class MisalignedView(LazytraceError):
    """A view's address is no multiple of its element's size: the device cannot read it."""


class Family(Enum):
    """How the bits of an element become numbers."""

    FLOAT = "float"
    SIGNED = "signed"
    UNSIGNED = "unsigned"
    BOOL = "bool"
    COMPLEX = "complex"


@attrs.frozen
class Region:
    """A view to read: an address in bytes, a shape and strides in elements, torch's dtype name.

    ``conj`` and ``neg`` are torch's lazy bits: the logical elements are the conjugates, or the
    negatives, of what lies in memory.
    """

    data_ptr: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    element_size: int
    conj: bool = False
    neg: bool = False


@attrs.frozen
class ElementType:
    """A dtype that can be read. ``part`` names the type of a complex element's two parts."""

    family: Family
    size_bytes: int
    part: str | None = None


ELEMENT_TYPES: Final = {
    "float64": ElementType(Family.FLOAT, 8),
    "float32": ElementType(Family.FLOAT, 4),
    "float16": ElementType(Family.FLOAT, 2),
    "bfloat16": ElementType(Family.FLOAT, 2),
    "float8_e4m3fn": ElementType(Family.FLOAT, 1),
    "float8_e4m3fnuz": ElementType(Family.FLOAT, 1),
    "float8_e5m2": ElementType(Family.FLOAT, 1),
    "float8_e5m2fnuz": ElementType(Family.FLOAT, 1),
    "float8_e8m0fnu": ElementType(Family.FLOAT, 1),
    "int8": ElementType(Family.SIGNED, 1),
    "int16": ElementType(Family.SIGNED, 2),
    "int32": ElementType(Family.SIGNED, 4),
    "int64": ElementType(Family.SIGNED, 8),
    "uint8": ElementType(Family.UNSIGNED, 1),
    "uint16": ElementType(Family.UNSIGNED, 2),
    "uint32": ElementType(Family.UNSIGNED, 4),
    "uint64": ElementType(Family.UNSIGNED, 8),
    "bool": ElementType(Family.BOOL, 1),
    "complex32": ElementType(Family.COMPLEX, 4, "float16"),
    "complex64": ElementType(Family.COMPLEX, 8, "float32"),
    "complex128": ElementType(Family.COMPLEX, 16, "float64"),
}

_PACKED = ("bits", "float4", "quint2", "quint4")
_SUB_BYTE = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))
_QUANTISED = ("qint8", "quint8", "qint32")


def element_type(region: Region) -> ElementType:
    """What the region's elements are; UnsupportedDtype or MisalignedView where unreadable."""
    found = ELEMENT_TYPES.get(region.dtype)
    if found is None:
        raise UnsupportedDtype(f"no statistics of {region.dtype}: {_why(region.dtype)}")
    if region.element_size != found.size_bytes:
        raise UnsupportedDtype(
            f"no statistics of {region.dtype} with elements of {region.element_size} bytes: "
            f"they have {found.size_bytes}"
        )
    if region.neg and found.family not in (Family.FLOAT, Family.COMPLEX):
        raise UnsupportedDtype(f"no statistics of a lazily negated view of {region.dtype}")
    unit = ELEMENT_TYPES[found.part].size_bytes if found.part else found.size_bytes
    if region.data_ptr % unit:
        raise MisalignedView(f"elements of {region.dtype} at address {region.data_ptr:#x}")
    return found


def _why(dtype: str) -> str:
    if dtype in _QUANTISED:
        return "a quantised element's value depends on its tensor's scale and zero point"
    if dtype in _SUB_BYTE or dtype.startswith(_PACKED):
        return "several values are packed into one byte"
    return "unknown to this version of lazytrace"
