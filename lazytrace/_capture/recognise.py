"""Writes the test that recognises arguments which a kernel was given before.

The test runs at every launch, with cold caches where a benchmark counts it: as source of its own,
without a loop or a call that it could do without, it costs half of what closures over the same
comparisons do (`bench/launch_overhead.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import CodeType
from typing import Any

import attrs
import torch

from lazytrace._capture.views import TensorView

Check = Callable[..., bool]


@attrs.frozen
class ArgTest:
    """Whether arguments are, to the last bit of metadata, certain ones; as source.

    ``unpack`` is the statement that names the arguments in ``args``, ``condition`` the expression
    over these names and ``names``. For calls outside torch function modes.
    """

    length: int
    unpack: str
    condition: str
    names: Mapping[str, Any]

    def compiled(self) -> Callable[[Sequence[Any]], bool]:
        """The test as a function of the arguments."""
        made: Callable[[Sequence[Any]], bool] = define(_TEST, self, {})
        return made


_TEST = """
def make({parameters}):
    def recognised(args):
        if len(args) != {length}:
            return False
        {unpack}
        return {condition}
    return recognised
"""


def define(template: str, test: ArgTest, names: Mapping[str, Any]) -> Any:
    """What the template's ``make`` returns, with the test written into it.

    The source holds no text of the traced program: every value is a parameter of ``make``.
    """
    given = {**test.names, **names}
    source = template.format(
        parameters=", ".join(given),
        length=test.length,
        unpack=test.unpack,
        condition=test.condition,
    )
    scope: dict[str, Any] = {}
    exec(_compiled(source), scope)
    return scope["make"](**given)


@lru_cache(maxsize=1024)
def _compiled(source: str) -> CodeType:
    return compile(source, "<lazytrace: recognises arguments>", "exec")


def arg_test(items: Sequence[Any], args: Sequence[Any]) -> ArgTest:
    """The test for the arguments ``args``.

    ``items`` describe them: a TensorView for each tensor, of a class that intercepts nothing, and
    a plain value for everything else.
    """
    names: dict[str, Any] = {}
    values: list[str] = []
    memory: list[str] = []
    tensors = [i for i, item in enumerate(items) if item.__class__ is TensorView]
    for i, item in enumerate(items):
        if item.__class__ is TensorView:
            memory.append(f"a{i}.untyped_storage() is ref{i}() and a{i}.data_ptr() == pointer{i}")
            names[f"ref{i}"], names[f"pointer{i}"] = item.ref, item.data_ptr
        else:
            values.append(_value_test(i, item, names))
    if tensors:
        values.append(f"layout({', '.join(f'a{i}' for i in tensors)})")
        names["layout"] = _layout_check([args[i] for i in tensors])
    unpack = f"{''.join(f'a{i}, ' for i in range(len(items)))}= args" if items else "pass"
    return ArgTest(len(items), unpack, " and ".join(values + memory) or "True", names)


def _value_test(position: int, value: Any, names: dict[str, Any]) -> str:
    """Same class and equal to the last bit."""
    arg = f"a{position}"
    if value is None:
        return f"{arg} is None"
    names[f"class{position}"] = value.__class__
    names[f"value{position}"] = value
    if isinstance(value, (float, complex)):
        # Equal ones may still differ (0.0 and -0.0), and NaN equals nothing.
        names[f"value{position}"] = repr(value)
        return f"{arg}.__class__ is class{position} and {arg}.__repr__() == value{position}"
    return f"{arg}.__class__ is class{position} and {arg} == value{position}"


def _layout_check(tensors: list[torch.Tensor]) -> Check:
    """A test of class, dtype, device, shape and strides: torch's own in one call, or ours."""
    plain = _PlainCheck(tensors)
    if len({id(tensor) for tensor in tensors}) != len(tensors):
        return plain  # torch's refuses a tensor that is passed twice
    try:
        from torch._C._dynamo.guards import TensorGuards  # private: hence the other way

        sizes: Any = [list(tensor.shape) for tensor in tensors]
        strides: Any = [list(tensor.stride()) for tensor in tensors]
        check: Check = TensorGuards(
            *tensors, dynamic_dims_sizes=sizes, dynamic_dims_strides=strides
        ).check
        if check(*tensors) is not True:
            return plain
    except (ImportError, AttributeError, TypeError, SystemError, RuntimeError):
        return plain
    return check


class _PlainCheck:
    """The same test by torch's public attributes."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self._known = [
            (tensor.__class__, tensor.shape, tensor.stride(), tensor.dtype) for tensor in tensors
        ]

    def __call__(self, *tensors: Any) -> bool:
        for tensor, (kind, shape, strides, dtype) in zip(tensors, self._known):
            if tensor.__class__ is not kind or tensor.dtype is not dtype:
                return False
            if tensor.shape != shape or tensor.stride() != strides:
                return False
        return True
