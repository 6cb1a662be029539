"""Soundness of the roles: random kernels, and every access that they make must be covered.

A kernel's source is run twice: compiled by Triton to the TTIR that the roles are read from, and
by Python itself with stand-ins for ``tl`` and for pointers that record what is accessed.
"""

from __future__ import annotations

import importlib.util
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace

import attrs
import pytest
from roles_kernels import AMD, CUDA_80, CUDA_90, compile_ttir
from triton.compiler.errors import CompilationError

from lazytrace._roles.roles import KernelRoles, roles_of
from lazytrace.records import Role

FOREIGN = "foreign"
POINTERS = ("p0", "p1", "p2", "p3")
SIGNATURE = {
    **dict.fromkeys(POINTERS, "*fp32"),
    "box": "*i64",
    "address": "i64",
    "n0": "i32",
    "n1": "i32",
}
RUNS = ((2, 3), (3, 2), (5, 2), (0, 0), (1, 4), (4, 4), (2, 5), (7, 1))

PRELUDE = """
import triton
import triton.language as tl

@triton.jit
def inlined(p, q, k):
    tl.store(p + tl.arange(0, 8), 1.0)
    return q

@triton.jit(noinline=True)
def copied(p, q, k):
    o = tl.arange(0, 8)
    tl.store(p + o, tl.load(q + o))
    return q + 4

@triton.jit(noinline=True)
def crossed(p, q, k):
    r = copied(q, p, k)
    for _ in range(k):
        r += 2
    return r

@triton.jit(noinline=True)
def early(p, q, k):
    if k > 3:
        tl.store(q, 1.0)
        return p
    return q

@triton.jit(noinline=True)
def turned(p, q, k):
    return q, p
"""


class Writer:
    """Writes one random kernel."""

    def __init__(self, rng: random.Random, name: str) -> None:
        self.rng = rng
        self.lines = ["@triton.jit", f"def {name}({', '.join(SIGNATURE)}):"]
        self.names = "abcd"[: rng.randint(2, 4)]
        self.counters = 0

    def source(self) -> str:
        self.put(1, "o = tl.arange(0, 8)", "v = tl.zeros((8,), tl.float32)")
        for name in self.names:
            self.put(1, f"{name} = {self.rng.choice(POINTERS)}")
        for _ in range(self.rng.randint(3, 7)):
            self.statement(1, depth=3)
            if self.rng.random() < 0.06:
                self.put(1, f"if n0 > {self.rng.randint(1, 4)}:")
                self.block(2, depth=1)
                self.put(2, "return")
        self.put(1, f"tl.store({self.rng.choice(self.names)} + o, v)")
        return "\n".join(self.lines) + "\n"

    def put(self, indent: int, *lines: str) -> None:
        self.lines.extend("    " * indent + line for line in lines)

    def block(self, indent: int, depth: int) -> None:
        for _ in range(self.rng.randint(1, 4)):
            self.statement(indent, depth)

    def statement(self, indent: int, depth: int) -> None:
        if depth > 0 and self.rng.random() < 0.24:
            self.nest(indent, depth)
            return
        a, b = self.rng.choice(self.names), self.rng.choice(self.names)
        k = self.rng.choice(("1", "n1", "n0"))
        limit = self.rng.randint(0, 3)
        forms: tuple[tuple[int, tuple[str, ...]], ...] = (
            (12, (f"{a} = {b}",)),
            (10, (f"{a}, {b} = {b}, {a}",)),
            (8, (f"{a} += {self.rng.choice(('4', 'n0', 'n1 * 2'))}",)),
            (12, (f"v += tl.load({a} + o)",)),
            (10, (f"tl.store({a} + o, v)",)),
            (4, (f"v += tl.atomic_{self.rng.choice(('add', 'max'))}({a} + o, v)",)),
            (4, (f"tl.store({a} + o, v, mask=o < n1)",)),
            (6, (f"{a} = tl.where(n0 > {limit}, {a}, {b})",)),
            (3, (f"{a} = {a} if n1 > {limit} else {b}",)),
            (8, (f"{a} = {self.rng.choice(('inlined', 'copied', 'crossed'))}({a}, {b}, {k})",)),
            (4, (f"{a} = early({a}, {b}, {k})",)),
            (4, (f"{a}, {b} = turned({a}, {b}, {k})",)),
            (4, (f"w = tl.where(o < n1, {a} + o, {b} + o)", "v += tl.load(w)")),
            (2, (f"tl.store(tl.where(o < n0, {a} + o, {b} + o), v)",)),
            (3, (f"{a} = ({b}.to(INT, bitcast=True) + 8 * n1).to(PTR, bitcast=True)",)),
            (2, (f"tl.store(box, {a}.to(INT, bitcast=True))",)),
            (2, (f"{a} = tl.load(box).to(PTR, bitcast=True)",)),
            (1, (f"{a} = address.to(PTR, bitcast=True)",)),
            (
                3,
                (
                    f"e = {self.descriptor(a)}",
                    f"{self.descriptor(b)}.store([n0, 0], e.load([0, 0]))",
                ),
            ),
            (1, (f"v += {self.assembly(a)}",)),
            (1, ("v += tl.sum(v, 0)",)),
        )
        weights, choices = zip(*forms, strict=True)
        for line in self.rng.choices(choices, weights)[0]:
            line = line.replace("INT", "tl.int64").replace("PTR", "tl.pointer_type(tl.float32)")
            self.put(indent, line)

    def nest(self, indent: int, depth: int) -> None:
        bound = f"n{self.rng.randint(0, 1)}"
        kind = self.rng.choices(("if", "for", "while"), (12, 9, 5))[0]
        self.counters += 1
        counter = f"i{self.counters}"
        if kind == "if":
            self.put(indent, f"if {bound} > {self.rng.randint(0, 3)}:")
            self.block(indent + 1, depth - 1)
            if self.rng.random() < 0.6:
                self.put(indent, "else:")
                self.block(indent + 1, depth - 1)
        elif kind == "for":
            self.put(indent, f"for {counter} in range({bound}):")
            self.block(indent + 1, depth - 1)
        else:
            self.put(indent, f"{counter} = 0", f"while {counter} < {bound}:")
            self.block(indent + 1, depth - 1)
            self.put(indent + 1, f"{counter} += 1")

    @staticmethod
    def descriptor(base: str) -> str:
        return f"tl.make_tensor_descriptor({base}, [n0, 16], [16, 1], [8, 16])"

    @staticmethod
    def assembly(pointer: str) -> str:
        return (
            "tl.inline_asm_elementwise('ld.global.f32 $0, [$1];', '=f,l', "
            f"[({pointer} + o).to(tl.int64, bitcast=True)], dtype=tl.float32, is_pure=True, pack=1)"
        )


@attrs.frozen
class Address:
    """A pointer, or the integer made of one.

    ``origins``: the arguments that it may lie in; FOREIGN if it came from memory or an integer.
    ``loads``: what was loaded to make it.
    """

    origins: frozenset[str]
    loads: frozenset[Address] = frozenset()

    def __add__(self, _: object) -> Address:
        return self

    def to(self, _: object, *, bitcast: bool = False) -> Address:
        return self


@attrs.frozen
class Value:
    """A tensor of numbers, of which only what was loaded to make it is known."""

    loads: frozenset[Address] = frozenset()

    def __add__(self, other: object) -> Value:
        return Value(self.loads | getattr(other, "loads", frozenset()))

    def __lt__(self, _: object) -> Value:
        return self


@attrs.define
class Log:
    """What a run of a kernel by Python accessed: pairs of an origin and r or w."""

    seen: set[tuple[str, str]] = attrs.field(factory=set)

    def access(self, address: Address, kinds: str, value: object = None) -> None:
        """An access that stays in the compiled kernel, and so do the loads that it needs."""
        self.seen.update((origin, kind) for origin in address.origins for kind in kinds)
        for needed in address.loads | getattr(value, "loads", frozenset()):
            self.access(needed, "r")


@attrs.frozen
class Descriptor:
    log: Log
    base: Address

    def load(self, _: object) -> Value:
        return Value(frozenset({self.base}))

    def store(self, _: object, value: Value) -> None:
        self.log.access(self.base, "w", value)


ELSEWHERE = Address(frozenset({FOREIGN}))


def stand_in(log: Log) -> SimpleNamespace:
    """What the kernels use of ``triton.language``.

    A load whose value nobody stores is no access: the compiler drops it.
    """

    def load(address: Address) -> Value | Address:
        if address.origins != {"box"}:
            return Value(frozenset({address}))
        return attrs.evolve(ELSEWHERE, loads=frozenset({address}))

    def store(address: Address, value: object, mask: object = None) -> None:
        log.access(address, "w", value)

    def atomic(address: Address, value: object) -> Value:
        log.access(address, "rw", value)
        return Value()

    def where(condition: object, a: Address, b: Address) -> Address:
        if not isinstance(condition, Value):
            return a if condition else b
        return Address(a.origins | b.origins, a.loads | b.loads)

    def assembly(_: str, __: str, operands: list[Address], **___: object) -> Value:
        return Value(frozenset({operands[0]}))

    def value(*_: object) -> Value:
        return Value()

    return SimpleNamespace(
        arange=value,
        zeros=value,
        sum=lambda summed, _: summed,
        load=load,
        store=store,
        where=where,
        atomic_add=atomic,
        atomic_max=atomic,
        inline_asm_elementwise=assembly,
        make_tensor_descriptor=lambda base, *_: Descriptor(log, base),
        pointer_type=value,
        float32=None,
        int64=None,
    )


def undecorated(fn: Callable[..., object] | None = None, **_: object) -> Callable[..., object]:
    return fn if fn is not None else lambda inner: inner


def observe(module_source: str, name: str) -> Log:
    """Run the kernel in Python for several sizes."""
    log = Log()
    code = module_source.replace("import triton\nimport triton.language as tl\n", "")
    namespace = {"tl": stand_in(log), "triton": SimpleNamespace(jit=undecorated)}
    exec(compile(code, name, "exec"), namespace)
    arguments = [Address(frozenset({path})) for path in (*POINTERS, "box")]
    for n0, n1 in RUNS:
        namespace[name](*arguments, ELSEWHERE, n0, n1)
    return log


def verdicts(log: Log, roles: KernelRoles) -> Counter[str]:
    """How the roles compare with what was accessed: missed, exact, over, unknown."""
    counts: Counter[str] = Counter()
    for path, role in roles.by_path.items():
        seen = {kind for origin, kind in log.seen if origin == path}
        said = {Role.READ: {"r"}, Role.WRITE: {"w"}}.get(role, {"r", "w"})
        if not seen <= said:
            counts["missed"] += 1
        elif role is Role.UNKNOWN:
            counts["unknown"] += 1
        else:
            counts["exact" if seen == said or (not seen and role is Role.READ) else "over"] += 1
    elsewhere = {"r": roles.reads_unknown, "w": roles.writes_unknown}
    counts["missed"] += any(not elsewhere[kind] for path, kind in log.seen if path == FOREIGN)
    counts["elsewhere seen"] += any(origin == FOREIGN for origin, _ in log.seen)
    counts["elsewhere said"] += any(elsewhere.values())
    return counts


def load_module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fuzz(folder: Path, seed: int, kernels: int) -> Counter[str]:
    """Compare ``kernels`` random kernels; fails with the source of one whose access is missed."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    for number in range(kernels):
        name = f"kernel_{seed}_{number}"
        source = PRELUDE + "\n" + Writer(rng, name).source()
        path = folder / f"{name}.py"
        path.write_text(source)
        target = rng.choice((CUDA_90, CUDA_80, AMD))
        try:
            ttir, ast = compile_ttir(getattr(load_module(path), name), SIGNATURE, target=target)
        except CompilationError:
            counts["not compiled"] += 1
            continue
        roles = roles_of(ttir, ast.fn.arg_names, ast.signature, ast.constants)
        assert "not understood" not in (roles.reason or ""), f"{roles.reason}\n{source}"
        found = verdicts(observe(source, name), roles)
        assert not found["missed"], f"{roles}\n{source}\n{ttir}"
        counts += found
        counts["kernels"] += 1
    return counts


def check(counts: Counter[str]) -> None:
    assert counts["kernels"] > 0.9 * (counts["kernels"] + counts["not compiled"]), counts
    # The roles must also say something: most arguments exactly what was seen in these few runs.
    assert counts["exact"] > counts["over"] + counts["unknown"], counts


def test_no_access_of_a_random_kernel_is_missed(tmp_path: Path) -> None:
    """A hundred random kernels access nothing that their roles do not cover."""
    check(fuzz(tmp_path, seed=1, kernels=100))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2, 6))
def test_no_access_of_many_random_kernels_is_missed(tmp_path: Path, seed: int) -> None:
    """The same over thousands of random kernels."""
    counts = fuzz(tmp_path, seed, kernels=1000)
    print(seed, dict(counts))
    check(counts)
