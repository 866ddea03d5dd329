"""The table of autocast's policies: torch's lists are the oracle, and docs/precision.md shows it as it is."""

import importlib.util
from pathlib import Path

import pytest
import torch

import weft
from tests.records import Inputs, flat
from weft.ops.policy import FLOAT32, LOW, POLICIES, POLICY, WIDEST
from weft.ops.registry import OPERATIONS

ROOT = Path(__file__).parents[2]


def load_tool():
    spec = importlib.util.spec_from_file_location("precision_table", ROOT / "tools" / "precision_table.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


table = load_tool()
LISTS = table.torch_lists()


def test_the_page_has_the_present_table():
    text = table.PAGE.read_text()
    assert text == table.page(text), "docs/precision.md is stale: run `python tools/precision_table.py`"
    assert all(meaning in text for meaning in POLICIES.values())


def test_every_name_is_an_operation():
    known = {name for entry in OPERATIONS for name in entry.names} | {"aggregate", *weft.linalg.__all__}
    assert set(POLICY) <= known
    assert set(table.REASONS) <= set(POLICY) and set(table.ENTRIES) <= set(POLICY)


@pytest.mark.parametrize("name", POLICY)
def test_policies_are_torchs(name):
    """Those of its lists for GPUs; what they do not have has a reason, and agrees with its CPU where that casts."""
    theirs = table.on_gpus(name, LISTS)
    if theirs:
        assert POLICY[name] == theirs and name not in table.REASONS
    else:
        assert table.REASONS[name]
    on_the_cpu = table.on_the_cpu(name)
    if on_the_cpu and not theirs and name not in ("spmm", "pinv"):  # products, of which these consist on torch's CPU
        assert POLICY[name] == on_the_cpu


def test_torchs_lists_are_covered():
    """Every operation of Weft that torch's lists for GPUs name is in the table."""
    known = {name for entry in OPERATIONS for name in entry.names}
    covered = {name for entry in OPERATIONS if entry.name in POLICY for name in entry.names}
    assert {name for name in LISTS if name in known} <= covered
    named = {name.removeprefix("linalg_") for name in LISTS if name.startswith("linalg_")}
    assert named & set(weft.linalg.__all__) <= set(POLICY)


CALLED = [name for name in POLICY if any(True for _ in table.calls(name))]


def dtypes_read(result, operands):
    """The dtypes in which the operation of a result, before anything runs, reads its float operands: what a cast of an
    operand makes of it, if that is what reads it. Kernels are made of these nodes."""
    leaves = {id(one.node) for one in operands if one.dtype.kind == "f"}
    known, todo, found = set(), [one.node for one in flat(result) if isinstance(one, weft.Tensor)], set()
    while todo:
        node = todo.pop()
        if id(node) in known:
            continue
        known.add(id(node))
        found |= {node.dtype.name} if id(node) in leaves else set()
        for source in node.srcs:
            is_cast = node.op == "cast" and id(source) in leaves
            found |= {source.dtype.name} if id(source) in leaves and not is_cast else set()
            found |= {node.dtype.name} if is_cast else set()
            if not is_cast:
                todo.append(source)
    return found


@pytest.mark.parametrize("name", [name for name in CALLED if POLICY[name] != WIDEST])
def test_operations_read_the_dtype_of_the_policy(name):
    """Not only the result has it: float32 weights of a product, and 16-bit operands of an operation that computes in
    float32, are cast before anything else reads them."""
    given, wanted = ("float32", "bfloat16") if POLICY[name] == LOW else ("bfloat16", "float32")
    compared = set()
    for record, sample in table.calls(name):
        operands = Inputs(sample, given)
        tensors = operands.weft_tensors
        weft.eval(*tensors)
        with weft.autocast("cpu", dtype="bfloat16"):
            result = record.fn(*operands.weft_args, **sample.kwargs)
        compared |= dtypes_read(result, tensors)
    assert compared == {wanted}


@pytest.mark.parametrize("name", CALLED)
def test_results_have_the_dtype_of_the_policy(name):
    """float32 operands and 16-bit operands, in both 16-bit dtypes; without autocast nothing changes."""
    for record, sample in table.calls(name):
        for low in ("bfloat16", "float16"):
            for given in ("float32", low):
                operands = Inputs(sample, given)
                if not any(one.dtype.kind == "f" for one in operands.weft_tensors):
                    continue
                with weft.autocast("cpu", dtype=low):
                    result = record.fn(*operands.weft_args, **sample.kwargs)
                found = {one.dtype.name for one in flat(result) if hasattr(one, "dtype") and one.dtype.kind == "f"}
                wanted = {LOW: low, FLOAT32: "float32"}.get(POLICY[name], given)
                assert found == {wanted}, (name, given)


@pytest.mark.parametrize("name", [name for name in weft.linalg.__all__ if name in POLICY])
def test_matrices(name):
    """Decompositions and norms compute in float32, whatever a product before them gave."""
    x, wanted = weft.eye(2), {LOW: "bfloat16"}.get(POLICY[name], "float32")
    extra = {
        "vecdot": (x,), "cross": (x,), "matmul": (x,), "solve": (x,), "lstsq": (x,), "solve_triangular": (x,),
        "tensorsolve": (x[0],),
    }  # fmt: skip
    if name in ("cross", "matrix_rank", "multi_dot"):  # of three elements; an integer; below
        return
    options = {"upper": True} if name == "solve_triangular" else {"ind": 1} if name == "tensorinv" else {}
    for dtype in (weft.float32, weft.bfloat16):
        with weft.autocast("cpu"):
            others = [other.to(dtype) for other in extra.get(name, ())]
            result = getattr(weft.linalg, name)(x.to(dtype), *others, **options)
        found = [one for one in flat(result) if hasattr(one, "dtype") and one.dtype.kind == "f" and one.numel()]
        assert {one.dtype.name for one in found} == {wanted}, dtype


def test_explicit_dtypes_win():
    x = weft.ones(2, 2, dtype=weft.bfloat16)
    with weft.autocast("cpu"):
        assert x.sum(dtype=weft.bfloat16).dtype is weft.bfloat16
        assert x.softmax(-1, dtype=weft.float64).dtype is weft.float64


def test_float64_and_integers_are_left_alone():
    with weft.autocast("cpu"):
        assert (weft.ones(2, 2, dtype=weft.float64) @ weft.ones(2, 2, dtype=weft.float64)).dtype is weft.float64
        assert weft.ones(2, dtype=weft.int32).sum().dtype is weft.int64


def test_a_fused_loss_multiplies_low_and_sums_wide():
    x, weight = weft.randn(4, 8), weft.randn(5, 8)
    with weft.autocast("cpu"):
        loss = weft.nn.functional.linear_cross_entropy(x, weight, weft.tensor([0, 1, 2, 3]))
        logits = weft.nn.functional.linear(x, weight)
        parts = weft.nn.functional.cross_entropy(logits, weft.tensor([0, 1, 2, 3]))
    assert loss.dtype is weft.float32 and loss.item() == parts.item()


def test_multi_dot_takes_what_products_and_parameters_give():
    """PyTorch does on GPUs; its CPU refuses operands of two dtypes."""
    x = weft.tensor([[1.0, 2.0], [3.0, 4.0]])
    with weft.autocast("cpu"):
        for operands in ([x, x.bfloat16()], [x, x @ x, x], [x.bfloat16()] * 3):
            assert weft.linalg.multi_dot(operands).dtype is weft.bfloat16
    with pytest.raises(weft.errors.DTypeError):
        weft.linalg.multi_dot([x, x.bfloat16()])


@pytest.mark.parametrize("mode", ["RNN", "LSTM", "GRU", "LSTM with projections"])
@pytest.mark.parametrize("lengths", [None, [5, 3]])
def test_the_last_h_of_recurrent_layers_has_the_dtype_of_outputs(mode, lengths):
    """As in PyTorch; and the bits of the output that it is."""
    options = {"proj_size": 2} if "projections" in mode else {}
    layer = getattr(weft.nn, mode.split()[0])(3, 4, num_layers=2, **options)
    with weft.autocast("cpu"):
        outputs, last = layer(weft.randn(5, 2, 3), lengths=lengths)
        h = last[0] if mode.startswith("LSTM") else last
        again, _ = layer(weft.randn(5, 2, 3), last)
    assert h.dtype is outputs.dtype is again.dtype and outputs[4, 0].tolist() == h[-1, 0].tolist()
    if options:
        return  # torch warns that it computes these in another way
    torch_layer = getattr(torch.nn, mode.split()[0])(3, 4, num_layers=2)
    with torch.autocast("cpu"):
        outputs, last = torch_layer(torch.randn(5, 2, 3))
    assert outputs.dtype is (last[0] if mode.startswith("LSTM") else last).dtype
