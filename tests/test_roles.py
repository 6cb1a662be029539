"""Argument roles against kernels whose accesses are known, and against texts that are odd."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton
from roles_kernels import (
    CASES,
    CUDA_90,
    VERSION,
    Case,
    Config,
    add,
    compile_ttir,
    nested_tuples,
)

from lazytrace._roles.roles import KernelRoles, kernel_roles, roles_of
from lazytrace.records import Role

pytestmark = pytest.mark.core

SHORT = {"r": Role.READ, "w": Role.WRITE, "rw": Role.READ_WRITE, "?": Role.UNKNOWN}


def _targeted() -> list[pytest.param]:
    return [
        pytest.param(case, target, id=f"{case.kernel.__name__}-{target.backend}-{target.arch}")
        for case in CASES
        if case.since <= VERSION < case.before
        for target in case.targets
    ]


@pytest.mark.filterwarnings(
    "ignore:tl.make_block_ptr is deprecated:UserWarning"
)  # 3.7: still there
@pytest.mark.parametrize(("case", "target"), _targeted())
def test_roles_of_a_compiled_kernel(case: Case, target: object) -> None:
    """Every argument has the role that the kernel's source says, on every target."""
    ttir, source = compile_ttir(case.kernel, case.signature, case.constants, target, **case.options)

    roles = roles_of(ttir, source.fn.arg_names, source.signature, source.constants)

    assert roles.by_path == {path: SHORT[short] for path, short in case.roles.items()}, roles
    assert (roles.reads_unknown, roles.writes_unknown) == (case.reads_unknown, case.writes_unknown)
    if case.reason is None:
        assert roles.reason is None
    else:
        assert roles.reason is not None
        assert case.reason in roles.reason


def test_paths_follow_signature_order() -> None:
    """Paths come in the order of the arguments, so that a record can show them as they were."""
    case = next(case for case in CASES if case.kernel is nested_tuples)
    ttir, source = compile_ttir(case.kernel, case.signature, case.constants)

    roles = roles_of(ttir, source.fn.arg_names, source.signature, source.constants)

    assert list(roles.by_path) == ["ts[0]", "ts[1][0]", "ts[2]", "cfg.x", "cfg.y"]


def test_roles_of_a_real_compiled_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A CompiledKernel as the launch hook sees it, compiled and then loaded from the cache."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    _, source = compile_ttir(
        add,
        {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32", "BLOCK": "constexpr"},
        {(4,): 64},
    )

    compiled = triton.compile(source, target=CUDA_90)
    cached = triton.compile(source, target=CUDA_90)

    assert kernel_roles(compiled) == KernelRoles(
        {"x": Role.READ, "y": Role.READ, "out": Role.WRITE}, False, False, None
    )
    assert kernel_roles(cached) == kernel_roles(compiled)


SIGNATURE = {"x": "*fp32", "n": "i32", "y": "*fp32"}
ENTRY = "tt.func public @k(%x: !tt.ptr<f32>, %n: i32, %y: !tt.ptr<f32>) {"


def _of(*lines: str, signature: Mapping[str, object] = SIGNATURE) -> KernelRoles:
    text = "\n".join(["module {", ENTRY, *lines, "tt.return", "}", "}"])
    return roles_of(text, list(signature), signature, {})


def test_an_unknown_operation_makes_its_arguments_unknown() -> None:
    """A memory operation that a later Triton may add is never taken for a harmless one."""
    roles = _of("%v = tt.load %y : !tt.ptr<f32>", "tt.frobnicate %x, %v : !tt.ptr<f32>, f32")

    assert roles.by_path == {"x": Role.UNKNOWN, "y": Role.READ}
    assert roles.reads_unknown
    assert roles.writes_unknown
    assert roles.reason is not None
    assert "tt.frobnicate is not known" in roles.reason


def test_an_address_from_an_unknown_operation_is_elsewhere() -> None:
    """What an unknown operation returns may be any address, also its operand's."""
    roles = _of("%p = tt.frobnicate %n : i32 -> !tt.ptr<f32>", "tt.store %p, %n : !tt.ptr<f32>")

    assert roles.by_path == {"x": Role.READ, "y": Role.READ}
    assert roles.writes_unknown


def test_a_long_reason_is_cut() -> None:
    """A reason names the first few causes and counts the rest."""
    roles = _of(*(f"tt.odd{letter} %n : i32" for letter in "abcdeb"))

    assert roles.reason == (
        "tt.odda is not known; tt.oddb is not known; tt.oddc is not known; and 2 more"
    )


def test_a_call_of_a_function_that_is_only_declared_is_foreign_code() -> None:
    """Without a body there is nothing to follow the argument into."""
    roles = _of("tt.call @elsewhere(%x) : (!tt.ptr<f32>) -> ()")

    assert roles.by_path == {"x": Role.UNKNOWN, "y": Role.READ}
    assert roles.writes_unknown


def test_a_block_may_use_a_value_that_stands_further_down() -> None:
    """Blocks are printed in any order: a value's definition may follow its use."""
    roles = _of(
        "cf.br ^bb2",
        "^bb1:  // pred: ^bb2",
        "tt.store %p#1, %n : !tt.ptr<f32>",
        "tt.return",
        "^bb2:  // pred: ^bb0",
        "%p:2 = scf.if %n -> (!tt.ptr<f32>, !tt.ptr<f32>) {",
        "scf.yield %x, %y : !tt.ptr<f32>, !tt.ptr<f32>",
        "} else {",
        "scf.yield %x, %y : !tt.ptr<f32>, !tt.ptr<f32>",
        "}",
        "cf.br ^bb1",
        "^bb3:",
    )

    assert roles == KernelRoles({"x": Role.READ, "y": Role.WRITE}, False, False, None)


def test_branches_carry_addresses_to_block_arguments() -> None:
    """A block argument may be any value that a branch to it passes."""
    roles = _of(
        "cf.cond_br %n, ^bb1(%x : !tt.ptr<f32>), ^bb1(%y : !tt.ptr<f32>)",
        '^bb1(%p: !tt.ptr<f32> loc("p"(#loc))):  // 2 preds: ^bb0, ^bb0',
        "tt.store %p, %n : !tt.ptr<f32>",
    )

    assert roles.by_path == {"x": Role.WRITE, "y": Role.WRITE}


def test_every_return_of_a_callee_counts() -> None:
    """A call gives what any of the callee's returns gives."""
    callee = (
        "tt.func private @h(%p: !tt.ptr<f32>, %q: !tt.ptr<f32>) -> !tt.ptr<f32> {\n"
        "cf.cond_br %c, ^bb1, ^bb2\n"
        "^bb1:\ntt.return %p : !tt.ptr<f32>\n"
        "^bb2:\n%c = arith.constant true\ntt.return %q : !tt.ptr<f32>\n}"
    )
    call = "%r = tt.call @h(%x, %y) : (!tt.ptr<f32>, !tt.ptr<f32>) -> !tt.ptr<f32>"
    text = f"{ENTRY}\n{call}\ntt.store %r, %n : !tt.ptr<f32>\ntt.return\n}}\n{callee}"

    roles = roles_of(text, list(SIGNATURE), SIGNATURE, {})

    assert roles == KernelRoles({"x": Role.WRITE, "y": Role.WRITE}, False, False, None)


def test_a_null_pointer_is_no_argument() -> None:
    """An address made of a constant belongs to no argument."""
    roles = _of(
        "%c = arith.constant 0 : i64",
        "%p = tt.int_to_ptr %c : i64 -> !tt.ptr<f32>",
        "%v = tt.load %p : !tt.ptr<f32>",
    )

    assert roles.by_path == {"x": Role.READ, "y": Role.READ}
    assert (roles.reads_unknown, roles.writes_unknown) == (True, False)


def test_a_descriptor_read_from_memory_is_elsewhere() -> None:
    """The legacy descriptor argument points at a descriptor, not at the data it describes."""
    roles = _of(
        "%d = tt.reinterpret_tensor_descriptor %x : !tt.ptr<f32> to !tt.tensordesc<tensor<8xf32>>",
        "tt.descriptor_store %d[%n], %n : !tt.tensordesc<tensor<8xf32>>, tensor<8xf32>",
        signature={**SIGNATURE, "x": "nvTmaDesc"},
    )

    assert roles.by_path == {"x": Role.READ, "y": Role.READ}
    assert (roles.reads_unknown, roles.writes_unknown) == (False, True)


def test_strings_are_not_read_as_code() -> None:
    """Quotes, braces, percent signs and arrows in a string change nothing."""
    roles = _of(
        r'tt.print " %y { \22 ^bb9 \\" {hex = false} : %n : i32',
        "tt.store %x, %n : !tt.ptr<f32>",
    )

    assert roles == KernelRoles({"x": Role.WRITE, "y": Role.READ}, False, False, None)


@pytest.mark.parametrize(
    "lines",
    [
        ["scf.execute_region {", "scf.yield", "}"],
        ["cf.switch %n : i32, [", "default: ^bb1", "]"],
        ["cf.br ^bb7"],
        ["tt.store %undefined, %n : !tt.ptr<f32>"],
        ["%p = scf.if %n -> (!tt.ptr<f32>) {", "scf.yield %x, %y : !tt.ptr<f32>", "}"],
        ["%p = scf.while (%q = %x) : (!tt.ptr<f32>) -> (!tt.ptr<f32>) {", "} do {", "}"],
        ["tt.call @k(%x, %n, %y) : (!tt.ptr<f32>, i32, !tt.ptr<f32>) -> ()"],
        ["what is this"],
        ["}", "tt.func public @second() {"],
        ["%v = tt.load : !tt.ptr<f32>"],
        ["scf.if %n {"],
    ],
)
def test_what_is_not_understood_is_unknown(lines: list[str]) -> None:
    """A text that does not parse gives unknown for every pointer, with the reason."""
    roles = _of(*lines)

    assert roles.by_path == {"x": Role.UNKNOWN, "y": Role.UNKNOWN}
    assert roles.reads_unknown
    assert roles.writes_unknown
    assert roles.reason is not None
    assert roles.reason.startswith("the kernel's TTIR is not understood")


@pytest.mark.parametrize(
    "signature",
    [
        {"x": "*fp32", "n": "i32"},
        {"x": "*fp32", "n": "i32", "y": "*fp32", "z": "*fp32"},
        {"x": "*fp32", "n": "*i32", "y": "*fp32"},
        {"x": "i64", "n": "i32", "y": "*fp32"},
        {"x": "tensordesc<fp32[16]>", "n": "i32", "y": "*fp32"},
        {"x": "tensordesc_im2col<fp32[16],input_rank=4>", "n": "i32", "y": "*fp32"},
    ],
)
def test_a_signature_that_does_not_fit_is_unknown(signature: dict[str, object]) -> None:
    """Where the arguments cannot be told apart, no role is guessed."""
    roles = _of("tt.store %x, %n : !tt.ptr<f32>", signature=signature)

    assert set(roles.by_path.values()) <= {Role.UNKNOWN}
    assert roles.writes_unknown
    assert roles.reason is not None


def test_a_chain_of_doubling_calls_is_given_up() -> None:
    """Copying out calls stops before it exhausts memory."""
    helpers = [
        f"tt.func private @h{i}(%p: !tt.ptr<f32>) {{\n"
        f"tt.call @h{i + 1}(%p) : (!tt.ptr<f32>) -> ()\n" * 2 + "tt.return\n}"
        for i in range(40)
    ]
    leaf = "tt.func private @h40(%p: !tt.ptr<f32>) {\ntt.return\n}"
    text = f"{ENTRY}\ntt.call @h0(%x) : (!tt.ptr<f32>) -> ()\ntt.return\n}}\n"

    roles = roles_of("\n".join([text, *helpers, leaf]), list(SIGNATURE), SIGNATURE, {})

    assert roles.by_path == {"x": Role.UNKNOWN, "y": Role.UNKNOWN}


@pytest.mark.parametrize(
    "compiled",
    [
        None,
        SimpleNamespace(),
        SimpleNamespace(asm={}, src=SimpleNamespace(signature={0: "*fp32"})),
        SimpleNamespace(asm={"ttir": 3}, src=None),
    ],
)
def test_a_kernel_without_source_or_text_is_unknown(compiled: object) -> None:
    """An object that is no compiled kernel, or one compiled from IR, raises nothing."""
    roles = kernel_roles(compiled)

    assert roles.by_path == {}
    assert roles.writes_unknown
    assert roles.reason is not None


@pytest.mark.parametrize("asm", [{}, {"ttir": None}, {"ttir": b"module {}"}, {"ttir": ""}, None])
def test_a_kernel_without_text_names_its_pointers(asm: object) -> None:
    """Where only the text is missing, every pointer is there, as unknown."""
    source = SimpleNamespace(
        fn=SimpleNamespace(arg_names=["x", "n", "cfg"]),
        signature={"x": "*fp32", "n": "i32", "cfg": Config("*i8", "i32", "tensordesc<fp16[8]>")},
        constants={},
    )

    roles = kernel_roles(SimpleNamespace(asm=asm, src=source))

    assert roles.by_path == dict.fromkeys(["x", "cfg.x", "cfg.y.base"], Role.UNKNOWN)
    assert roles.reads_unknown
    assert roles.writes_unknown
