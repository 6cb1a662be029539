"""Kernels with known argument roles, and how to get a kernel's TTIR without a device."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import NamedTuple

import attrs
import triton
import triton.language as tl
from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.compiler.compiler import make_backend
from triton.language.extra import libdevice

CUDA_90 = GPUTarget("cuda", 90, 32)
CUDA_80 = GPUTarget("cuda", 80, 32)  # no TMA: descriptors become pointers in the TTIR
AMD = GPUTarget("hip", "gfx942", 64)

VERSION = tuple(int(part) for part in triton.__version__.split(".")[:2])

F32, I32, I64 = "*fp32", "*i32", "*i64"
DESCRIPTOR = "tensordesc<fp16[16, 16]>"


def compile_ttir(
    kernel: triton.JITFunction,
    signature: Mapping[str, object],
    constants: Mapping[tuple[int, ...], object] | None = None,
    target: GPUTarget = CUDA_90,
    **options: object,
) -> tuple[str, ASTSource]:
    """The kernel's TTIR as in ``compiled.asm["ttir"]``, and its source; no later stage runs."""
    source = ASTSource(fn=kernel, signature=dict(signature), constexprs=dict(constants or {}))
    backend = make_backend(target)
    parsed = backend.parse_options(dict(options))
    context = ir.context()
    ir.load_dialects(context)
    backend.load_dialects(context)
    stages: dict[str, object] = {}
    with_language = len(inspect.signature(backend.add_stages).parameters) == 3
    backend.add_stages(stages, parsed, *((source.language,) if with_language else ()))
    with_target = "target" in inspect.signature(source.make_ir).parameters  # not on 3.4
    module = source.make_ir(
        *((target,) if with_target else ()),
        parsed,
        backend.get_codegen_implementation(parsed),
        backend.get_module_map(),
        context,
    )
    return str(stages["ttir"](module, {})), source


@attrs.frozen
class Case:
    """A kernel and the roles it must have: r, w, rw, ? (unknown)."""

    kernel: triton.JITFunction
    signature: Mapping[str, object]
    roles: Mapping[str, str]
    constants: Mapping[tuple[int, ...], object] = attrs.field(factory=dict)
    reads_unknown: bool = False
    writes_unknown: bool = False
    reason: str | None = None  # a part of it; None: there must be none
    options: Mapping[str, object] = attrs.field(factory=dict)
    targets: tuple[GPUTarget, ...] = (CUDA_90,)
    since: tuple[int, int] = (3, 4)
    before: tuple[int, int] = (99, 0)


class Config(NamedTuple):
    x: object
    n: object
    y: object


# Plain memory


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    tl.store(out + o, tl.load(x + o, mask=m) + tl.load(y + o, mask=m, other=0.0), mask=m)


@triton.jit
def scale_in_place(x, unused, n):
    o = tl.arange(0, 16)
    tl.store(x + o, tl.load(x + o, mask=o < n) * 2, mask=o < n)


@triton.jit
def indirect(x, index, out):
    o = tl.arange(0, 16)
    tl.store(out + tl.load(index + o), tl.load(x + tl.load(index + o)))


@triton.jit
def atomics(added, swapped, compared, old):
    o = tl.arange(0, 16)
    tl.atomic_add(added + o, 1.0)
    tl.store(old, tl.atomic_xchg(swapped, 3))
    tl.atomic_cas(compared, 0, 1)


@triton.jit
def atomic_loads_and_stores(loaded, stored, polled):
    o = tl.arange(0, 16)
    tl.atomic_store(stored + o, tl.atomic_load(loaded + o))
    tl.atomic_poll(polled, 1)


@triton.jit
def reinterpreted(x, out):
    o = tl.arange(0, 16)
    raw = x.to(tl.pointer_type(tl.int8))
    tl.store(out.to(tl.pointer_type(tl.int8), bitcast=True) + o, tl.load(raw + o))


# Control flow


@triton.jit
def swap_in_loop(a, b, c, n):
    o = tl.arange(0, 16)
    source = a
    target = b
    for _ in range(n):
        tl.store(target + o, tl.load(source + o))
        source, target = target, source
    tl.store(c + o, 1.0)


@triton.jit
def walk_while(a, b, n):
    p = a
    while n > 3:
        p += 4
        n -= 1
        tl.store(p, 1.0)
    tl.store(b, tl.load(p))


@triton.jit
def chosen_by_if(a, b, c, n):
    if n > 5:
        p = a
        q = b
    else:
        p = b
        q = c
    tl.store(p, tl.load(q))


@triton.jit
def chosen_by_where(a, b, c, n):
    o = tl.arange(0, 16)
    p = tl.where(o < n, a + o, b + o)
    tl.store(tl.where(n > 3, c, a) + o, tl.load(p))


@triton.jit
def returns_early(a, b, c, n):
    if n == 0:
        return
    p = a
    if n > 7:
        p = b
        tl.store(p, 1.0)
        return
    tl.store(c, tl.load(p))


@triton.jit
def nested_loops(a, b, c, d, n):
    p, q, r = a, b, c
    for i in range(n):
        for _ in range(i):
            if i > 3:
                p, q, r = q, r, p
        tl.store(p, 2.0)
    tl.store(d, 1.0)


# Calls


@triton.jit(noinline=True)
def copy_line(target, source):
    o = tl.arange(0, 8)
    tl.store(target + o, tl.load(source + o))
    return source + 8


@triton.jit(noinline=True)
def pair(p, q, n):
    if n > 3:
        p += 1
    return q, copy_line(p, q)


@triton.jit
def calls(a, b, c):
    copy_line(a, b)
    copy_line(b, c)


@triton.jit
def calls_that_return(a, b, c, n):
    p, q = pair(a, b, n)
    tl.store(q, 1.0)
    tl.store(c, tl.load(p))


# Addresses from elsewhere


@triton.jit
def pointer_table(table, x, out, n):
    o = tl.arange(0, 16)
    p = tl.load(table + n).to(tl.pointer_type(tl.float32))
    tl.store(out + o, tl.load(p + o) + tl.load(x + o))


@triton.jit
def pointer_table_written(table, x, n):
    o = tl.arange(0, 16)
    for i in range(n):
        p = tl.load(table + i).to(tl.pointer_type(tl.float32))
        tl.store(p + o, tl.load(x + o))


@triton.jit
def integer_address(address, x):
    tl.store(address.to(tl.pointer_type(tl.float32)), tl.load(x))


@triton.jit
def typed_pointer_table(table, x, n):
    o = tl.arange(0, 16)
    typed = table.to(tl.pointer_type(tl.pointer_type(tl.float32)), bitcast=True)
    tl.store(tl.load(typed + n) + o, tl.load(x + o))


@triton.jit
def offset_from_integer(x, offset, y):
    p = (x.to(tl.int64, bitcast=True) + offset).to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(y, tl.load(p))


@triton.jit
def offset_from_memory(x, offsets, y):
    p = x.to(tl.int64, bitcast=True) + tl.load(offsets)
    tl.store(p.to(tl.pointer_type(tl.float32), bitcast=True), tl.load(y))


@triton.jit
def through_integers(x, y, n):
    p = (x.to(tl.int64, bitcast=True) + 4 * n).to(tl.pointer_type(tl.float32), bitcast=True)
    tl.store(p, tl.load(y))


@triton.jit
def by_difference(x, y, z):
    d = y.to(tl.int64, bitcast=True) - x.to(tl.int64, bitcast=True)
    tl.store(x + d // 4, tl.load(z))


@triton.jit
def stores_its_pointer(x, box, y):
    tl.store(box, x.to(tl.int64, bitcast=True))
    tl.store(y, 1.0)


# Foreign code


@triton.jit
def register_asm(x, out):
    o = tl.arange(0, 16)
    v = tl.inline_asm_elementwise(
        "{ .reg .pred p; setp.gt.f32 p, $1, 0f00000000; // ld.global\n @p mov.b32 $0, $1; }",
        "=f,f",
        [tl.load(x + o)],
        dtype=tl.float32,
        is_pure=False,
        pack=1,
    )
    tl.inline_asm_elementwise(
        "griddepcontrol.wait; // dummy $0", "=r", [], dtype=tl.int32, is_pure=False, pack=1
    )
    tl.store(out + o, v)


@triton.jit
def pure_asm_that_loads(x, y, out):
    o = tl.arange(0, 16)
    v = tl.inline_asm_elementwise(
        "ld.global.f32 $0, [$1];",
        "=f,l",
        [(x + o).to(tl.int64, bitcast=True)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
    tl.store(out + o, v + tl.load(y + o))


@triton.jit
def impure_asm(x, out):
    o = tl.arange(0, 16)
    v = tl.inline_asm_elementwise(
        "call (), f, ($1); mov.b32 $0, $1;",
        "=f,f",
        [tl.load(x + o)],
        dtype=tl.float32,
        is_pure=False,
        pack=1,
    )
    tl.store(out + o, v)


@triton.jit
def library_call(x, out):
    o = tl.arange(0, 16)
    tl.store(out + o, libdevice.tgamma(tl.load(x + o)))


# Arguments


@triton.jit
def vanishing(x, none, one, out, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    v = tl.load(x + o * one)
    if none is not None:
        v += tl.load(none + o)
    tl.store(out + o, v)


@triton.jit
def nested_tuples(ts, cfg, n):
    o = tl.arange(0, 16)
    tl.store(ts[1][0] + o, tl.load(ts[0] + o) + cfg.n)
    tl.atomic_add(cfg.x + o, n)


# Descriptors


@triton.jit
def descriptors(d, e, f, x, n):
    v = d.load([0, n])
    e.store([n, 0], v)
    f.atomic_add([0, 0], v)
    tl.store(x, n)


@triton.jit
def descriptor_rows(d, e, n):
    rows = tl.arange(0, 32) + n
    e.scatter(d.gather(rows, 0), rows, 0)


@triton.jit
def descriptor_loop(d, e, w, n, WARPS: tl.constexpr):
    acc = tl.zeros((16, 16), tl.float32)
    for i in tl.range(n, warp_specialize=WARPS):
        acc = tl.dot(d.load([0, i * 16]), w.load([i * 16, 0]), acc)
    e.store([0, 0], acc.to(tl.float16))


@triton.jit
def device_descriptors(x, y, n):
    d = tl.make_tensor_descriptor(x, shape=[n, n], strides=[n, 1], block_shape=[16, 16])
    e = tl.make_tensor_descriptor(y, shape=[n, n], strides=[n, 1], block_shape=[16, 16])
    for i in range(n):
        e.store([0, i * 16], d.load([i * 16, 0]))


@triton.jit
def chosen_descriptor(d, e, f, n):
    c = d
    if n > 3:
        c = e
    f.store([0, 0], c.load([0, 0]))


@triton.jit
def block_pointers(x, y, n):
    p = tl.make_block_ptr(x, (n, n), (n, 1), (0, 0), (16, 16), (1, 0))
    q = tl.make_block_ptr(y, (n, n), (n, 1), (0, 0), (16, 16), (1, 0))
    for _ in range(n):
        tl.store(q, tl.load(p, boundary_check=(0, 1)), boundary_check=(0,))
        p = tl.advance(p, (0, 16))
        q = tl.advance(q, (16, 0))


# Operations with regions, and everything that computes


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def _first_of_two(a, i, b, j):
    keep = a > b
    return tl.where(keep, a, b), tl.where(keep, i, j)


@triton.jit
def combining(x, index, out, counts):
    o = tl.arange(0, 16)
    v = tl.load(x + o)
    i = tl.load(index + o)
    m, j = tl.reduce((v, i), 0, _first_of_two)
    s = tl.associative_scan(v, 0, _larger) + tl.cumsum(v, 0) + tl.sort(v)
    tl.store(out + o, s + m + j)
    tl.store(counts + o, tl.histogram(i, 16))


@triton.jit
def _branching(x, y):
    r = x * y if x > y else x + y
    return r, x


@triton.jit
def elementwise(x, y, out):
    o = tl.arange(0, 16)
    r, s = tl.map_elementwise(_branching, tl.load(x + o), tl.load(y + o))
    tl.store(out + o, r + s)


@triton.jit
def matmul(a, b, c, k, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    pa = a + o[:, None] * k + o[None, :]
    pb = b + o[:, None] * BLOCK + o[None, :]
    acc = tl.zeros((BLOCK, BLOCK), tl.float32)
    for _ in tl.range(0, k, BLOCK, num_stages=3):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += BLOCK
        pb += BLOCK * BLOCK
    tl.store(c + o[:, None] * BLOCK + o[None, :], acc)


@triton.jit
def talking(x, out, n):
    o = tl.arange(0, 16)
    v = tl.load(x + o, eviction_policy="evict_last", volatile=True)
    tl.device_print('x at "%0", {', v, x + o)
    tl.device_assert(n > 1, "not %n (really) {")
    tl.debug_barrier()
    tl.assume(n > 0)
    r = tl.rand(n, o) + tl.math.erf(v) + tl.flip(v, 0)
    tl.store(out + o, tl.gather(r, o, 0), cache_modifier=".cs")


_ALL = (CUDA_90, CUDA_80, AMD)

CASES = (
    Case(
        add,
        {"x": F32, "y": F32, "out": F32, "n": "i32", "BLOCK": "constexpr"},
        {"x": "r", "y": "r", "out": "w"},
        constants={(4,): 64},
        targets=_ALL,
    ),
    Case(scale_in_place, {"x": F32, "unused": F32, "n": "i32"}, {"x": "rw", "unused": "r"}),
    Case(indirect, {"x": F32, "index": I64, "out": F32}, {"x": "r", "index": "r", "out": "w"}),
    Case(
        atomics,
        {"added": F32, "swapped": I32, "compared": I32, "old": I32},
        {"added": "rw", "swapped": "rw", "compared": "rw", "old": "w"},
    ),
    Case(
        atomic_loads_and_stores,
        {"loaded": I32, "stored": I32, "polled": I32},
        {"loaded": "r", "stored": "w", "polled": "r"},
        since=(3, 9),
    ),
    Case(reinterpreted, {"x": F32, "out": F32}, {"x": "r", "out": "w"}),
    Case(
        swap_in_loop,
        {"a": F32, "b": F32, "c": F32, "n": "i32"},
        {"a": "rw", "b": "rw", "c": "w"},
    ),
    Case(walk_while, {"a": F32, "b": F32, "n": "i32"}, {"a": "rw", "b": "w"}),
    Case(
        chosen_by_if,
        {"a": F32, "b": F32, "c": F32, "n": "i32"},
        {"a": "w", "b": "rw", "c": "r"},
    ),
    Case(
        chosen_by_where,
        {"a": F32, "b": F32, "c": F32, "n": "i32"},
        {"a": "rw", "b": "r", "c": "w"},
    ),
    Case(
        returns_early,
        {"a": F32, "b": F32, "c": F32, "n": "i32"},
        {"a": "r", "b": "w", "c": "w"},
    ),
    Case(
        nested_loops,
        {"a": F32, "b": F32, "c": F32, "d": F32, "n": "i32"},
        {"a": "w", "b": "w", "c": "w", "d": "w"},
    ),
    Case(calls, {"a": F32, "b": F32, "c": F32}, {"a": "w", "b": "rw", "c": "r"}, targets=_ALL),
    Case(
        calls_that_return,
        {"a": F32, "b": F32, "c": F32, "n": "i32"},
        {"a": "w", "b": "rw", "c": "w"},
    ),
    Case(
        pointer_table,
        {"table": I64, "x": F32, "out": F32, "n": "i32"},
        {"table": "r", "x": "r", "out": "w"},
        reads_unknown=True,
        reason="loaded through table",
    ),
    Case(
        pointer_table_written,
        {"table": I64, "x": F32, "n": "i32"},
        {"table": "r", "x": "r"},
        writes_unknown=True,
        reason="loaded through table",
    ),
    Case(
        integer_address,
        {"address": "i64", "x": F32},
        {"x": "r"},
        writes_unknown=True,
        reason="computed from integers",
    ),
    Case(
        typed_pointer_table,
        {"table": I64, "x": F32, "n": "i32"},
        {"table": "r", "x": "r"},
        writes_unknown=True,
        reason="tt.store at an address loaded through table",
        before=(3, 9),  # which aborts in its own compiler here
    ),
    # An integer of 64 bits may be another tensor's address, and x's own only the offset.
    Case(
        offset_from_integer,
        {"x": F32, "offset": "i64", "y": F32},
        {"x": "r", "y": "w"},
        reads_unknown=True,
        reason="tt.load at an address computed from integers",
    ),
    Case(
        offset_from_memory,
        {"x": F32, "offsets": I64, "y": F32},
        {"x": "w", "offsets": "r", "y": "r"},
        writes_unknown=True,
        reason="tt.store at an address loaded through offsets",
    ),
    Case(through_integers, {"x": F32, "y": F32, "n": "i32"}, {"x": "w", "y": "r"}),
    Case(
        by_difference,
        {"x": F32, "y": F32, "z": F32},
        {"x": "w", "y": "w", "z": "r"},
        writes_unknown=True,
        reason="computed from integers",
    ),
    Case(
        stores_its_pointer,
        {"x": F32, "box": I64, "y": F32},
        {"x": "?", "box": "w", "y": "w"},
        reason="the address of x is stored to memory",
    ),
    Case(register_asm, {"x": F32, "out": F32}, {"x": "r", "out": "w"}),
    Case(
        pure_asm_that_loads,
        {"x": F32, "y": F32, "out": F32},
        {"x": "?", "y": "r", "out": "w"},
        reads_unknown=True,
        writes_unknown=True,
        reason="the address of x goes to tt.elementwise_inline_asm",
    ),
    Case(
        impure_asm,
        {"x": F32, "out": F32},
        {"x": "r", "out": "w"},
        reads_unknown=True,
        writes_unknown=True,
        reason="with side effects",
    ),
    Case(library_call, {"x": F32, "out": F32}, {"x": "r", "out": "w"}),
    Case(
        vanishing,
        {"x": F32, "none": "constexpr", "one": "constexpr", "out": F32, "BLOCK": "constexpr"},
        {"x": "r", "out": "w"},
        constants={(1,): None, (2,): 1, (4,): 16},
    ),
    Case(
        nested_tuples,
        {
            "ts": (F32, (F32, "constexpr", "i32"), F32),
            "cfg": Config(F32, "constexpr", I32),
            "n": "fp32",
        },
        {"ts[0]": "r", "ts[1][0]": "w", "ts[2]": "r", "cfg.x": "rw", "cfg.y": "r"},
        constants={(0, 1, 1): None, (1, 1): 1},
    ),
    Case(
        descriptors,
        {"d": DESCRIPTOR, "e": DESCRIPTOR, "f": DESCRIPTOR, "x": I32, "n": "i32"},
        {"d.base": "r", "e.base": "w", "f.base": "rw", "x": "w"},
        targets=_ALL,
    ),
    Case(
        descriptor_rows,
        {"d": "tensordesc<fp16[1, 16]>", "e": "tensordesc<fp16[1, 16]>", "n": "i32"},
        {"d.base": "r", "e.base": "w"},
        targets=(CUDA_90, CUDA_80),
    ),
    Case(
        descriptor_loop,
        {"d": DESCRIPTOR, "e": DESCRIPTOR, "w": DESCRIPTOR, "n": "i32", "WARPS": "constexpr"},
        {"d.base": "r", "e.base": "w", "w.base": "r"},
        constants={(4,): True},
    ),
    Case(
        device_descriptors,
        {"x": "*fp16", "y": "*fp16", "n": "i32"},
        {"x": "r", "y": "w"},
        targets=_ALL,
    ),
    Case(
        chosen_descriptor,
        {"d": DESCRIPTOR, "e": DESCRIPTOR, "f": DESCRIPTOR, "n": "i32"},
        {"d.base": "r", "e.base": "r", "f.base": "w"},
        targets=(CUDA_90, CUDA_80),
    ),
    Case(
        block_pointers,
        {"x": F32, "y": F32, "n": "i32"},
        {"x": "r", "y": "w"},
        before=(3, 8),
        targets=_ALL,
    ),
    Case(
        combining,
        {"x": F32, "index": I32, "out": F32, "counts": I32},
        {"x": "r", "index": "r", "out": "w", "counts": "w"},
    ),
    Case(
        elementwise,
        {"x": F32, "y": F32, "out": F32},
        {"x": "r", "y": "r", "out": "w"},
        since=(3, 5),
    ),
    Case(
        matmul,
        {"a": "*fp16", "b": "*fp16", "c": F32, "k": "i32", "BLOCK": "constexpr"},
        {"a": "r", "b": "r", "c": "w"},
        constants={(4,): 32},
    ),
    Case(
        talking,
        {"x": F32, "out": F32, "n": "i32"},
        {"x": "r", "out": "w"},
        options={"debug": True},
    ),
)
