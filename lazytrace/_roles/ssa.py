"""A kernel as SSA operations and the flow of values between them, with its calls copied out."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from lazytrace.errors import LazytraceError

# Helpers that each call the next one twice must cost the traced program neither memory nor time.
_MAX_VALUES = 100_000


class TTIRError(LazytraceError):
    """The text is no TTIR that is understood. Never leaves the package."""


@attrs.frozen
class Operation:
    """An operation: its name, SSA values as numbers, and its text after the name.

    ``callee`` is set for ``tt.call``. Control flow is no operation: see ``Function.flows``.
    """

    name: str
    results: tuple[int, ...]
    operands: tuple[int, ...]
    text: str
    callee: str | None = None


@attrs.frozen
class Function:
    """A function as a bag of operations.

    ``flows`` are pairs (target, source): through a branch, a loop, a region or a call the target
    may be the source's value. ``values`` is one more than the largest value number.
    """

    parameters: tuple[int, ...]
    types: tuple[str, ...]
    operations: tuple[Operation, ...]
    flows: tuple[tuple[int, int], ...]
    returns: tuple[tuple[int, ...], ...]
    values: int


def inlined(name: str, functions: Mapping[str, Function]) -> Function:
    """The function ``name`` with every call replaced by the callee's body, each call its own copy.

    A call of a function that is not in ``functions`` stays. Raises TTIRError for a recursive or
    ill-formed call, and if the result would be out of all proportion.
    """
    return _inlined(name, functions, {}, ())


def _inlined(
    name: str,
    functions: Mapping[str, Function],
    done: dict[str, Function],
    active: tuple[str, ...],
) -> Function:
    if name in done:
        return done[name]
    if name in active:
        raise TTIRError(f"recursive call of {name}")
    function = functions[name]
    operations: list[Operation] = []
    flows = list(function.flows)
    count = function.values
    for operation in function.operations:
        if operation.callee is None or operation.callee not in functions:
            operations.append(operation)
            continue
        callee = _inlined(operation.callee, functions, done, (*active, name))
        if len(callee.parameters) != len(operation.operands):
            raise TTIRError(f"call of {operation.callee}")
        copied = _shifted(callee, count)
        count += callee.values
        if count > _MAX_VALUES:
            raise TTIRError("too many calls")
        operations.extend(copied.operations)
        flows.extend(copied.flows)
        flows.extend(zip(copied.parameters, operation.operands, strict=True))
        for values in copied.returns:
            if len(values) != len(operation.results):
                raise TTIRError(f"return of {operation.callee}")
            flows.extend(zip(operation.results, values, strict=True))
    done[name] = attrs.evolve(
        function, operations=tuple(operations), flows=tuple(flows), values=count
    )
    return done[name]


def _shifted(function: Function, by: int) -> Function:
    """The same function with ``by`` added to every value number."""
    return Function(
        tuple(value + by for value in function.parameters),
        function.types,
        tuple(
            Operation(
                operation.name,
                tuple(value + by for value in operation.results),
                tuple(value + by for value in operation.operands),
                operation.text,
                operation.callee,
            )
            for operation in function.operations
        ),
        tuple((target + by, source + by) for target, source in function.flows),
        tuple(tuple(value + by for value in values) for values in function.returns),
        function.values + by,
    )
