"""Finds which arguments' memory a kernel may read and write: a slice over its TTIR operations.

Every value carries a set of origins as bits: the arguments it is computed from, the arguments
through which it was loaded, and "elsewhere" for an address made from neither. An address keeps
to the tensor that it is based on: an offset, loaded or passed, never leads to another one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import attrs

from lazytrace._roles.ssa import Function, Operation

READS = 1
WRITES = 2
ESCAPES = 4  # the address leaves what can be followed: anything may happen through it

# The address is operand 0. What a write is given (values, offsets, masks) ends up in memory.
_ACCESSES: Mapping[str, int] = {
    "tt.load": READS,
    "tt.store": WRITES,
    "tt.atomic_rmw": READS | WRITES,
    "tt.atomic_cas": READS | WRITES,
    "tt.atomic_load": READS,
    "tt.atomic_store": WRITES,
    "tt.atomic_poll": READS,
    "tt.descriptor_load": READS,
    "tt.descriptor_gather": READS,
    "tt.descriptor_store": WRITES,
    "tt.descriptor_scatter": WRITES,
    "tt.descriptor_reduce": READS | WRITES,
}
# A descriptor read from memory: what it describes is elsewhere.
_FOREIGN_DESCRIPTORS = frozenset(
    {"tt.reinterpret_tensor_descriptor", "ttng.reinterpret_tensor_descriptor"}
)
_BASED = frozenset({"tt.addptr", "tt.advance", "tt.make_tensor_ptr", "tt.make_tensor_descriptor"})
_COMPUTING_DIALECTS = ("arith.", "math.", "ub.")
_COMPUTING = frozenset(
    {
        "tt.approx_divf",
        "tt.bitcast",
        "tt.broadcast",
        "tt.cat",
        "tt.clampf",
        "tt.dot",
        "tt.dot_scaled",
        "tt.expand_dims",
        "tt.fp_to_fp",
        "tt.gather",
        "tt.get_num_programs",
        "tt.get_program_id",
        "tt.histogram",
        "tt.int_to_ptr",
        "tt.join",
        "tt.make_range",
        "tt.mulhiui",
        "tt.precise_divf",
        "tt.precise_sqrt",
        "tt.ptr_to_int",
        "tt.reshape",
        "tt.split",
        "tt.splat",
        "tt.trans",
        "tt.unsplat",
    }
)
_WITHOUT_RESULT = frozenset(
    {
        "tt.print",
        "tt.assert",
        "tt.grid_dependency_wait",
        "tt.grid_dependency_launch_dependents",
        "cf.assert",
        "gpu.barrier",
        "ttg.barrier",
        "ttg.local_barrier",
        "llvm.intr.assume",
    }
)
_COMPARISONS = frozenset({"arith.cmpi", "arith.cmpf", "arith.constant", "ub.poison"})
_FOREIGN_CODE = frozenset({"tt.elementwise_inline_asm", "tt.extern_elementwise"})

_ASM_TEXT = re.compile(r'\s*"((?:[^"\\]|\\.)*)"')
_ASM_NOISE = re.compile(r"//.*?(?:\n|$)|/\*.*?\*/|\{|\}", re.DOTALL)
# PTX that works on registers alone, or only waits. An address is as harmless in these as in
# TTIR's own arithmetic. Before Triton 3.8 programmatic dependent launch is such inline PTX.
_ASM_REGISTERS_ONLY = re.compile(
    r"(?:@!?\S+\s+)?(?:\.reg|abs|activemask|add|and|bar|barrier|bfe|bfi|bfind|brev|clz|cnot"
    r"|copysign|cos|cvt|div|dp2a|dp4a|elect|ex2|fence|fma|fns|griddepcontrol|lg2|lop3|mad|match"
    r"|max|membar|min|mov|mul|nanosleep|neg|not|or|popc|prmt|rcp|redux|rem|rsqrt|sad|selp|set"
    r"|setp|shf|shfl|shl|shr|sin|slct|sqrt|sub|tanh|testp|vote|xor)\b(?!\s*:)"
)


@attrs.frozen
class Accesses:
    """What a kernel may do.

    ``by_argument``: READS, WRITES and ESCAPES for each argument; 0 where nothing is accessed
    through it. ``elsewhere``: the same for addresses that are not arguments. ``reasons`` say
    where what is unknown comes from, each once.
    """

    by_argument: tuple[int, ...]
    elsewhere: int
    reasons: tuple[str, ...]


@attrs.frozen
class Argument:
    """One kernel argument for the slice; ``wide``: an integer that could hold an address."""

    path: str
    pointer: bool
    wide: bool


def accesses(
    function: Function, arguments: Sequence[Argument], parameters: Sequence[int | None]
) -> Accesses:
    """Follow ``arguments`` through ``function``.

    ``parameters`` gives, for each of the function's parameters, the index of its argument; None
    for one that is nobody's address, such as a descriptor's shape.
    """
    origins = [0] * function.values
    for value, index in zip(function.parameters, parameters, strict=True):
        if index is not None:
            origins[value] = 1 << index
    slice_ = _Slice(arguments, origins)
    slice_.settle(function)
    for operation in function.operations:
        slice_.judge(operation)
    return Accesses(
        tuple(slice_.by_argument), slice_.elsewhere, tuple(dict.fromkeys(slice_.reasons))
    )


@attrs.define
class _Slice:
    arguments: Sequence[Argument]
    origins: list[int]
    by_argument: list[int] = attrs.field(init=False)
    elsewhere: int = 0
    reasons: list[str] = attrs.field(factory=list)
    _width: int = attrs.field(init=False)
    _pointers: int = attrs.field(init=False)
    _wide: int = attrs.field(init=False)
    _loaded: int = attrs.field(init=False)
    _elsewhere_bit: int = attrs.field(init=False)

    def __attrs_post_init__(self) -> None:
        width = self._width = len(self.arguments)
        self.by_argument = [0] * width
        self._pointers = sum(1 << i for i, a in enumerate(self.arguments) if a.pointer)
        self._wide = sum(1 << i for i, a in enumerate(self.arguments) if a.wide)
        self._loaded = ((1 << width) - 1) << width
        self._elsewhere_bit = 1 << 2 * width

    def settle(self, function: Function) -> None:
        """Propagate origins until nothing changes: loops carry addresses around."""
        origins = self.origins
        changed = True
        while changed:
            changed = False
            for target, source in function.flows:
                new = origins[target] | origins[source]
                if new != origins[target]:
                    origins[target] = new
                    changed = True
            for operation in function.operations:
                if not operation.results:
                    continue
                made = self._made_by(operation)
                for result in operation.results:
                    if made & ~origins[result]:
                        origins[result] |= made
                        changed = True

    def judge(self, operation: Operation) -> None:
        """Record what ``operation`` may access, once the origins are settled."""
        name = operation.name
        access = _ACCESSES.get(name)
        if access is not None:
            self._access(operation, access)
            if access & WRITES:
                self._escape(operation.operands[1:], f"is stored to memory by {name}")
        elif name in _FOREIGN_DESCRIPTORS:
            self._access(operation, READS)
        elif name in _FOREIGN_CODE:
            self._foreign_code(operation)
        elif not _computes(name) and name not in _WITHOUT_RESULT:
            self._anything(operation, f"{name} is not known")

    def _union(self, values: Iterable[int]) -> int:
        union = 0
        for value in values:
            union |= self.origins[value]
        return union

    def _made_by(self, operation: Operation) -> int:
        """The origins of the operation's results."""
        name, operands = operation.name, operation.operands
        if name in _COMPARISONS:
            return 0
        if name == "arith.select":
            return self._union(operands[1:])
        if name in _BASED:
            base, offsets = self.origins[operands[0]], self._union(operands[1:]) & self._pointers
            return base | offsets | self._elsewhere_bit if offsets else base
        if name == "tt.int_to_ptr":
            made = self.origins[operands[0]]
            computed = not made & self._pointers or made & self._wide
            return made | (self._elsewhere_bit if computed else 0)
        if name in _ACCESSES:
            return self._fetched(operands[0]) | self._union(operands[1:])
        if name in _FOREIGN_DESCRIPTORS:
            return self._fetched(operands[0]) | self._elsewhere_bit
        made = self._union(operands)
        return made if _computes(name) or _registers_only(operation) else made | self._elsewhere_bit

    def _fetched(self, address: int) -> int:
        """The origins of what lies at ``address``."""
        origin = self.origins[address]
        through = (origin & self._pointers) << self._width
        return through | origin & (self._loaded | self._elsewhere_bit)

    def _access(self, operation: Operation, access: int) -> None:
        origin = self.origins[operation.operands[0]]
        direct = origin & self._pointers
        for index in _bits(direct):
            self.by_argument[index] |= access
        foreign = origin & (self._loaded | self._elsewhere_bit)
        if direct and not foreign:
            return
        self.elsewhere |= access
        via = [self.arguments[i].path for i in _bits((origin & self._loaded) >> self._width)]
        source = f"loaded through {', '.join(via)}" if via else "computed from integers"
        self.reasons.append(f"{operation.name} at an address {source}")

    def _escape(self, values: Sequence[int], how: str) -> None:
        for index in _bits(self._union(values) & self._pointers):
            self.by_argument[index] |= ESCAPES
            self.reasons.append(f"the address of {self.arguments[index].path} {how}")

    def _anything(self, operation: Operation, why: str) -> None:
        self._escape(operation.operands, f"goes to {operation.name}")
        self.elsewhere |= READS | WRITES
        self.reasons.append(why)

    def _foreign_code(self, operation: Operation) -> None:
        if _registers_only(operation):
            return
        attributes = _ASM_TEXT.sub("", operation.text, count=1)
        types = attributes.rpartition(" -> ")[0].rpartition(" : ")[2]
        if "pure = true" not in attributes:
            self._anything(operation, f"{operation.name} with side effects")
        elif operation.operands and ("i64" in types or "!tt." in types):
            # "pure" promises no write, yet kernels mark loads so.
            self._anything(operation, f"{operation.name} is given what may be an address")
        else:
            self._escape(operation.operands, f"goes to {operation.name}")


def _computes(name: str) -> bool:
    return name in _COMPUTING or name in _BASED or name.startswith(_COMPUTING_DIALECTS)


def _bits(mask: int) -> Iterator[int]:
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest


def _registers_only(operation: Operation) -> bool:
    """Whether the operation is inline PTX without a memory instruction."""
    if operation.name != "tt.elementwise_inline_asm":
        return False
    match = _ASM_TEXT.match(operation.text)
    if match is None:
        return False
    code = match[1].replace("\\0A", "\n").replace("\\09", "\t").replace("\\0D", "\n")
    statements = (part.strip() for part in _ASM_NOISE.sub(" ", code).split(";"))
    return all(_ASM_REGISTERS_ONLY.match(part) for part in statements if part)
