"""Parses the text of a Triton kernel's TTIR.

The text is MLIR's own print: one operation a line, regions nested by braces, SSA names scoped
by region. Names and attributes differ between Triton's versions; what is read here does not.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import attrs

from lazytrace._roles.ssa import Function, Operation, TTIRError, inlined

_NAME = r"%([\w$.\-]+)"
_USE = re.compile(_NAME + r"(?:#(\d+))?")
_TYPED = re.compile(_NAME + r": ([^\s,)]+)")
_ASSIGNED = re.compile(_NAME + r" = " + _NAME + r"(?:#(\d+))?")
_RESULTS = re.compile(r"((?:%[\w$.\-]+(?::\d+)?(?:, )?)+) = ")
_RESULT = re.compile(_NAME + r"(?::(\d+))?")
_OPERATION = re.compile(r'"?([a-z_]\w*(?:\.\w+)+)"?')
_LOOP = re.compile(r" (?:unsigned )?%([\w$.\-]+) = (.*?) to .*? step (%[\w$.\-]+(?:#\d+)?)")
_SYMBOL = r'@("(?:[^"\\]|\\.)*"|[\w$.\-]+)\('
_FUNCTION = re.compile(r"tt\.func (public |private |nested )?" + _SYMBOL)
_CALLEE = re.compile(r"tt\.call " + _SYMBOL)
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')
_LABEL = re.compile(r"\^(\w+)")
_SUCCESSOR = re.compile(r"\^(\w+)(?:\(([^)]*)\))?")

_COMBINING = frozenset({"tt.reduce", "tt.scan", "tt.map_elementwise"})
_LOOPS = frozenset({"scf.for", "scf.while"})


@attrs.define
class _Region:
    """An open region of ``name``: where its terminators send values."""

    name: str
    results: Sequence[int] = ()
    operands: Sequence[int] = ()
    carried: Sequence[int] = ()
    condition: Sequence[int] | None = None
    after: Sequence[int] = ()
    labels: dict[str, Sequence[int]] = attrs.field(factory=dict)
    branches: list[tuple[str, Sequence[int]]] = attrs.field(factory=list)


@attrs.define
class _Body:
    """Reads the lines of one function's body."""

    parameters: list[int] = attrs.field(factory=list)
    types: list[str] = attrs.field(factory=list)
    operations: list[Operation] = attrs.field(factory=list)
    flows: list[tuple[int, int]] = attrs.field(factory=list)
    returns: list[tuple[int, ...]] = attrs.field(factory=list)
    _count: int = 0
    _scopes: list[dict[str, Sequence[int]]] = attrs.field(factory=lambda: [{}])
    _regions: list[_Region] = attrs.field(factory=lambda: [_Region("tt.func")])
    _forward: dict[tuple[str, int], int] = attrs.field(factory=dict)

    def declare(self, header: str) -> None:
        """Take the parameters from the function's first line."""
        for name, type_ in _TYPED.findall(header):
            self.parameters.extend(self._define(name))
            self.types.append(type_)

    def read(self, raw: str) -> bool:
        """Take one line. True when it closed the function."""
        line = _STRING.sub('""', raw) if '"' in raw else raw
        if line[0] == "^":
            self._label(line)
        elif line[0] == "}":
            return self._close(line)
        else:
            self._operation(raw, opens=line[-1] == "{")
        return False

    def finished(self) -> Function:
        """The function, once ``read`` returned True."""
        if self._forward:
            raise TTIRError(f"undefined value %{next(iter(self._forward))[0]}")
        return Function(
            tuple(self.parameters),
            tuple(self.types),
            tuple(self.operations),
            tuple(self.flows),
            tuple(self.returns),
            self._count,
        )

    def _define(self, name: str, count: int = 1) -> Sequence[int]:
        values = range(self._count, self._count + count)
        self._count += count
        self._scopes[-1][name] = values
        if self._forward and len(self._scopes) == 1:
            for index, value in enumerate(values):
                early = self._forward.pop((name, index), None)
                if early is not None:
                    self.flows.append((early, value))
        return values

    def _use(self, name: str, index: str | None) -> int:
        number = int(index) if index else 0
        for scope in reversed(self._scopes):
            if name in scope:
                return scope[name][number]
        # A block may stand in the text before the block that dominates it.
        key = (name, number)
        if key not in self._forward:
            self._forward[key] = self._count
            self._count += 1
        return self._forward[key]

    def _uses(self, text: str) -> list[int]:
        return [self._use(name, index) for name, index in _USE.findall(text)]

    def _flow(self, targets: Sequence[int], sources: Sequence[int]) -> None:
        if len(targets) != len(sources):
            raise TTIRError(f"{len(sources)} values for {len(targets)} targets")
        self.flows.extend(zip(targets, sources, strict=True))

    def _mix(self, targets: Iterable[int], sources: Sequence[int]) -> None:
        self.flows.extend((target, source) for target in targets for source in sources)

    def _label(self, line: str) -> None:
        region = self._regions[-1]
        match = _LABEL.match(line)
        if match is None:
            raise TTIRError(f"block {line[:60]}")
        arguments = [self._define(name)[0] for name, _ in _TYPED.findall(line)]
        region.labels[match[1]] = arguments
        if region.name == "scf.while":
            region.after = arguments
        elif region.name in _COMBINING:
            self._mix(arguments, region.operands)

    def _close(self, line: str) -> bool:
        region = self._regions[-1]
        for label, values in region.branches:
            if label not in region.labels:
                raise TTIRError(f"branch to an unknown block ^{label}")
            self._flow(region.labels[label], values)
        region.branches.clear()
        if line[-1] == "{":  # "} else {", "} do {": the operation's next region
            self._scopes[-1] = {}
            region.labels.clear()
            return False
        self._regions.pop()
        if not self._regions:
            return True
        self._scopes.pop()
        if region.name == "scf.while":
            if region.condition is None:
                raise TTIRError("scf.while without a condition")
            self._flow(region.after, region.condition)
            self._flow(region.results, region.condition)
        return False

    def _operation(self, raw: str, *, opens: bool) -> None:
        assigned = _RESULTS.match(raw)
        start = assigned.end() if assigned else 0
        match = _OPERATION.match(raw, start)
        if match is None:
            raise TTIRError(f"line {raw[:60]}")
        name, text = match[1], raw[match.end() :]
        uses = _STRING.sub('""', text) if '"' in text else text
        if opens:
            self._open(name, uses, assigned)
            return
        operands = self._uses(uses)
        results = self._results(assigned)
        if not self._terminator(name, uses, operands):
            if "^" in uses:
                raise TTIRError(f"unknown branch {name}")
            callee = _CALLEE.match(raw, start) if name == "tt.call" else None
            called = callee[1].strip('"') if callee else None
            self.operations.append(Operation(name, tuple(results), tuple(operands), text, called))

    def _results(self, assigned: re.Match[str] | None) -> list[int]:
        if assigned is None:
            return []
        return [
            value
            for name, count in _RESULT.findall(assigned[1])
            for value in self._define(name, int(count) if count else 1)
        ]

    def _open(self, name: str, text: str, assigned: re.Match[str] | None) -> None:
        if name in _LOOPS:
            self._open_loop(name, text, assigned)
            return
        if name != "scf.if" and name not in _COMBINING:
            raise TTIRError(f"region of {name}")
        operands = self._uses(text)
        region = _Region(name, self._results(assigned), operands)
        if name in _COMBINING:
            self._mix(region.results, operands)
        self._regions.append(region)
        self._scopes.append({})

    def _open_loop(self, name: str, text: str, assigned: re.Match[str] | None) -> None:
        bounds: list[int] = []
        counter = ""
        if name == "scf.for":
            loop = _LOOP.match(text)
            if loop is None:
                raise TTIRError(f"loop {text[:60]}")
            counter, bounds = loop[1], self._uses(loop[2] + loop[3])
            text = text[loop.end() :]
        pairs = _ASSIGNED.findall(text)
        initial = [self._use(source, index) for _, source, index in pairs]
        region = _Region(name, self._results(assigned))
        self._regions.append(region)
        self._scopes.append({})
        if counter:
            self._mix(self._define(counter), bounds)
        region.carried = [self._define(target)[0] for target, _, _ in pairs]
        self._flow(region.carried, initial)
        if name == "scf.for":
            self._flow(region.results, region.carried)

    def _terminator(self, name: str, text: str, operands: Sequence[int]) -> bool:
        """Send a terminator's operands on. False if ``name`` is none."""
        region = self._regions[-1]
        if name == "scf.yield":
            self._flow(region.carried if region.name in _LOOPS else region.results, operands)
        elif name == "scf.condition":
            region.condition = operands[1:]
        elif region.name in _COMBINING and name == region.name + ".return":
            # A combination's result is the next combination's operand.
            self._mix(region.results, operands)
            for arguments in region.labels.values():
                self._mix(arguments, operands)
        elif name == "tt.return":
            if region.name != "tt.func":
                raise TTIRError(f"tt.return in {region.name}")
            self.returns.append(tuple(operands))
        elif name in ("cf.br", "cf.cond_br"):
            for label, values in _SUCCESSOR.findall(text):
                region.branches.append((label, self._uses(values)))
        else:
            return False
        return True


def parse(ttir: str) -> Function:
    """The kernel in ``ttir`` as one function: every call is replaced by the callee's body.

    Raises TTIRError for text that is not understood.
    """
    functions: dict[str, Function] = {}
    entries: list[str] = []
    body: _Body | None = None
    name = ""
    for raw in ttir.split("\n"):
        line = raw.strip()
        if not line or line[0] == "#" or line.startswith("//"):
            continue
        if body is not None:
            if body.read(line):
                functions[name] = body.finished()
                body = None
            continue
        if line[0] == "}" or line.startswith("module"):
            continue
        match = _FUNCTION.match(line)
        if match is None:
            raise TTIRError(f"top level {line[:60]}")
        if line[-1] != "{":
            continue  # a declaration: calls to it stay calls
        name = match[2].strip('"')
        if match[1] != "private ":
            entries.append(name)
        body = _Body()
        body.declare(_STRING.sub('""', line[match.end() :]))
    if body is not None or len(entries) != 1:
        raise TTIRError("truncated" if body is not None else f"{len(entries)} kernels")
    return inlined(entries[0], functions)
