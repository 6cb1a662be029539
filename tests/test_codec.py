from __future__ import annotations

import math
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin, get_type_hints

import attrs
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from trace_lines import args, kernel, nested_args, sample_trace, session

from lazytrace._trace.codec import decode, encode, is_torn
from lazytrace.errors import InternalError, NewerSchemaError, TraceError
from lazytrace.lines import (
    MAX_DEPTH,
    ArgsLine,
    CaptureLine,
    EndLine,
    KernelLine,
    LaunchLine,
    ProblemLine,
    ValuesLine,
)
from lazytrace.records import (
    ConstexprArg,
    DescriptorArg,
    KernelInfo,
    NoneArg,
    ScalarArg,
    Session,
    TensorArg,
    TensorStats,
    TupleArg,
)

TEXT = st.text(st.characters(exclude_categories=()), max_size=5)
NUMBERS = st.integers() | st.integers(-(2**70), 2**70) | st.booleans() | st.floats()
LEAVES = st.none() | NUMBERS | TEXT | st.binary(max_size=5) | st.complex_numbers()
KEYS = LEAVES | st.tuples(LEAVES)
VALUES = st.recursive(
    LEAVES,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(KEYS | st.sampled_from(["$int", "$dict", "$x"]), inner, max_size=3)
    ),
    max_leaves=6,
)
LINE_TYPES = [
    Session, KernelLine, ArgsLine, CaptureLine, LaunchLine, ValuesLine, ProblemLine, EndLine,
]  # fmt: skip
PLAIN = {int: st.integers(), float: st.floats(), str: TEXT, bool: st.booleans(), Any: VALUES}


def strategy_of(hint: Any, depth: int = 0) -> st.SearchStrategy[Any]:
    """Values of an annotation of the record vocabulary."""
    origin, members = get_origin(hint), get_args(hint)
    if hint in PLAIN:
        return PLAIN[hint]
    if origin in (types.UnionType, Union):
        flat = [m for m in members if depth < 2 or m not in (TupleArg, DescriptorArg, TensorStats)]
        none = st.none() if type(None) in flat else st.nothing()
        return none | st.one_of(strategy_of(m, depth) for m in flat if m is not type(None))
    if origin is tuple and members[-1] is Ellipsis:
        return st.lists(strategy_of(members[0], depth), max_size=3).map(tuple)
    if origin is tuple:
        return st.tuples(*(strategy_of(member, depth) for member in members))
    if origin is not None and issubclass(origin, Mapping):
        keys = KEYS if members[1] is Any else TEXT
        return st.dictionaries(keys, strategy_of(members[1], depth), max_size=3)
    if issubclass(hint, Enum):
        return st.sampled_from(list(hint))
    return objects_of(hint, depth + 1)


def objects_of(cls: type, depth: int = 0) -> st.SearchStrategy[Any]:
    """Objects of an attrs class with every field drawn."""
    hints = get_type_hints(cls)
    fields = {f.name: strategy_of(hints[f.name], depth) for f in attrs.fields(cls)}
    if cls is Session:
        fields["schema_version"] = st.integers(0, 1)
    return st.fixed_dictionaries(fields).map(lambda values: cls(**values))


def round_trip(line: Any) -> Any:
    return decode(encode(line), "trace.ndjson", 1)


def value_back(value: object) -> object:
    return round_trip(args(x=ScalarArg("x", value))).args["x"].value


@pytest.mark.parametrize("cls", LINE_TYPES)
def test_a_line_comes_back_equal(cls: type) -> None:
    """Any line of each type is decoded to what was encoded, to the bit and the type."""

    @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
    @given(objects_of(cls))
    def check(line: Any) -> None:
        raw = encode(line)
        assert raw.count(b"\n") == 1
        assert raw.endswith(b"\n")
        assert repr(decode(raw, "trace.ndjson", 1)) == repr(line)

    check()


@pytest.mark.parametrize(
    "value",
    [
        2**70, -(2**63) - 1, 2**64 - 1, 2**64, 1 << 20_000, 1, 1.0, True, 0, -0.0, 0.0, False,
        None, "", "\ud800", "\ud83d\ude00", "a%41\udcff", b"\x00\xff", b"", (1, (2, [3])), [],
        (), {}, {1: 2, "1": 3}, {"$int": "5"}, {"$dict": 1, "\ud800": (None,)}, "NaN", "null",
        math.inf, -math.inf, complex(-0.0, math.inf), {(1, b"x"): {None: True}},
    ],
    ids=lambda value: repr(value)[:30] if type(value) is not int else hex(value)[:20],
)  # fmt: skip
def test_a_value_is_lossless(value: object) -> None:
    """Values that JSON lacks, and those it confuses, come back as the same type and value."""
    back = value_back(value)
    assert back == value
    assert type(back) is type(value)
    if type(value) is not int:
        assert repr(back) == repr(value)


def test_nan_and_nan_keys_are_kept() -> None:
    """A NaN comes back as NaN, and two NaN keys stay two."""
    assert math.isnan(value_back(math.nan))  # type: ignore[arg-type]
    assert list(value_back({float("nan"): 1, float("nan"): 2}).values()) == [1, 2]  # type: ignore[attr-defined]


def test_special_values_are_distinct_in_the_file() -> None:
    """No two of the values that are easily confused have the same bytes."""
    values = [True, 1, 1.0, "1", 0.0, -0.0, math.nan, "nan", math.inf, None, "None", [1], (1,),
              {"a": 1}, {1: 1}, {"1": 1}, b"a", "a", 2**70, float(2**70), 1j, "\ud800"]  # fmt: skip
    lines = {encode(args(x=ScalarArg("x", value))) for value in values}
    assert len(lines) == len(values)


def test_plain_values_stay_plain_json() -> None:
    """A line of ordinary values can be read, and searched, without knowing the tags."""
    raw = encode(args(n=ScalarArg("int", 6), s=ScalarArg("str", "é"), none=NoneArg()))
    assert orjson.loads(raw) == {
        "type": "args",
        "id": 1,
        "arguments": {
            "n": {"kind": "scalar", "type": "int", "value": 6},
            "s": {"kind": "scalar", "type": "str", "value": "é"},
            "none": {"kind": "none"},
        },
    }


def test_defaults_are_left_out() -> None:
    """What equals its default, and a None that may be one, takes no bytes."""
    line = KernelLine(5, KernelInfo("k", "h"))
    assert encode(line) == b'{"type":"kernel","id":5,"name":"k","hash":"h"}\n'


def test_a_nested_tensor_is_described_once() -> None:
    """Containers refer to the tensors that have a path of their own, and come back whole."""
    line = nested_args()
    raw = encode(line)
    assert raw.count(b'"data_ptr"') == 3
    assert raw.count(b'"kind":"ref"') == 3
    assert round_trip(line) == line


def test_a_nested_tensor_without_its_path_stays_in_place() -> None:
    """Where the mapping lacks a nested tensor, or has another there, the container has it."""
    whole = nested_args().args
    line = ArgsLine(1, {"ts": whole["ts"], "ts[0]": whole["desc.base"], "desc": whole["desc"]})
    assert b'"ref"' not in encode(line)
    assert round_trip(line) == line


def test_keys_have_one_json_type_in_all_lines() -> None:
    """A table loader that infers one type per top-level key meets no conflict."""
    found: dict[str, set[type]] = {}
    for line in sample_trace():
        for key, value in orjson.loads(encode(line)).items():
            found.setdefault(key, set()).add(type(value))
    assert {key: kinds for key, kinds in found.items() if len(kinds) > 1} == {}


def test_unknown_keys_and_types_are_ignored() -> None:
    """Additions of the same schema version do no harm to an older reader."""
    for line in sample_trace():
        packed = orjson.loads(encode(line))
        assert decode(orjson.dumps({**packed, "added": {"a": [1]}}), "t", 1) == line
    assert decode(b'{"type":"weather","id":1}', "t", 1) is None


def test_a_newer_session_is_refused_whatever_else_it_says() -> None:
    """A higher schema version raises NewerSchemaError, even in a line this version cannot read."""
    with pytest.raises(NewerSchemaError, match=r"^t: has schema version 2.*upgrade lazytrace"):
        decode(b'{"type":"session","schema_version":2}', "t", 1)


HOSTILE = [
    None, True, 5, -1, 1.5, "x", "", [], [1], [[]], {}, {"kind": "tensor"}, {"kind": []},
    {"kind": "ref", "path": "x"}, {"kind": "ref", "path": {}}, {"$int": "zz"}, {"$int": 5},
    {"$float": "1"}, {"$str": "%FF"}, {"$bytes": "é"}, {"$bytes": "a"}, {"$complex": [1]},
    {"$complex": ["a", "b"]}, {"$tuple": 3}, {"$dict": 3}, {"$dict": [[1]]}, {"$nope": 1},
    {"$dict": [[[], 1]]}, {"$dict": [[{}, 1]]}, {"$dict": [[5, {"kind": "none"}]]},
    {"$int": "1", "b": 2}, {"$float": []}, {"x": {"kind": "tuple", "items": {"a": 1}}},
    {"x": {"kind": "ref", "path": "x"}}, {"x": {"kind": "tuple", "items": [{"kind": "ref"}]}},
]  # fmt: skip


def variants(packed: Any) -> Any:
    """The JSON value with each of its parts, at any depth, removed or replaced."""
    yield from HOSTILE
    items = packed.items() if isinstance(packed, dict) else enumerate(packed)
    for key, inner in items:
        if isinstance(packed, dict):
            yield {k: v for k, v in packed.items() if k != key}
        deeper = variants(inner) if isinstance(inner, (dict, list)) else HOSTILE
        for changed in deeper:
            copy = dict(packed) if isinstance(packed, dict) else list(packed)
            copy[key] = changed  # type: ignore[call-overload]
            yield copy


@pytest.mark.parametrize("line", sample_trace(), ids=lambda line: type(line).__name__)
def test_a_malformed_line_is_a_trace_error(line: Any) -> None:
    """Whatever part of a line is damaged, decoding gives a line or a TraceError that says where."""
    messages = []
    for changed in variants(orjson.loads(encode(line))):
        try:
            decode(orjson.dumps(changed), "file", 12)
        except NewerSchemaError:
            continue
        except TraceError as error:
            messages.append(str(error))
    assert len(messages) > 10
    assert all(message.startswith("file: line 12: ") for message in messages)


@given(st.binary(max_size=60))
def test_random_bytes_are_a_trace_error(raw: bytes) -> None:
    """Bytes that are no line raise TraceError and nothing else."""
    with pytest.raises(TraceError, match="line 3"):
        decode(raw, "file", 3)


@pytest.mark.parametrize(
    "value",
    [
        b'{"$tuple":[' * 400 + b"1" + b"]}" * 400,
        b"[" * 800 + b"]" * 800,
        b'{"$dict":[[' * 300 + b"1,1" + b"]]}" * 300,
        b'{"$dict":[[1,' * 300 + b"1" + b"]]}" * 300,
        b"[" * 100_000,
    ],
)
def test_deep_nesting_is_a_trace_error(value: bytes) -> None:
    """Nesting that would exhaust the stack is refused."""
    line = b'{"type":"args","id":1,"arguments":{"x":{"kind":"scalar","type":"x","value":%s}}}'
    with pytest.raises(TraceError, match="line 1"):
        decode(line % value, "file", 1)


def test_deep_arguments_are_refused_both_ways() -> None:
    """Tuples within tuples are written to a known depth, and refused beyond it."""
    arg: Any = NoneArg()
    for _ in range(MAX_DEPTH - 1):
        arg = TupleArg("tuple", (arg,))
    assert round_trip(args(x=arg)) == args(x=arg)
    with pytest.raises(InternalError, match="nested deeper"):
        encode(args(x=TupleArg("tuple", (TupleArg("tuple", (arg,)),))))
    item = b'{"kind":"tuple","type":"tuple","items":['
    raw = b'{"type":"args","id":1,"arguments":{"x":%s%s}}' % (item * 200, b"]}" * 200)
    with pytest.raises(TraceError, match="nested deeper"):
        decode(raw, "file", 1)


def test_a_value_that_contains_itself_is_refused() -> None:
    """A cyclic value is a contained fault of ours, not an endless loop."""
    cyclic: list[object] = []
    cyclic.append(cyclic)
    with pytest.raises(InternalError, match="nested deeper"):
        encode(args(x=ConstexprArg("list", cyclic)))


@pytest.mark.parametrize("value", [object(), {1, 2}, NoneArg])
def test_a_value_of_another_type_is_refused(value: object) -> None:
    """A value that has no lossless form is never replaced by its repr on the quiet."""
    with pytest.raises(InternalError, match="line of type args cannot be written"):
        encode(args(x=ScalarArg("object", value)))


def test_a_field_of_a_wrong_type_is_refused() -> None:
    """A line object that breaks its own annotations raises InternalError."""
    with pytest.raises(InternalError):
        encode(attrs.evolve(kernel(), kernel=KernelInfo("k", "h", roles={"x": "read"})))  # type: ignore[dict-item]


def test_references_go_to_tensors_only() -> None:
    """A reference to a container, which could build an endless argument, is refused."""
    raw = (
        b'{"type":"args","id":1,"arguments":{"x":{"kind":"tuple","type":"t",'
        b'"items":[{"kind":"ref","path":"x"}]}}}'
    )
    with pytest.raises(TraceError, match="a reference to no tensor"):
        decode(raw, "file", 1)


def test_torn_lines_are_told_from_foreign_ones() -> None:
    """Every proper beginning of a line is torn; a whole line and other text are not."""
    raw = encode(session()).rstrip(b"\n")
    assert all(is_torn(raw[:cut]) for cut in range(1, len(raw)))
    assert all(is_torn(raw[:cut] + b"\n") for cut in range(1, len(raw)))
    assert not is_torn(raw)
    assert not is_torn(b"hello")
    assert not is_torn(b'{"kind":')


def test_tensor_classes_stay_apart() -> None:
    """An argument comes back as the class that it was."""
    back = round_trip(nested_args()).args
    assert type(back["ts"]) is TupleArg
    assert type(back["ts"].items[0]) is TensorArg
