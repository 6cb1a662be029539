"""Says what a compiled Triton kernel may do with each of its arguments, from its TTIR alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import attrs

from lazytrace._roles.provenance import ESCAPES, READS, WRITES, Accesses, Argument, accesses
from lazytrace._roles.ssa import Function, TTIRError
from lazytrace._roles.ttir import parse
from lazytrace.records import Role

_CONSTEXPR = "constexpr"
_DESCRIPTOR = re.compile(r"tensordesc\w*<[^\[<>]*\[([^\]]*)\]")
_MAX_REASONS = 3

# What a TTIR text or a kernel object of an unforeseen shape can raise on its way through here.
_SURPRISES = (TTIRError, LookupError, TypeError, ValueError, AttributeError, RecursionError)


@attrs.frozen
class KernelRoles:
    """What a kernel may do with its arguments: upper bounds, whatever values it is given.

    ``by_path`` has an entry for each argument that is memory (a pointer, a descriptor's base):

    - ``read``: the kernel never writes through it. It may not touch it at all: an argument that
      is never accessed is ``read`` as well, for that is the smallest bound that a role can say.
    - ``write``: it never reads through it. It need not write all of it: masks count as writes.
    - ``read_write``: both, or an atomic operation.
    - ``unknown``: its address goes where it cannot be followed.

    An absent path is to be taken as ``unknown``. ``reads_unknown`` and ``writes_unknown``: the
    kernel also reads or writes at addresses that it loaded, computed from integers or left to
    foreign code; then any memory may be meant, that of a ``read`` argument too. ``reason`` says
    what is unknown and why, and is None where nothing is.

    Roles speak of accesses through an argument. Two arguments may lie in the same memory, and
    what is written through one is then read through the other: compare memory ranges.
    """

    by_path: Mapping[str, Role]
    reads_unknown: bool
    writes_unknown: bool
    reason: str | None


def roles_of(
    ttir: str,
    arg_names: Sequence[str],
    signature: Mapping[str, object],
    constants: Mapping[tuple[int, ...], object],
) -> KernelRoles:
    """The roles of the arguments of the kernel with the text ``ttir``.

    ``arg_names``, ``signature`` (Triton's types by name: ``"*fp32"``, ``"i32"``, ``"constexpr"``,
    tuples of such) and ``constants`` (values by index path) are those of Triton's ``ASTSource``.
    Never raises for a kernel that is not understood: everything is unknown then.
    """
    leaves: list[_Leaf] = []
    try:
        leaves = list(_leaves(arg_names, signature, constants))
        function = parse(ttir)
        found = accesses(function, [leaf.argument() for leaf in leaves], _slots(leaves, function))
    except _SURPRISES as error:
        return _unknown(leaves, f"the kernel's TTIR is not understood: {_text(error)}")
    return _roles(leaves, found)


def kernel_roles(compiled: object) -> KernelRoles:
    """The roles of the arguments of a Triton ``CompiledKernel``.

    Never raises: what cannot be found out is unknown, and the reason says why.
    """
    leaves: list[_Leaf] = []
    try:
        kernel: Any = compiled
        source = kernel.src
        names, signature, constants = source.fn.arg_names, source.signature, source.constants
        leaves = list(_leaves(names, signature, constants))
        ttir = kernel.asm["ttir"]
    except _SURPRISES as error:
        return _unknown(leaves, f"the kernel has no TTIR: {_text(error)}")
    return roles_of(ttir, names, signature, constants)


@attrs.frozen
class _Leaf:
    """A kernel argument, or an element of a tuple argument, that is in the TTIR."""

    path: str
    type: str

    def rank(self) -> int | None:
        """A descriptor's number of dimensions; None if this is no descriptor."""
        if not self.type.startswith("tensordesc"):
            return None
        match = _DESCRIPTOR.match(self.type)
        if match is None or ",input_rank=" in self.type:
            raise TTIRError(f"descriptor type {self.type[:60]}")
        return match[1].count(",") + 1

    def is_memory(self) -> bool:
        return self.type.startswith(("*", "tensordesc")) or self.type == "nvTmaDesc"

    def argument(self) -> Argument:
        return Argument(self.path, self.is_memory(), self.type in ("i64", "u64"))


def _leaves(
    names: Sequence[str],
    signature: Mapping[str, object],
    constants: Mapping[tuple[int, ...], object],
) -> Iterator[_Leaf]:
    """The arguments that are in the TTIR, in its order.

    A constexpr, a None and an integer specialised to 1 are not: their path is in ``constants``.
    """

    def walk(index: tuple[int, ...], path: str, type_: object) -> Iterator[_Leaf]:
        if index in constants or type_ is None or type_ == _CONSTEXPR:
            return
        if isinstance(type_, (tuple, list)):
            fields: Sequence[str] | None = getattr(type_, "_fields", None)
            for i, inner in enumerate(type_):
                step = f".{fields[i]}" if fields else f"[{i}]"
                yield from walk((*index, i), path + step, inner)
        elif isinstance(type_, str):
            yield _Leaf(path + ".base" if type_.startswith("tensordesc") else path, type_)
        else:
            raise TTIRError(f"argument {path} of type {type_!r}")

    for i, name in enumerate(names):
        yield from walk((i,), name, signature.get(name, _CONSTEXPR))


def _slots(leaves: Sequence[_Leaf], function: Function) -> list[int | None]:
    """For each of the function's parameters the index of the leaf whose address or value it is."""
    types = function.types
    slots: list[int | None] = []
    for index, leaf in enumerate(leaves):
        at = len(slots)
        if at >= len(types):
            raise TTIRError(f"{len(types)} parameters end before argument {leaf.path}")
        rank = leaf.rank()
        if rank is not None:
            slots += [index, *[None] * _descriptor_tail(types, at, rank)]
            continue
        if types[at].startswith("!tt.ptr") != leaf.is_memory() or "tensordesc" in types[at]:
            raise TTIRError(f"argument {leaf.path} has type {types[at]}")
        slots.append(index)
    if len(slots) != len(types):
        raise TTIRError(f"{len(types)} parameters for {len(slots)} in the signature")
    return slots


def _descriptor_tail(types: Sequence[str], at: int, rank: int) -> int:
    """How many parameters follow a descriptor's first one: its shape and strides.

    Where there is no TMA, Triton has replaced the descriptor by a pointer, a shape, strides and
    flags of its own, whose number differs by version, before the shape and strides proper.
    """
    proper = ["i32"] * rank + ["i64"] * rank
    end = at + 1
    if types[at].startswith("!tt.ptr"):
        if list(types[end : end + 2 * rank]) != ["i64"] * 2 * rank:
            raise TTIRError("a descriptor's pointer without shape and strides")
        end += 2 * rank
        while end < len(types) and types[end] == "i1":
            end += 1
    elif not types[at].startswith("!tt.tensordesc"):
        raise TTIRError(f"a descriptor has type {types[at]}")
    if list(types[end : end + 2 * rank]) != proper:
        raise TTIRError("a descriptor without shape and strides")
    return end + 2 * rank - at - 1


def _roles(leaves: Sequence[_Leaf], found: Accesses) -> KernelRoles:
    by_path = {
        leaf.path: _role(access)
        for leaf, access in zip(leaves, found.by_argument, strict=True)
        if leaf.is_memory()
    }
    reasons = list(found.reasons)
    if len(reasons) > _MAX_REASONS:
        reasons[_MAX_REASONS:] = [f"and {len(reasons) - _MAX_REASONS} more"]
    return KernelRoles(
        by_path,
        reads_unknown=bool(found.elsewhere & READS),
        writes_unknown=bool(found.elsewhere & WRITES),
        reason="; ".join(reasons) or None,
    )


def _role(access: int) -> Role:
    if access & ESCAPES:
        return Role.UNKNOWN
    if access & WRITES:
        return Role.READ_WRITE if access & READS else Role.WRITE
    return Role.READ


def _unknown(leaves: Sequence[_Leaf], reason: str) -> KernelRoles:
    by_path = {leaf.path: Role.UNKNOWN for leaf in leaves if leaf.is_memory()}
    return KernelRoles(by_path, reads_unknown=True, writes_unknown=True, reason=reason)


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"[:200]
