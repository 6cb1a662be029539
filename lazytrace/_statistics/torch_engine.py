"""Statistics of CPU tensors through torch, a bounded piece at a time.

The view is rebuilt over the storage's own memory, so that nothing but one piece is ever copied.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Final

import attrs
import torch
from torch.utils._python_dispatch import _disable_current_modes

from lazytrace._statistics.combine import ComplexSum, Counts, FloatSum, IntegerSum
from lazytrace._statistics.layout import Layout, layout_of, spanned_elements
from lazytrace._statistics.region import Family, Region, element_type
from lazytrace.errors import LazytraceError
from lazytrace.records import TensorStats

_PIECE = 1 << 18  # elements; a piece needs about 8 times as many float64 beside it
_LARGE = 2.0**500  # squares of float64 beyond this, or below its inverse, leave its range
_MAX_SCALE = 1000

# Integers are read through the type whose arithmetic torch has: the signed one of their width.
_CARRIERS: Final = {
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "uint16": torch.int16,
    "uint32": torch.int32,
    "uint64": torch.int64,
    "bool": torch.uint8,
}
_UNSIGNED_MASKS: Final = {"uint16": 0xFFFF, "uint32": 0xFFFFFFFF}
_LOW_HALF: Final = 0xFFFFFFFF
_SIGN_BIT: Final = -(1 << 63)


class OutOfBounds(LazytraceError):
    """A view reaches beyond its storage, which has shrunk or moved since."""


@attrs.frozen
class TorchEngine:
    """Reads views of CPU storages under no mode of the program's, and leaves nothing changed."""

    def read(
        self, regions: Sequence[Region], storages: Sequence[torch.UntypedStorage]
    ) -> list[TensorStats | Exception]:
        """Each region's statistics, or what prevented them; ``storages`` hold the regions."""
        with ExitStack() as stack:
            stack.enter_context(torch._C.DisableTorchFunction())
            stack.enter_context(_disable_current_modes())
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.no_grad())
            pairs = zip(regions, storages, strict=True)
            return [_read_or_error(region, storage) for region, storage in pairs]


def _read_or_error(region: Region, storage: torch.UntypedStorage) -> TensorStats | Exception:
    try:
        return _read(region, storage)
    except (LazytraceError, RuntimeError, ValueError, TypeError, MemoryError) as error:
        return error


def _read(region: Region, storage: torch.UntypedStorage) -> TensorStats:
    kind = element_type(region)
    layout = layout_of(region)
    if layout.numel == 0:
        return TensorStats()
    offset = _offset(region, storage, layout)
    if kind.family is Family.FLOAT:
        return _floats(_rebuilt(region.dtype, offset, layout, storage), layout, region)
    if kind.family is Family.COMPLEX:
        return _complexes(str(kind.part), offset, layout, storage, region)
    view = _rebuilt(region.dtype, offset, layout, storage)
    return _integers(view, region.dtype).stats(layout.repeats)


def _offset(region: Region, storage: torch.UntypedStorage, layout: Layout) -> int:
    """The view's offset in elements. A view past the end would make torch grow the storage."""
    offset, rest = divmod(region.data_ptr - storage.data_ptr(), region.element_size)
    end = (offset + spanned_elements(layout)) * region.element_size
    if offset < 0 or rest or end > storage.nbytes():
        raise OutOfBounds(f"the view ends at byte {end} of a storage of {storage.nbytes()} bytes")
    return offset


def _rebuilt(
    dtype: str, offset: int, layout: Layout, storage: torch.UntypedStorage
) -> torch.Tensor:
    carrier = _CARRIERS.get(dtype) or getattr(torch, dtype)
    empty = torch.empty(0, dtype=carrier, device=storage.device)
    return empty.set_(storage, offset, layout.shape, layout.strides)


def _pieces(
    view: torch.Tensor, per_element: int = 1, base: int = 0
) -> Iterator[tuple[int, torch.Tensor]]:
    """The view in row-major order, by pieces, each with the index of its first element."""
    if view.numel() <= _PIECE:
        yield base // per_element, view
        return
    inner = view[0].numel()
    rows = max(1, _PIECE // inner)
    for start in range(0, view.shape[0], rows):
        part = view[start : start + rows]
        piece = part[0] if len(part) == 1 and inner > _PIECE else part
        yield from _pieces(piece, per_element, base + start * inner)


def _logical_index(layout: Layout, index: int) -> int:
    """The row-major index in the whole view of the layout's element number ``index``."""
    logical = 0
    for size, weight in zip(reversed(layout.shape), reversed(layout.weights), strict=True):
        index, coordinate = divmod(index, size)
        logical += coordinate * weight
    return logical


def _floats(view: torch.Tensor, layout: Layout, region: Region) -> TensorStats:
    total = FloatSum()
    for base, piece in _pieces(view):
        _add_floats(total, piece.to(torch.float64).reshape(-1), base, layout)
    return total.stats(layout.repeats, negated=region.neg)


def _add_floats(total: FloatSum, values: torch.Tensor, base: int, layout: Layout) -> None:
    finite = values.isfinite()
    total.counts.zero += int((values == 0).sum())
    if not bool(finite.all()):
        _count_nonfinite(
            total.counts, values.isnan(), values == torch.inf, values == -torch.inf, base, layout
        )
        values = values[finite]
    if not len(values):
        return
    low, high = (float(bound) for bound in values.aminmax())
    if low == high:
        total.add(len(values), low, high, low, 0.0)
        return
    scale = _scale(max(abs(low), abs(high)))
    if scale:
        values = values * 2.0**-scale
    mean = values.mean()
    m2 = (values - mean).square().sum()
    total.add(len(values), low, high, float(mean), float(m2), scale)


def _scale(largest: float) -> int:
    if 1 / _LARGE < largest < _LARGE:
        return 0
    exponent = int(torch.frexp(torch.tensor(largest, dtype=torch.float64, device="cpu")).exponent)
    return max(-_MAX_SCALE, min(_MAX_SCALE, exponent))


def _count_nonfinite(
    counts: Counts,
    nan: torch.Tensor,
    posinf: torch.Tensor,
    neginf: torch.Tensor,
    base: int,
    layout: Layout,
) -> None:
    first = int((nan | posinf | neginf).to(torch.uint8).argmax())
    index = _logical_index(layout, base + first)
    counts.add(int(nan.sum()), int(posinf.sum()), int(neginf.sum()), index)


def _complexes(
    part: str, offset: int, layout: Layout, storage: torch.UntypedStorage, region: Region
) -> TensorStats:
    pairs = Layout(
        (*layout.shape, 2), (*(2 * stride for stride in layout.strides), 1), (), layout.repeats
    )
    view = _rebuilt(part, 2 * offset, pairs, storage)
    total = ComplexSum()
    for base, piece in _pieces(view, per_element=2):
        values = piece.to(torch.float64).reshape(-1, 2)
        real = -values[:, 0] if region.neg else values[:, 0]
        imag = -values[:, 1] if region.neg != region.conj else values[:, 1]
        total.counts.zero += int(((real == 0) & (imag == 0)).sum())
        if not bool(values.isfinite().all()):
            _count_nonfinite(
                total.counts,
                real.isnan() | imag.isnan(),
                (real == torch.inf) | (imag == torch.inf),
                (real == -torch.inf) | (imag == -torch.inf),
                base,
                layout,
            )
        _add_floats(total.real, real, base, layout)
        _add_floats(total.imag, imag, base, layout)
    return total.stats(layout.repeats)


def _integers(view: torch.Tensor, dtype: str) -> IntegerSum:
    total = IntegerSum()
    bias = 1 << 63 if dtype == "uint64" else 0
    for _, piece in _pieces(view):
        values = piece.reshape(-1)
        values = (values != 0).to(torch.int64) if dtype == "bool" else values.to(torch.int64)
        if dtype in _UNSIGNED_MASKS:
            values = values & _UNSIGNED_MASKS[dtype]
        zero = int((values == 0).sum())
        if bias:
            values = values ^ _SIGN_BIT
        _add_integers(total, values, zero, bias)
    return total


def _add_integers(total: IntegerSum, values: torch.Tensor, zero: int, bias: int) -> None:
    """Adds int64 values from which ``bias`` was subtracted; distances are unsigned."""
    n = len(values)
    low, high = (int(bound) for bound in values.aminmax())
    distance = values - low
    upper = (distance >> 32) & _LOW_HALF
    lower = distance & _LOW_HALF
    summed = (int(upper.sum()) << 32) + int(lower.sum())
    exact = upper.to(torch.float64) * 2.0**32 + lower.to(torch.float64)
    m2 = float((exact - summed / n).square().sum())
    least = low + bias
    total.add(n, least, high + bias, summed + n * least, m2, zero)
