"""No key of a cache may omit what decides the code: each such thing is changed in turn, and the key must change."""

import dataclasses
import itertools
import os
import platform
import re
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import weft
from weft.backends.cpu import jit
from weft.backends.cpu.backend import CpuBackend
from weft.backends.cuda import backend as cuda_backend
from weft.backends.cuda import compile as cuda_compile
from weft.backends.cuda import driver as cuda_driver
from weft.base import dtypes
from weft.base.capabilities import Features, Limits
from weft.base.digest import Nameless, describe, digest
from weft.base.dtypes import DType
from weft.base.state import Settings
from weft.compiler import plan_cache, program, realize
from weft.core.tensor import Tensor
from weft.kernels.custom.definition import Static
from weft.kernels.ir.language import Geometry
from weft.plan import serialize
from weft.plan.device import Device
from weft.plan.plan import Code

pytestmark = pytest.mark.unit
ROOT = Path(__file__).parents[2] / "weft"


def other(value):
    """A value of the same type that is not `value`."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return 2 * value + 1  # of lanes the power of two below counts
    if isinstance(value, str):
        return value + "1"
    if isinstance(value, DType):
        return dtypes.ALL[(dtypes.ALL.index(value) + 1) % len(dtypes.ALL)]
    if isinstance(value, Features | Limits):
        return variants(value)[0]
    return (*value[:-1], other(value[-1])) if value else (0,)


def variants(value):
    """`value` with each of its fields changed, one after the other."""
    return [replace(value, **{field.name: other(getattr(value, field.name))}) for field in dataclasses.fields(value)]


def program_of(make, *tensors):
    """The program under the node that `make` gives."""
    node = make(*tensors).node
    located = program.locate([node], {})
    return program.build([node], located, with_numbers=True)[0]


@pytest.fixture
def cpu():
    """A description like that of the CPU, with a library."""
    found = weft.get_device("cpu")
    about = {field.name: getattr(found, field.name) for field in dataclasses.fields(Device)}
    return SimpleNamespace(**{**about, "libraries": {"blas": SimpleNamespace(version="1")}})


def plan_key(device, make=lambda x: (x * 2.5).softmax(-1) + 1.0):
    made = program_of(make, weft.tensor([[1.0, 2.0, 3.0]]))
    return plan_cache.key_of(made, device, device.backend.identity(), plan_cache._weft_text())


# --- plans -----------------------------------------------------------------------------------------------------------


def test_every_field_of_a_plans_key_counts(cpu):
    key = plan_key(cpu)
    seen = {key.digest()}
    for field in dataclasses.fields(key):
        changed = dataclasses.replace(key, **{field.name: other(getattr(key, field.name))})
        assert changed.digest() not in seen, field.name
        seen.add(changed.digest())
    assert key.digest() == plan_key(cpu).digest()


def test_every_part_of_a_programs_form_counts(cpu):
    key = plan_key(cpu)
    seen = {key.digest()}
    for number, entry in enumerate(key.form):
        for part, value in enumerate(entry):
            changed = (*entry[:part], other(value), *entry[part + 1 :])
            form = (*key.form[:number], changed, *key.form[number + 1 :])
            found = dataclasses.replace(key, form=form).digest()
            assert found not in seen, (entry, part)
            seen.add(found)


FORMS = {
    "a number of each run": (lambda x: x * 3.5, True),
    "a number that rules know": (lambda x: x * 2.0, False),
    "another operation": (lambda x: x + 2.5, False),
    "another dtype": (lambda x: x.double() * 2.5, False),
    "zero": (lambda x: x * 0.0, False),
    "minus zero": (lambda x: x * -0.0, False),
    "another axis": (lambda x: x.sum(0) * 2.5, False),
    "the other axis": (lambda x: x.sum(1) * 2.5, False),
    "another shape": (lambda x: x.reshape(3, 1) * 2.5, False),
}


def test_programs_of_another_form_have_other_keys(cpu):
    base = plan_key(cpu, lambda x: x * 2.5).digest()
    found = {name: plan_key(cpu, make).digest() for name, (make, _) in FORMS.items()}
    assert {name: key == base for name, key in found.items()} == {name: same for name, (_, same) in FORMS.items()}
    different = [key for name, key in found.items() if not FORMS[name][1]]
    assert len(set(different)) == len(different)


def test_every_dtype_has_its_own_key(cpu):
    keys = {plan_key(cpu, lambda x, dtype=dtype: x.bool().to(dtype)).digest() for dtype in dtypes.ALL}
    assert len(keys) == len(dtypes.ALL)


def test_a_dtype_is_known_by_what_it_is():
    assert serialize.canonical_text(weft.bfloat16) == b'{"dtype":["bfloat16","f",2]}'
    assert describe(weft.bfloat16) == 'weft.dtype["bfloat16","f",2]'


def test_a_second_object_for_a_dtype_is_never_kept():
    """Nothing makes one; if something did, its plan must not reach the disk under the name of the right one."""
    twin = object.__new__(DType)
    for field in dataclasses.fields(DType):
        object.__setattr__(twin, field.name, getattr(weft.float16, field.name))
    with pytest.raises(serialize.Unstorable):
        serialize.canonical_text((1, twin))
    with pytest.raises(serialize.Unstorable):
        serialize.pack((1, twin))


def test_what_a_device_is_enters_the_key(cpu, monkeypatch):
    base = plan_key(cpu).digest()
    fields = {field.name for field in dataclasses.fields(Device)}
    # `backend` counts by its identity; what is emulated, and how it is reached, changes `limits` and `tuning` only;
    # the compiler reads `tuning` alone.
    unused = {"index", "backend", "description", "is_software", "is_integrated", "api", "class_tuning"}
    changes = {
        "kind": "cpv",
        "features": replace(cpu.features, small_products=not cpu.features.small_products),
        "limits": replace(cpu.limits, vector_register_bytes=1),
        "dtypes": cpu.dtypes - {weft.float64},
        "libraries": {"blas": SimpleNamespace(version="2")},
        "tuning": replace(cpu.tuning, max_tasks=7),
    }
    assert set(changes) == fields - unused, "a new field of Device: does code depend on it?"
    for name, value in changes.items():
        with monkeypatch.context() as patch:
            patch.setattr(cpu, name, value)
            assert plan_key(cpu).digest() != base, name
    for name, value in [
        *[("features", one) for one in variants(cpu.features)],
        *[("limits", one) for one in variants(cpu.limits)],
        *[("tuning", one) for one in variants(cpu.tuning)],
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(cpu, name, value)
            assert plan_key(cpu).digest() != base, value


def test_the_machine_the_compiler_and_its_libraries_enter_the_key(cpu, monkeypatch):
    base = plan_key(cpu).digest()
    for where, name, value in [
        (cpu.backend, "identity", lambda: "another machine"),
        (plan_cache, "_weft_text", lambda: "another compiler"),
        (platform, "python_version", lambda: "3.99"),
        (np, "__version__", "0"),
        (ml_dtypes, "__version__", "0"),
    ]:
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            assert plan_key(cpu).digest() != base, name
    assert plan_key(cpu).digest() == base


def test_the_precision_of_products_enters_the_key(cpu):
    made = SimpleNamespace(libraries={"a": 1})
    found = set()
    for precision in ("highest", "high"):
        weft.set_float32_matmul_precision(precision)
        found.add(program.product_precision(made))
    weft.set_float32_matmul_precision("highest")
    assert found == {"highest", "high"} and program.product_precision(SimpleNamespace(libraries={})) == "highest"
    # The default dtype is in the graph: nodes have dtypes.
    assert Settings.__slots__ == ("default_dtype", "float32_matmul_precision"), "a new setting: does code depend on it?"


# What each variable of the environment does to code: nothing, or through which field of a key it is seen.
VARIABLES = {
    "WEFT_CACHE_DIR": "", "WEFT_CACHE_LIMIT": "", "XDG_CACHE_HOME": "", "XDG_RUNTIME_DIR": "", "WEFT_SYNC": "",
    "WEFT_TRACEBACK": "",
    "WEFT_NUM_THREADS": "limits", "OMP_NUM_THREADS": "limits", "WEFT_NO_LIBRARIES": "libraries",
}  # fmt: skip


def test_every_variable_of_the_environment_is_accounted_for(monkeypatch):
    read = set()
    for path in ROOT.rglob("*.py"):
        text = path.read_text()
        if "environ" in text:
            read |= set(re.findall(r'"((?:WEFT|OMP|XDG)_[A-Z_]+)"', text))
    assert read == set(VARIABLES)
    monkeypatch.setenv("WEFT_NUM_THREADS", "7")
    assert CpuBackend().device.limits.cpu_threads == 7
    monkeypatch.setenv("WEFT_NO_LIBRARIES", "1")
    assert cuda_backend.libraries(None) == {}


def test_the_text_of_weft_covers_every_module(monkeypatch):
    first = plan_cache._weft_text()
    assert first is not None
    reads = []
    read = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: reads.append(path) or read(path))
    assert plan_cache._weft_text.__wrapped__() == first
    assert set(reads) == set(ROOT.rglob("*.py"))
    for name in ("fuse.py", "dtypes.py", "state.py"):
        monkeypatch.setattr(Path, "read_bytes", lambda path, name=name: read(path) + b" " * (path.name == name))
        assert plan_cache._weft_text.__wrapped__() != first, name


def test_plans_in_memory_are_found_by_everything_too(monkeypatch):
    """The key in memory holds the device itself, the form with dtypes, and the precision."""
    made = program_of(lambda x: x * 2.5, weft.tensor([1.0, 2.0, 3.0]))
    device, form, *rest = made.key
    assert device is weft.get_device("cpu") and form[0] == ("leaf", (3,), weft.float32)
    assert rest[-1] == "highest"
    with weft.device("null"):
        assert program_of(lambda x: x * 2.5, weft.ones(3)).key[0] is not device
    monkeypatch.setattr(realize, "_plans", type(realize._plans)())
    for dtype in (weft.float16, weft.bfloat16, weft.float32):
        weft.eval(Tensor((weft.tensor([1.0, 2.0]).to(dtype)).node) + 1)
    assert len({key[1] for key in realize._plans}) == len(realize._plans)


# --- machine code ----------------------------------------------------------------------------------------------------


def test_every_field_of_the_target_counts():
    target, text = jit.jit().target, "; name\ndefine void @f() {\n  ret void\n}\n"
    seen = {target.key(text)}
    for field in dataclasses.fields(target):
        value = getattr(target, field.name)
        assert value or field.name == "version", field.name
        changed = dataclasses.replace(target, **{field.name: other(value)})
        assert changed.key(text) not in seen, field.name
        assert digest(target=changed) != jit.jit().identity
        seen.add(changed.key(text))
    assert target.key(text.replace("ret void", "unreachable")) not in seen
    assert target.key(text.replace("; name", "; another name")) in seen  # a comment decides nothing


def test_machine_code_is_compiled_for_the_target_of_the_key():
    """What LLVM is given is what is in the key."""
    target, machine = jit.jit().target, jit.jit().machine
    assert machine.triple == target.triple
    assert {"triple", "cpu", "features", "optimize", "relocation", "code_model", "passes", "llvm", "llvmlite"} <= {
        field.name for field in dataclasses.fields(target)
    }
    assert target.cpu and "+" in target.features and target.llvm == tuple(jit.jit().llvm.llvm_version_info)


def test_everything_that_nvrtc_is_given_counts():
    given = {"text": "a", "architecture": "sm_90", "compiler": "13.0", "options": ("--std=c++17", "--fmad=false")}
    base = cuda_compile.key_of(**given)
    assert base == cuda_compile.key_of(**given)
    for name, value in given.items():
        assert cuda_compile.key_of(**{**given, name: other(value)}) != base, name


def test_what_a_cuda_plan_depends_on(monkeypatch):
    backend = object.__new__(cuda_backend.CudaBackend)
    monkeypatch.setattr(cuda_compile, "version", lambda: "13.0")
    backend.driver = SimpleNamespace(name="H200", architecture="sm_90")
    found = {backend.identity()}
    for change in ({"name": "H100"}, {"architecture": "sm_80"}):
        backend.driver = SimpleNamespace(**{"name": "H200", "architecture": "sm_90", **change})
        found.add(backend.identity())
    backend.driver = SimpleNamespace(name="H200", architecture="sm_90")
    for where, name, value in (
        (cuda_compile, "version", lambda: "13.1"),
        (cuda_compile, "OPTIONS", ("--std=c++17",)),
        (backend, "dialect", SimpleNamespace(name="another")),
    ):
        with monkeypatch.context() as patch:
            patch.setattr(where, name, value)
            found.add(backend.identity())
    assert len(found) == 6


def test_kernels_of_a_gpu_are_not_shared_by_their_short_name(monkeypatch):
    """The name of a kernel has 32 bits of a hash: two texts, or two sizes of shared memory, may have the same."""
    driver = object.__new__(cuda_driver.CudaDriver)
    driver._functions, driver._loading, driver.architecture = {}, threading.Lock(), "sm_90"
    driver.activate = lambda: None
    driver._load = lambda code, cubin: (code.packed, code.geometry)
    monkeypatch.setattr(cuda_compile, "cubins", lambda codes, architecture: [code.packed for code in codes])
    codes = [
        Code("k", "k_12345678", (), Geometry(256, 1, shared), text)
        for shared, text in itertools.product((0, 60_000), (b"one", b"two"))
    ]
    assert driver.load_kernels(codes) == [(code.packed, code.geometry) for code in codes]
    assert driver.load_kernels(codes[::-1]) == [(code.packed, code.geometry) for code in codes[::-1]]


# --- kernels that users write ----------------------------------------------------------------------------------------


def test_arguments_that_are_equal_but_not_the_same():
    assert Static(1) == Static(1) and Static((1, "a")) == Static((1, "a"))
    values = [1, True, (1,), (1.0,), (True,), (0.0,), (-0.0,), ((1,),), ((1.0,),), "1"]
    for one, two in itertools.combinations(values, 2):
        assert Static(one) != Static(two), (one, two)


def test_a_kernel_is_traced_for_each_of_them():
    @weft.kernel
    def scaled(i, x, factors, out):
        out[i] = x[i] + factors[0] / 2

    x = weft.zeros(2)
    assert [scaled(x, (number,)).tolist() for number in (1, 1.0, 3, 3.0)] == [
        [0.5] * 2,
        [0.5] * 2,
        [1.5] * 2,
        [1.5] * 2,
    ]
    assert len(scaled._definitions) == 4


def test_the_digest_of_a_definition_covers_the_kernel():
    def traced(body, dtype=weft.float32, extent=4):
        kernel = weft.kernel(body)
        return kernel(weft.ones(extent, dtype=dtype)).node.attrs.definition.digest

    def one(i, x, out):
        out[i] = x[i] + 1.0

    base = traced(one)
    assert base == traced(one)

    def two(i, x, out):
        out[i] = x[i] + 2.0

    def three(i, x, out):
        out[i] = x[i] - 1.0

    two.__name__ = three.__name__ = "one"
    assert len({base, traced(two), traced(three), traced(one, weft.float64), traced(one, extent=5)}) == 5


# --- descriptions ----------------------------------------------------------------------------------------------------


def test_descriptions_tell_values_apart():
    values = [
        None, True, False, 0, 1, 0.0, -0.0, 1.0, "1", "", b"1", (), (1,), [1], (1, 2), ((1, 2),), ((1,), 2), "a,b",
        ("a", "b"), ("a,b",), ('a","b',), {1: 2}, {1, 2}, weft.float32, weft.float64, np.inf, -np.inf,
    ]  # fmt: skip
    assert len({describe(value) for value in values}) == len(values)
    assert describe({"b": 1, "a": 2}) == describe({"a": 2, "b": 1}) and describe({3, 1}) == describe({1, 3})
    for nameless in (lambda: 1, object(), np.float32, (1, [object()])):
        with pytest.raises(Nameless):
            describe(nameless)


def test_text_that_changed_under_a_running_process_names_no_plan(tmp_path):
    """Its modules are older than the text: a later process would take its plans for those of the new text."""
    module = tmp_path / "module.py"
    module.write_text("x = 1\n")
    os.utime(module, (1e9, 1e9))
    assert plan_cache._weft_text(tmp_path) == plan_cache._weft_text.__wrapped__(tmp_path)
    module.write_text("x = 2\n")
    os.utime(module, (plan_cache._STARTED + 5, plan_cache._STARTED + 5))
    assert plan_cache._weft_text.__wrapped__(tmp_path) is None
