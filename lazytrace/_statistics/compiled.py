"""The statistics kernels compiled for a device and launched by hand on a raw stream.

A launch goes straight to the compiled kernel's launcher: no hook sees it, no torch is involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import attrs
import triton
import triton.language as tl
from triton.compiler import ASTSource

from lazytrace._statistics import bulk_kernels, integer_kernels, kernels, packed_kernels
from lazytrace._statistics.plan import SUB, VECTOR_BYTES

_WARPS = 4
_PACKED_CAPABILITY = 90  # the first with two-element minimum of 16-bit integers
_PACKED_ROWS = 128
_BULK_ROWS = 256  # vectors that are read at once; it divides the plan's tile
_PACKED_FLOATS: Final = {"bfloat16": 2, "float16": 2, "float8_e4m3fn": 4, "float8_e5m2": 4}
_BYTES: Final = ("int8", "uint8", "bool")
_FLOAT8_CAPABILITY = 89  # the first whose float8_e4m3fn Triton converts
_SIGN_BIT = -(1 << 63)
# Fused multiply-add, named because Triton 3.9 warns of a changing default otherwise.
_OPTIONS: Final = {"enable_fp_fusion": True}


@attrs.frozen
class Form:
    """How the kernels read one dtype: the type loaded, its decoding, the bulk's arithmetic."""

    loaded: Any
    format: str = "native"
    compute: Any = tl.float32
    integral: bool = False
    flip: int | None = None
    part: bool = False


_NATIVE_FLOAT8: Final = {
    "float8_e4m3fn": Form(tl.float8e4nv, "float8"),
    "float8_e5m2": Form(tl.float8e5, "float8"),
}
_FORMS: Final = {
    "float64": Form(tl.float64, compute=tl.float64),
    "float32": Form(tl.float32),
    "float16": Form(tl.float16),
    "bfloat16": Form(tl.bfloat16),
    "float8_e4m3fn": Form(tl.uint8, "float8_e4m3fn"),
    "float8_e4m3fnuz": Form(tl.uint8, "float8_e4m3fnuz"),
    "float8_e5m2": Form(tl.uint8, "float8_e5m2"),
    "float8_e5m2fnuz": Form(tl.uint8, "float8_e5m2fnuz"),
    "float8_e8m0fnu": Form(tl.uint8, "float8_e8m0fnu"),
    "int8": Form(tl.int8, integral=True),
    "int16": Form(tl.int16, integral=True),
    "int32": Form(tl.int32, compute=tl.float64, integral=True),
    "uint8": Form(tl.uint8, integral=True),
    "uint16": Form(tl.uint16, integral=True),
    "uint32": Form(tl.uint32, compute=tl.float64, integral=True),
    "bool": Form(tl.uint8, "bool", integral=True),
    "int64": Form(tl.int64, flip=0),
    "uint64": Form(tl.int64, flip=_SIGN_BIT),
    "complex32": Form(tl.float16, part=True),
    "complex64": Form(tl.float32, part=True),
    "complex128": Form(tl.float64, compute=tl.float64, part=True),
}


@attrs.frozen
class Stage:
    """One kernel of a dtype with its constants."""

    kernel: Any
    constants: Mapping[str, Any]


@attrs.frozen
class Stages:
    """A dtype's kernels. The exact one also ``redoes`` what the bulk one gave up."""

    bulk: Stage | None
    exact: Stage
    redoes: bool


def stages_of(dtype: str, capability: int) -> Stages:
    """The kernels that read a dtype on a device of this compute capability (90: 9.0)."""
    form = _FORMS[dtype]
    if capability >= _FLOAT8_CAPABILITY:
        form = _NATIVE_FLOAT8.get(dtype, form)
    scaled = form.compute is tl.float64 and not form.integral
    if form.part:
        constants = {"IN": form.loaded, "SCALED": scaled, "SUB": SUB}
        return Stages(None, Stage(kernels.lazytrace_complex_statistics, constants), False)
    vector = VECTOR_BYTES * 8 // form.loaded.primitive_bitwidth
    if form.flip is not None:
        constants = {"FLIP": form.flip, "ROWS": _BULK_ROWS, "VECTOR": vector}
        kernel = integer_kernels.lazytrace_integer64_statistics
        bulk = Stage(kernel, {**constants, "MASKED": False})
        return Stages(bulk, Stage(kernel, {**constants, "MASKED": True}), False)
    constants = {"IN": form.loaded, "FORMAT": form.format, "INTEGRAL": form.integral}
    bulk = Stage(
        bulk_kernels.lazytrace_bulk_statistics,
        {**constants, "COMPUTE": form.compute, "ROWS": _BULK_ROWS, "VECTOR": vector},
    )
    exact = Stage(kernels.lazytrace_exact_statistics, {**constants, "SCALED": scaled, "SUB": SUB})
    if capability >= _PACKED_CAPABILITY:
        bulk = _packed(dtype) or bulk
    return Stages(bulk, exact, True)


def _packed(dtype: str) -> Stage | None:
    per_word = _PACKED_FLOATS.get(dtype)
    if per_word:
        constants = {"FORMAT": dtype, "PER_WORD": per_word, "ROWS": _PACKED_ROWS}
        return Stage(packed_kernels.lazytrace_packed_statistics, constants)
    if dtype in _BYTES:
        constants = {"SIGNED": dtype == "int8", "BOOL": dtype == "bool", "ROWS": _PACKED_ROWS}
        return Stage(packed_kernels.lazytrace_bytes_statistics, constants)
    return None


def compile_for(stage: Stage, target: Any, warps: int = _WARPS) -> Any:
    """The stage as a CompiledKernel; all its other parameters are 64-bit integers."""
    names = stage.kernel.arg_names
    signature = {name: "constexpr" if name in stage.constants else "i64" for name in names}
    source = ASTSource(stage.kernel, signature, constexprs=dict(stage.constants))
    return triton.compile(source, target=target, options={**_OPTIONS, "num_warps": warps})


@attrs.define
class LoadedKernel:
    """A compiled kernel on one device. It holds what, from Triton 3.8 on, unloads when it dies."""

    _compiled: Any
    _run: Any
    _function: Any
    _metadata: Any
    _constants: tuple[Any, ...]

    @classmethod
    def load(cls, stage: Stage, target: Any, warps: int = _WARPS) -> LoadedKernel:
        """Compiles, and loads onto the current device."""
        compiled = compile_for(stage, target, warps)
        run = compiled.run  # the property that loads the module
        constants = tuple(stage.constants.get(name) for name in stage.kernel.arg_names)
        return cls(compiled, run, compiled.function, compiled.packed_metadata, constants)

    def launch(self, grid: tuple[int, int], stream: int, *numbers: int) -> None:
        """Enqueues the kernel; ``numbers`` are its leading parameters."""
        constants = self._constants[len(numbers) :]
        self._run(
            *grid,
            1,
            stream,
            self._function,
            self._metadata,
            None,
            None,
            None,
            *numbers,
            *constants,
        )


@attrs.define
class CompiledKernels:
    """The kernels of one device, compiled as dtypes are asked for."""

    _loaded: dict[tuple[str, bool], LoadedKernel] = attrs.field(factory=dict)
    _stages: dict[str, Stages] = attrs.field(factory=dict)

    def prepare(self, dtype: str) -> Stages:
        """Compiles and loads the dtype's kernels; the device must be the current one."""
        known = self._stages.get(dtype)
        if known is not None:
            return known
        target = triton.runtime.driver.active.get_current_target()
        stages = stages_of(dtype, int(target.arch))
        for stage, is_bulk in ((stages.bulk, True), (stages.exact, False)):
            if stage is not None:
                self._loaded[dtype, is_bulk] = LoadedKernel.load(stage, target)
        self._stages[dtype] = stages
        return stages

    def launch(
        self, dtype: str, is_bulk: bool, programs: int, stream: int, addresses: tuple[int, int, int]
    ) -> None:
        """Enqueues one kernel; ``addresses``: job table, first program, records."""
        self._loaded[dtype, is_bulk].launch((programs, 1), stream, *addresses)
