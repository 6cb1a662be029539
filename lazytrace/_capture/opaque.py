"""Describes what is not a plain tensor: descriptors, wrappers, functions, any other object.

Attributes of foreign objects are read, never called upon to print a tensor: a repr is capped, and
one that raises or would touch a tensor is replaced by the class name. A ``__repr__`` can also reach
a tensor that no field shows; so where a capture may be open (``quiet``) none is called but those of
classes that are known to print plain values only.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import sys
from collections.abc import Iterator, Mapping
from functools import lru_cache
from types import MemberDescriptorType
from typing import Any

import torch

from lazytrace.records import (
    Arg,
    ConstexprArg,
    DescriptorArg,
    FunctionArg,
    NoneArg,
    ObjectArg,
    ScalarArg,
)

_PLAIN = (bool, int, float, str, bytes, complex)
_MAX_REPR = 512
_MAX_VALUE = 4096
_MAX_ATTRIBUTES = 32
_MAX_ITEMS = 64
_MAX_DEPTH = 3
_TORCH_VALUES = (torch.dtype, torch.device, torch.layout, torch.memory_format, torch.Size)
_DESCRIPTOR_FIELDS = frozenset({"base", "shape", "strides", "block_shape", "padding", "layout"})
_TRITON_DTYPES = {
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp32": "float32",
    "fp64": "float64",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
    "int1": "bool",
}


@lru_cache(maxsize=256)
def dtype_name(dtype: Any) -> str:
    """The dtype's name as torch spells it, without the module."""
    text = str(dtype)
    return _TRITON_DTYPES.get(text, text.rpartition(".")[2])


def is_abstract(tensor: torch.Tensor) -> bool:
    """Whether a tensor has metadata but no memory to read (meta, fake)."""
    if tensor.__class__ is torch.Tensor:
        return tensor.is_meta
    fake = sys.modules.get("torch._subclasses.fake_tensor")
    if fake is not None and isinstance(tensor, fake.FakeTensor):
        return True
    return tensor.is_meta


def is_descriptor(arg: Any) -> bool:
    """Whether an argument is a tensor descriptor: Triton's, Gluon's or a look-alike."""
    return hasattr(arg, "block_shape") and hasattr(arg, "base")


def descriptor(arg: Any, base: Arg, *, quiet: bool = False) -> DescriptorArg:
    """A tensor descriptor by its attributes; ``base`` is described by the caller."""
    layout = getattr(arg, "layout", None)
    padding = getattr(arg, "padding", None)
    return DescriptorArg(
        type=type(arg).__name__,
        base=base,
        shape=ints(getattr(arg, "shape", None)),
        strides=ints(getattr(arg, "strides", None)),
        block_shape=ints(getattr(arg, "block_shape", None)),
        padding=None if padding is None else _padding(padding, quiet),
        layout=None if layout is None else capped_repr(layout, quiet=quiet)[0],
        attributes=_attributes(arg, quiet),
    )


def _padding(padding: Any, quiet: bool) -> str:
    if quiet and not _is_harmless(padding):
        return f"<{type(padding).__name__}>"
    return str(padding)[:_MAX_REPR]


def plain_or_object(arg: Any, *, constexpr: bool, quiet: bool = False) -> Arg:
    """A value that is neither a tensor nor holds one."""
    wrapped = _constexpr_value(arg)
    if wrapped is not None:
        return plain_or_object(wrapped[0], constexpr=True, quiet=quiet)
    if arg is None:
        return NoneArg()
    if type(arg) is int:
        return _integer(arg, constexpr)
    name = type(arg).__name__
    if type(arg) in _PLAIN:
        value, size = _capped_value(arg)
        return ConstexprArg(name, value, size) if constexpr else ScalarArg(name, value)
    if _is_function(arg):
        return FunctionArg(name, _function_name(arg))
    text, size = capped_repr(arg, quiet=quiet)
    return ConstexprArg(name, text, size) if constexpr else ObjectArg(name, text, size)


@lru_cache(maxsize=4096)
def _integer(value: int, constexpr: bool) -> Arg:
    """Most arguments that are no tensors are the same few sizes and strides, over and over."""
    return ConstexprArg("int", value) if constexpr else ScalarArg("int", value)


def capped_repr(arg: Any, *, quiet: bool = False) -> tuple[str, int | None]:
    """A repr of at most 512 characters, and the whole one's length where it was cut."""
    if _holds_tensor(arg) or (quiet and not _is_harmless(arg)):
        return f"<{type(arg).__name__}>", None
    if isinstance(arg, (bytes, bytearray, str)) and len(arg) > _MAX_REPR:
        return repr(arg[:_MAX_REPR])[:_MAX_REPR], len(arg)
    try:
        text = repr(arg)
    except Exception as error:  # noqa: BLE001 - a foreign __repr__ may raise anything
        return f"<{type(arg).__name__}: repr raised {type(error).__name__}>", None
    if len(text) > _MAX_REPR:
        return text[:_MAX_REPR], len(text)
    return text, None


def _constexpr_value(arg: Any) -> tuple[Any] | None:
    """What a tl.constexpr wraps, in a tuple; None for anything else."""
    if type(arg).__name__ == "constexpr" and hasattr(arg, "value"):
        return (arg.value,)
    return None


def _capped_value(value: Any) -> tuple[Any, int | None]:
    if isinstance(value, (str, bytes)) and len(value) > _MAX_VALUE:
        return value[:_MAX_VALUE], len(value)
    return value, None


def _is_function(arg: Any) -> bool:
    return callable(arg) and (hasattr(arg, "__name__") or hasattr(arg, "fn"))


def _function_name(arg: Any) -> str:
    function = getattr(arg, "fn", arg)
    name = getattr(function, "__qualname__", None) or getattr(arg, "__name__", None)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}"[:_MAX_REPR]


def _holds_tensor(arg: Any, depth: int = 0) -> bool:
    """Whether printing an object would print a tensor: itself, in a container, or in a field."""
    if isinstance(arg, torch.Tensor):
        return True
    if depth == _MAX_DEPTH:
        return False
    if isinstance(arg, (list, tuple, set, frozenset)):
        inner: Any = itertools.islice(arg, _MAX_ITEMS)
    elif isinstance(arg, Mapping):
        inner = itertools.islice(arg.values(), _MAX_ITEMS)
    else:
        inner = itertools.islice(_fields(arg), _MAX_ITEMS)
    return any(_holds_tensor(value, depth + 1) for value in inner)


def _is_harmless(arg: Any, depth: int = 0) -> bool:
    """Whether printing an object runs no code but that of Python, Triton and torch's values."""
    cls = type(arg)
    if arg is None or cls in _PLAIN or cls in _TORCH_VALUES or cls is type:
        return True
    method: Any = cls.__repr__
    if cls.__module__.partition(".")[0] == "triton" or method is object.__repr__:
        return True
    if isinstance(arg, enum.Enum):
        return method.__module__ == "enum" and _is_harmless(arg.value, depth)
    if depth == _MAX_DEPTH:
        return False
    if cls in (list, tuple, set, frozenset):
        inner: list[Any] = list(arg)
    elif cls is dict:
        inner = [*arg, *arg.values()]
    elif _repr_is_generated(cls):
        inner = list(_fields(arg))
    else:
        return False
    return len(inner) <= _MAX_ITEMS and all(_is_harmless(value, depth + 1) for value in inner)


def _repr_is_generated(cls: type) -> bool:
    """Whether a class prints its fields, by a __repr__ that dataclasses or attrs wrote."""
    method: Any = cls.__repr__
    code = getattr(getattr(method, "__wrapped__", method), "__code__", None)
    file = "" if code is None else code.co_filename
    is_dataclass = dataclasses.is_dataclass(cls) and file == "<string>"
    return is_dataclass or file.startswith("<attrs generated")


def _fields(arg: Any) -> Iterator[Any]:
    """What an object holds: in its dict, and in the slots of its classes."""
    yield from list(getattr(arg, "__dict__", {}).values())
    for cls in type(arg).__mro__:
        slots = vars(cls).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else tuple(slots):
            member = vars(cls).get(name)
            if isinstance(member, MemberDescriptorType):
                yield _slot(member, arg)


def _slot(member: MemberDescriptorType, arg: Any) -> Any:
    try:
        return member.__get__(arg, type(arg))
    except AttributeError:  # declared and never set
        return None


def _attributes(arg: Any, quiet: bool) -> dict[str, Any]:
    """Further public attributes of a descriptor, as plain values or capped reprs."""
    found: dict[str, Any] = {}
    for name, value in list(getattr(arg, "__dict__", {}).items())[:_MAX_ATTRIBUTES]:
        if name in _DESCRIPTOR_FIELDS or name.startswith("_"):
            continue
        if type(value) in _PLAIN or value is None:
            found[name] = _capped_value(value)[0]
        else:
            numbers = ints(value)
            found[name] = numbers if numbers is not None else capped_repr(value, quiet=quiet)[0]
    return found


def ints(values: Any) -> tuple[int, ...] | None:
    """A list or tuple of integers as a tuple; None for anything else."""
    if not isinstance(values, (list, tuple)):
        return None
    if not all(isinstance(value, int) for value in values):
        return None
    return tuple(int(value) for value in values)


def itemsize(dtype: Any, default: int) -> int:
    """Bytes per element of a torch or Triton dtype."""
    size = getattr(dtype, "itemsize", None)
    if isinstance(size, int):
        return size
    bits = getattr(dtype, "primitive_bitwidth", None)
    return max(1, bits // 8) if isinstance(bits, int) else default


def contiguous_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Strides, in elements, of a row-major tensor."""
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
