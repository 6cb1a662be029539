"""Mends what Triton's interpreter gets wrong in dtypes that NumPy lacks: bfloat16 and float8.

It keeps bfloat16 as the integers of its bits, computes on those, and truncates where the hardware
rounds to nearest. Here arithmetic happens in float32 and is rounded once, and conversions are
torch's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter

Change = tuple[Any, str, Any]

_ELEMENTWISE = (
    "binary_op",
    "unary_op",
    "ternary_op",
    "create_fma",
    "create_erf",
    "create_rsqrt",
)
_ON_BITS = (np.bitwise_and, np.bitwise_or, np.bitwise_xor, np.where)
_TORCH_DTYPES = {
    "fp64": torch.float64,
    "fp32": torch.float32,
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp8e5": torch.float8_e5m2,
    "fp8e4nv": torch.float8_e4m3fn,
}


def changes() -> list[Change]:
    """The attributes of Triton's interpreter to replace while a kernel runs."""
    builder = interpreter.InterpreterBuilder
    reductions = interpreter.ReduceScanOpInterface
    replaced: list[Change] = [
        (builder, name, _widening(getattr(builder, name))) for name in _ELEMENTWISE
    ]
    replaced += [
        (builder, "create_dot", _widening_inputs(builder.create_dot)),
        (builder, "create_atomic_rmw", _refusing(builder.create_atomic_rmw)),
        (reductions, "check_tensor", _refusing(reductions.check_tensor)),
        (interpreter, "_convert_float", _converting(interpreter._convert_float)),
    ]
    if not hasattr(builder, "get_bf16"):  # before Triton 3.9: a constant such as load's `other`
        replaced.append((builder, "get_bf16", _constant))
    return replaced


def _widening(operation: Callable[..., Any]) -> Callable[..., Any]:
    def widened(builder: Any, *operands: Any) -> Any:
        if not any(map(_is_bfloat16, operands)) or operands[-1] in _ON_BITS:
            return operation(builder, *operands)
        result = operation(builder, *(_wide(builder, operand) for operand in operands))
        if result.data.dtype == np.bool_:  # a comparison
            return result
        return builder.cast_impl(result, tl.bfloat16)

    return widened


def _widening_inputs(operation: Callable[..., Any]) -> Callable[..., Any]:
    def widened(builder: Any, a: Any, b: Any, *others: Any) -> Any:
        return operation(builder, _wide(builder, a), _wide(builder, b), *others)

    return widened


def _refusing(operation: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(owner: Any, *operands: Any) -> Any:
        if any(map(_holds_bfloat16, operands)):
            raise NotImplementedError(
                "lazytrace.testing.simulate: Triton's interpreter cannot reduce or add atomically "
                "in bfloat16; convert to float32 in the kernel first"
            )
        return operation(owner, *operands)

    return guarded


def _converting(operation: Callable[..., Any]) -> Callable[..., Any]:
    nearest = (None, interpreter._ir.ROUNDING_MODE.RTNE)

    def converted(data: Any, source: Any, target: Any, rounding_mode: Any) -> Any:
        torch_source = _TORCH_DTYPES.get(source.scalar.name)
        torch_target = _TORCH_DTYPES.get(target.scalar.name)
        if torch_source is None or torch_target is None or rounding_mode not in nearest:
            return operation(data, source, target, rounding_mode)
        given = np.array(data)  # a copy: contiguous, writable
        bits = np.empty(given.shape, dtype=f"uint{8 * torch_target.itemsize}")
        values = torch.from_numpy(given).view(torch_source)
        torch.from_numpy(bits).view(torch_target).copy_(values)
        return bits

    return converted


def _constant(builder: Any, value: float) -> Any:
    return builder.cast_impl(builder.get_fp32(value), tl.bfloat16)


def _wide(builder: Any, operand: Any) -> Any:
    return builder.cast_impl(operand, tl.float32) if _is_bfloat16(operand) else operand


def _holds_bfloat16(operand: Any) -> bool:
    if isinstance(operand, tuple):
        return any(map(_is_bfloat16, operand))
    return _is_bfloat16(operand)


def _is_bfloat16(operand: Any) -> bool:
    dtype = getattr(operand, "dtype", None)
    return bool(getattr(dtype, "scalar", None) == tl.bfloat16)
