"""Random tensor views, and their statistics computed another way: element by element in Python."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from typing import Any

import numpy as np
import torch

from lazytrace._statistics import Region
from lazytrace.records import TensorStats

FLOATS = ["float64", "float32", "float16", "bfloat16"]
FLOATS8 = ["e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu"]
INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
COMPLEX = ["complex32", "complex64", "complex128"]
DTYPES = [*FLOATS, *(f"float8_{name}" for name in FLOATS8), *INTEGERS, "bool", *COMPLEX]


def region_of(tensor: torch.Tensor) -> Region:
    return Region(
        tensor.data_ptr(),
        tuple(tensor.shape),
        tuple(tensor.stride()),
        str(tensor.dtype).removeprefix("torch."),
        tensor.element_size(),
        tensor.is_conj(),
        tensor.is_neg(),
    )


def _float8_table(dtype: str) -> np.ndarray[Any, Any]:
    """The 256 values of an 8-bit float, from the format's definition."""
    name = dtype.removeprefix("float8_")
    if name == "e8m0fnu":
        return np.array([math.ldexp(1.0, bits - 127) for bits in range(255)] + [math.nan])
    exponent_bits = int(name[1])
    mantissa_bits = 7 - exponent_bits
    bias = (1 << (exponent_bits - 1)) - (0 if name.endswith("fnuz") else 1)
    values = []
    for bits in range(256):
        exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1)
        mantissa = bits & ((1 << mantissa_bits) - 1)
        significand = mantissa + ((1 << mantissa_bits) if exponent else 0)
        value = math.ldexp(significand, max(exponent, 1) - bias - mantissa_bits)
        value = -value if bits & 0x80 else value
        if name.endswith("fnuz"):
            value = math.nan if bits == 0x80 else value
        elif name == "e4m3fn":
            value = math.nan if bits & 0x7F == 0x7F else value
        elif exponent == 31:
            value = math.nan if mantissa else math.copysign(math.inf, value)
        values.append(value)
    return np.array(values)


def _numbers(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """The logical elements in row-major order: float64, Python integers, or pairs of float64."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    logical = tensor.detach().cpu().resolve_conj().resolve_neg()
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype).copy_(logical.reshape(-1))
    raw = flat.view(torch.uint8).numpy()
    if dtype == "bfloat16":
        return (raw.view(np.uint16).astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    if dtype.startswith("float8"):
        return _float8_table(dtype)[raw]
    if dtype == "complex32":
        return raw.view(np.float16).astype(np.float64).reshape(-1, 2)
    if dtype.startswith("complex"):
        part = np.float32 if dtype == "complex64" else np.float64
        return raw.view(part).astype(np.float64).reshape(-1, 2)
    if dtype.startswith("float"):
        return raw.view(dtype).astype(np.float64)
    return (raw != 0 if dtype == "bool" else raw.view(dtype)).astype(object)


def _moments(values: np.ndarray[Any, Any]) -> dict[str, Any]:
    finite = values[np.isfinite(values)]
    if not len(finite):
        return {}
    scale = 2.0 ** -math.frexp(float(np.abs(finite).max()))[1] if np.abs(finite).max() > 0 else 1.0
    scale = min(scale, 2.0**1000)
    scaled = [float(value) * scale for value in finite]
    mean = math.fsum(scaled) / len(scaled)
    found = {"min": finite.min(), "max": finite.max(), "mean": mean / scale}
    if len(scaled) > 1:
        squares = math.fsum((value - mean) ** 2 for value in scaled)
        found["std"] = math.sqrt(squares / (len(scaled) - 1)) / scale
    return found


def _floats(values: np.ndarray[Any, Any]) -> TensorStats:
    bad = np.flatnonzero(~np.isfinite(values))
    return TensorStats(
        **_moments(values),
        nan_count=int(np.isnan(values).sum()),
        posinf_count=int((values == np.inf).sum()),
        neginf_count=int((values == -np.inf).sum()),
        zero_count=int((values == 0).sum()),
        first_nonfinite_index=int(bad[0]) if len(bad) else None,
    )


def _integers(values: np.ndarray[Any, Any]) -> TensorStats:
    numbers = [int(value) for value in values]
    n, total = len(numbers), sum(numbers)
    squares = n * sum(number * number for number in numbers) - total * total
    std = math.sqrt(Fraction(squares, n * (n - 1))) if n > 1 else None
    zero = numbers.count(0)
    return TensorStats(min(numbers), max(numbers), total / n, std, zero_count=zero)


def reference(tensor: torch.Tensor) -> TensorStats:
    """The statistics that any engine must find."""
    values = _numbers(tensor)
    if not len(values):
        return TensorStats()
    if values.dtype == object:
        return _integers(values)
    if values.ndim == 1:
        return _floats(values)
    bad = np.flatnonzero(~np.isfinite(values).all(axis=1))
    return TensorStats(
        nan_count=int(np.isnan(values).any(axis=1).sum()),
        posinf_count=int((values == np.inf).any(axis=1).sum()),
        neginf_count=int((values == -np.inf).any(axis=1).sum()),
        zero_count=int((values == 0).all(axis=1).sum()),
        first_nonfinite_index=int(bad[0]) if len(bad) else None,
        real=_floats(values[:, 0]),
        imag=_floats(values[:, 1]),
    )


_EXACT = ("min", "max", "nan_count", "posinf_count", "neginf_count", "zero_count")
_TOLERANCE = 2e-6  # of the deviation: up to 16 elements are summed in float32


def difference(found: TensorStats | Exception, wanted: TensorStats, integral: bool) -> str:
    """What is wrong with the statistics found, or nothing."""
    if isinstance(found, Exception):
        return repr(found)
    for name in (*_EXACT, "first_nonfinite_index"):
        if getattr(found, name) != getattr(wanted, name):
            return f"{name}: {getattr(found, name)} is not {getattr(wanted, name)}"
    for name in ("mean", "std"):
        value, right = getattr(found, name), getattr(wanted, name)
        if (value is None) != (right is None):
            return f"{name}: {value} is not {right}"
        if right is None or value == right:
            continue
        slack = 0.0 if integral and name == "mean" else _TOLERANCE * (wanted.std or 0.0)
        slack += 0.0 if integral and name == "mean" else 1e-15 * abs(wanted.mean or 0.0)
        if not abs(value - right) <= slack:
            return f"{name}: {value} is not {right} within {slack}"
    for name in ("real", "imag"):
        value, right = getattr(found, name), getattr(wanted, name)
        if right is not None and (problem := difference(value, right, False)):
            return f"{name}.{problem}"
    return ""


def _bytes(rng: random.Random, count: int) -> torch.Tensor:
    return torch.frombuffer(bytearray(rng.randbytes(max(count, 1))), dtype=torch.uint8)[:count]


def memory(rng: random.Random, dtype: str, count: int) -> torch.Tensor:
    """``count`` elements of some distribution, special values among them now and then."""
    kind = getattr(torch, dtype)
    generator = torch.Generator().manual_seed(rng.getrandbits(60))
    if dtype in INTEGERS or dtype.startswith("float8"):
        size = torch.empty(0, dtype=kind).element_size()
        flat = _bytes(rng, count * size)
        if rng.random() < 0.3:
            flat = flat & 0x3F
        return flat.view(kind)
    if dtype == "bool":
        return (_bytes(rng, count) & 1).view(kind)
    parts = 2 * count if kind.is_complex else count
    values = torch.randn(parts, generator=generator, dtype=torch.float64)
    values = values * 10.0 ** rng.choice([-3, 0, 0, 2]) + rng.choice([0.0, 0.0, 1.0, -1000.0])
    if rng.random() < 0.2:
        values = torch.round(values)
    if dtype == "float64" and rng.random() < 0.3:
        values = values * 10.0 ** rng.choice([-300, -170, 170, 300])
    if rng.random() < 0.4:
        for _ in range(rng.choice([1, 3, 50])):
            if parts:
                values[rng.randrange(parts)] = rng.choice([math.nan, math.inf, -math.inf, -0.0])
    if rng.random() < 0.1:
        values[:] = rng.choice([0.1, math.nan, 0.0, -7.0])
    part = {"complex32": "float16", "complex64": "float32"}.get(dtype, "float64")
    part = part if kind.is_complex else dtype
    return values.to(getattr(torch, part)).view(kind)


def _shape(rng: random.Random, numel: int) -> list[int]:
    shape = []
    while numel > 1 and len(shape) < 5 and rng.random() < 0.75:
        size = rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 33])
        if size <= numel:
            shape.append(size)
            numel //= size
    return [*shape, max(numel, 0)]


def view(rng: random.Random, dtype: str, most: int) -> torch.Tensor:
    """A view of some memory: contiguous, permuted, stepped, expanded, overlapping, offset."""
    numel = rng.choice([0, 1, 2, 5, 100, most // 16, most // 3, most, most])
    shape = _shape(rng, numel)
    if rng.random() < 0.1:
        flat = memory(rng, dtype, sum(shape) + 40)
        return flat.as_strided(shape, [rng.choice([1, 1, 0, 1])] * len(shape), rng.randrange(20))
    offset = rng.choice([0, 0, 1, 3, 8])
    tensor = memory(rng, dtype, math.prod(shape) + offset)[offset:].reshape(shape)
    for _ in range(rng.choice([0, 0, 1, 2])):
        tensor = rng.choice([_permuted, _stepped, _expanded, _narrowed])(rng, tensor)
    if tensor.is_complex():
        tensor = tensor.conj() if rng.random() < 0.4 else tensor
        return tensor.imag if dtype == "complex64" and rng.random() < 0.2 else tensor
    return tensor


def _permuted(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    order = list(range(tensor.ndim))
    rng.shuffle(order)
    return tensor.permute(order)


def _stepped(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    axis = rng.randrange(tensor.ndim)
    return tensor[(slice(None),) * axis + (slice(rng.randrange(2), None, rng.choice([2, 3])),)]


def _expanded(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    axis = rng.randrange(tensor.ndim + 1)
    wide = tensor.unsqueeze(axis)
    return wide.expand([*tensor.shape[:axis], rng.choice([1, 2, 3]), *tensor.shape[axis:]])


def _narrowed(rng: random.Random, tensor: torch.Tensor) -> torch.Tensor:
    axis = rng.randrange(tensor.ndim)
    size = tensor.shape[axis]
    return tensor.narrow(axis, size // 4, size - size // 2)
