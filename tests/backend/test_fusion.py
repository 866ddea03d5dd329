"""What fusion reaches: kernels launched and bytes moved, the table of the design. Compiled for the null device."""

import numpy as np
import pytest

import weft
import weft.nn.functional as F
from weft.base.tuning import Tuning

SLACK = 1.1  # bytes moved over bytes of inputs and outputs, each once


@pytest.fixture(autouse=True)
def on_null():
    with weft.device("null"):
        yield


def tensors(*shapes, **options):
    made = [weft.zeros(*shape, **options) for shape in shapes]
    weft.eval(*made)
    return made


def compiled(function, *args):
    step = weft.compile(function)
    step(*args)
    return step.plan


def names(plan):
    return [kernel.name for kernel in plan.kernels()]


def check_one_kernel(function, *args):
    """One kernel, nothing kept between kernels, and every input and output moved once."""
    plan = compiled(function, *args)
    assert len(plan) == 1, names(plan)
    memory = plan.memory()
    assert memory.arena_bytes == 0, str(memory)
    assert plan.bytes <= SLACK * (memory.inputs + memory.outputs)


def backward_of(function):
    """The gradient to the input, given the gradient of the output."""
    return lambda x, g: weft.grad(lambda x: (function(x) * g).sum())(x)


# ---- elementwise ----------------------------------------------------------------------------------------------------

CHAINS = {
    "arithmetic": lambda x, row, column: ((x + row) * column - x / 2.0).relu(),
    "functions": lambda x, row, column: (x.exp() + row.tanh()).log1p() * column.sigmoid(),
    "casts": lambda x, row, column: (x.to(weft.float64) * 3.0).to(weft.int32).float() + row * column,
    "compare": lambda x, row, column: weft.where(x > row, x.maximum(column), weft.where(x == 0, row, -column)),
    "gelu": lambda x, row, column: F.gelu(x + row) * column,
    "movement": lambda x, row, column: x.flip(1)[:, ::2] + x[:, 1::2] * row[: row.shape[0] // 2] * column,
    "transpose": lambda x, row, column: (x.T * 2.0).reshape(-1)[5:] + 1.0,
    "pad": lambda x, row, column: F.pad(x * row, (1, 2, 3, 0), value=1.5).tanh(),
    "several results": lambda x, row, column: (x.exp(), x.tanh() + row, x > column),
    "iota": lambda x, row, column: x.tril() + weft.arange(x.shape[1]).float() + column,
    "rows picked": lambda x, row, column: x[weft.arange(x.shape[0]) // 2] * row + column,
    "dropout": lambda x, row, column: F.dropout(F.gelu(x + row), 0.1) * column,
    "random": lambda x, row, column: x + weft.rand(x.shape) * row + weft.randn(x.shape) * column,
}


@pytest.mark.parametrize("shape", [(512, 256), (33, 70)])
@pytest.mark.parametrize("chain", CHAINS)
def test_a_chain_of_elementwise_operations_is_one_kernel(chain, shape):
    check_one_kernel(CHAINS[chain], *tensors(shape, shape[1:], (shape[0], 1)))


def test_a_chain_of_rank_four():
    check_one_kernel(lambda x, c: (x * c).relu().permute(0, 2, 3, 1) + 1.0, *tensors((4, 6, 5, 7), (6, 1, 1)))


def test_the_backward_of_a_chain_is_one_kernel():
    check_one_kernel(backward_of(lambda x: F.gelu(x.sigmoid() * 3.0).tanh()), *tensors((512, 256), (512, 256)))


# ---- rows -----------------------------------------------------------------------------------------------------------

ROWS = {
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "logsumexp": lambda x: x.logsumexp(-1),
    "scaled softmax": lambda x: (x * 0.125).masked_fill(x > 9.0, -1e9).softmax(-1) * 2.0,
    "standardised": lambda x: (x - x.mean(-1, keepdim=True)) / x.std(-1, keepdim=True),
}
ROW_SHAPES = [(512, 256), (33, 1000), (7, 5), (64, 10), (4, 8192), (8, 16, 64), (4, 8, 64, 64), (2, 3, 4, 5)]


@pytest.mark.parametrize("shape", ROW_SHAPES, ids=str)
@pytest.mark.parametrize("name", ROWS)
def test_rows_forward(name, shape):
    check_one_kernel(ROWS[name], *tensors(shape))


@pytest.mark.parametrize("shape", ROW_SHAPES, ids=str)
@pytest.mark.parametrize("name", [name for name in ROWS if name != "logsumexp"])
def test_rows_backward(name, shape):
    check_one_kernel(backward_of(ROWS[name]), *tensors(shape, shape))


@pytest.mark.parametrize(("shape", "dim"), [((64, 32), 0), ((8, 16, 33), 1)])
def test_softmax_over_other_axes(shape, dim):
    check_one_kernel(lambda x: x.softmax(dim), *tensors(shape))
    check_one_kernel(backward_of(lambda x: x.softmax(dim)), *tensors(shape, shape))


@pytest.mark.parametrize("norm", ["layer_norm", "rms_norm"])
def test_norms_with_weights_forward_and_to_the_input(norm):
    x, g, weight, bias = tensors((512, 256), (512, 256), (256,), (256,))
    affine = (weight, bias) if norm == "layer_norm" else (weight,)
    check_one_kernel(lambda x: getattr(F, norm)(x, (256,), *affine), x)
    check_one_kernel(backward_of(lambda x: getattr(F, norm)(x, (256,), *affine)), x, g)


def test_layer_norm_over_two_axes():
    check_one_kernel(lambda x: F.layer_norm(x, (16, 64)), *tensors((8, 16, 64)))
    check_one_kernel(backward_of(lambda x: F.layer_norm(x, (16, 64))), *tensors((8, 16, 64), (8, 16, 64)))


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_per_row(smoothing):
    (x, g), (y,) = tensors((512, 256), (512,)), tensors((512,), dtype=weft.int64)

    def loss(x, y):
        return F.cross_entropy(x, y, reduction="none", label_smoothing=smoothing)

    check_one_kernel(loss, x, y)
    check_one_kernel(lambda x, y, g: weft.grad(lambda x: (loss(x, y) * g).sum())(x), x, y, g)


def test_mean_cross_entropy_forward_and_backward():
    """Counting labels and the mean over rows are small kernels of their own."""
    (x,), (y,) = tensors((512, 256)), tensors((512,), dtype=weft.int64)
    plan = compiled(lambda x, y: weft.value_and_grad(lambda x: F.cross_entropy(x, y))(x), x, y)
    assert len(plan) <= 3, names(plan)
    memory = plan.memory()
    assert plan.bytes <= SLACK * (memory.inputs + memory.outputs)


# ---- gradients of parameters ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(512, 256), (8, 64, 96)])
def test_layer_norm_gradients_are_two_kernels(shape):
    """To the input, the weight and the bias together."""
    x, g, weight, bias = tensors(shape, shape, shape[-1:], shape[-1:])

    def gradients(x, weight, bias, g):
        return weft.grad(lambda *inputs: (F.layer_norm(inputs[0], shape[-1:], *inputs[1:]) * g).sum(), (0, 1, 2))(
            x, weight, bias
        )

    plan = compiled(gradients, x, weight, bias, g)
    assert len(plan) <= 2, names(plan)
    memory = plan.memory()
    assert plan.bytes <= SLACK * (memory.inputs + memory.outputs)


def statistics(x):
    mean = x.mean(0)
    return mean, ((x - mean) ** 2).mean(0)


def batch_norm(x, weight, bias):
    mean, var = statistics(x)
    return (x - mean) / (var + 1e-5).sqrt() * weight + bias


def test_batch_norm_parameter_gradients():
    """At most two kernels more than the statistics that they need."""
    x, g, weight, bias = tensors((512, 256), (512, 256), (256,), (256,))

    def gradients(x, weight, bias, g):
        return weft.grad(lambda weight, bias: (batch_norm(x, weight, bias) * g).sum(), (0, 1))(weight, bias)

    plan, needed = compiled(gradients, x, weight, bias, g), compiled(statistics, x)
    assert len(plan) - len(needed) <= 2, names(plan)


def test_batch_norm_parameter_gradients_from_saved_statistics():
    x, g, mean, scale = tensors((512, 256), (512, 256), (256,), (256,))
    plan = compiled(lambda x, g, mean, scale: ((g * (x - mean) * scale).sum(0), g.sum(0)), x, g, mean, scale)
    assert len(plan) <= 2, names(plan)
    memory = plan.memory()
    assert plan.bytes <= SLACK * (memory.inputs + memory.outputs)


def many_parameters():
    shapes = [(64, 48), (64,), (48, 64), (48,)] * 5
    return [weft.zeros(*shape, requires_grad=True) for shape in shapes]


def quadratic(params):
    """A loss whose gradients are one small elementwise computation each."""
    return sum([(param * param).sum() for param in params[1:]], (params[0] * params[0]).sum())


@pytest.mark.parametrize("keep", [True, False], ids=["gradients kept", "gradients dropped"])
def test_clipping_and_adamw_over_twenty_parameters(keep):
    """At most four kernels more than the gradients themselves, however many parameters there are."""
    params = many_parameters()
    optimizer = weft.optim.AdamW(params, lr=1e-3)

    def gradients():
        optimizer.zero_grad()
        quadratic(params).backward()

    def update():
        gradients()
        weft.optim.clip_grad_norm_(params, 1.0)
        optimizer.step()
        if not keep:
            optimizer.zero_grad()

    whole, only_gradients = compiled(update), compiled(gradients)
    assert len(whole) - len(only_gradients) <= 4, names(whole)
    vector = sum(param.numel() for param in params) * 4
    # Read: gradient (twice), parameter and two moments; written: parameter, moments and the clipped gradient.
    assert whole.bytes - only_gradients.bytes <= SLACK * 9 * vector
    assert not any("copy" in name for name in names(whole)), names(whole)


@pytest.mark.parametrize("optimizer", ["SGD", "Adam", "AdamW"])
def test_an_update_of_kept_gradients(optimizer):
    """Gradients that a compiled step left behind, updated by another: clipping and update alone."""
    params = many_parameters()
    chosen = getattr(weft.optim, optimizer)(params)
    compiled(lambda: quadratic(params).backward())
    assert params[0].grad is not None

    def update():
        weft.optim.clip_grad_norm_(params, 1.0)
        chosen.step()

    plan = compiled(update)
    assert len(plan) <= 4, names(plan)


# ---- matrix products ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", [F.gelu, F.relu, lambda x: x, lambda x: x.sigmoid() * x])
def test_linear_bias_and_activation_are_one_kernel(activation):
    check_one_kernel(lambda x, w, b: activation(F.linear(x, w, b)), *tensors((512, 256), (128, 256), (128,)))


def test_a_residual_is_added_in_the_product():
    shapes = (512, 256), (128, 256), (128,), (512, 128)
    check_one_kernel(lambda x, w, b, r: r + F.gelu(F.linear(x, w, b)), *tensors(*shapes))


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda a, b: a @ b, [(64, 96), (96, 80)]),
        (lambda a, b: a.T @ b, [(96, 64), (96, 80)]),
        (lambda a, b: a @ b.T, [(64, 96), (80, 96)]),
        (lambda a, b: a.T @ b.T, [(96, 64), (80, 96)]),
        (lambda a, b: a @ b, [(6, 64, 96), (6, 96, 80)]),
        (lambda a, b: a.mT @ b, [(6, 96, 64), (6, 96, 80)]),
        (lambda a, b: a @ b.mT, [(6, 64, 96), (6, 80, 96)]),
        (lambda a, b: a @ b, [(6, 64, 96), (96, 80)]),
        (lambda a, b: a @ b.mT, [(3, 2, 64, 96), (3, 2, 80, 96)]),
        (lambda a, b: a[:, :96] @ b[16:], [(64, 128), (112, 80)]),
        (lambda a, b: a[8:40] @ b, [(64, 96), (96, 80)]),
        (lambda a, b: a.permute(1, 0, 2) @ b, [(64, 6, 96), (6, 96, 80)]),
        (lambda a, b: a.reshape(64, 96) @ b, [(8, 8, 96), (96, 80)]),
    ],
)
def test_transposed_and_sliced_operands_are_not_copied(function, shapes):
    plan = compiled(function, *tensors(*shapes))
    assert len(plan) == 1, names(plan)
    assert plan.memory().arena_bytes == 0
    assert names(plan)[0].startswith("gemm")


def test_a_transposed_product_is_copied_and_not_computed_as_another_one():
    """That would have other bits; what reads it as an operand or element by element needs no copy."""
    (product, copy) = names(compiled(lambda a, b: (a @ b).T, *tensors((64, 96), (96, 80))))
    assert product.startswith("gemm") and copy.startswith("map_permute")
    plan = compiled(lambda a, b, c: (a @ b).T @ c, *tensors((64, 96), (96, 80), (64, 8)))
    assert len(plan) == 2 and all(name.startswith("gemm") for name in names(plan))


def test_the_backward_of_a_norm_reads_the_residual_stream_that_is_stored_anyway():
    """Not its own copy of what the stream is less its mean, nor of that scaled: one read gives both again."""

    def loss(weight, scale, x):
        for _ in range(3):
            x = x + F.linear(F.layer_norm(x, (256,), scale), weight)
        return (x * x).sum()

    plan = compiled(weft.grad(loss, argnums=(0, 1)), *tensors((256, 256), (256,), (512, 256)))
    stored = [stay.name for stay in plan.memory().stays if stay.kind == "arena" and stay.nbytes == 4 * 512 * 256]
    assert not any(name.startswith("sub") for name in stored), stored
    assert sum(name.startswith("mul") for name in stored) == 3  # what the products read
    assert len(stored) <= 13, stored


def test_weight_gradients_of_narrow_products_are_not_transposed():
    """Weights in float32, products in bfloat16: weight gradients come out as the weights lie, cast on the way."""
    weights = [weft.zeros(*shape, requires_grad=True) for shape in ((128, 256), (64, 128))]
    optimizer = weft.optim.AdamW(weights)

    def step(x):
        for weight in weights:
            x = F.relu(F.linear(x.bfloat16(), weight.bfloat16()))
        x.float().sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    plan = compiled(step, *tensors((512, 256)))
    assert not any("copy" in name or "concat" in name for name in names(plan)), names(plan)
    products = [name for name in names(plan) if name.startswith("gemm")]
    assert {"gemm_128x256x512", "gemm_64x128x512"} <= {name.split("_dot")[0] for name in products}


def mlp_step(params, optimizer, keep):
    def step(x, y):
        optimizer.zero_grad()
        hidden = F.relu(F.linear(x, params[0], params[1]))
        hidden = F.relu(F.linear(hidden, params[2], params[3]))
        loss = F.cross_entropy(F.linear(hidden, params[4], params[5]), y)
        loss.backward()
        weft.optim.clip_grad_norm_(params, 1.0)
        optimizer.step()
        if not keep:
            optimizer.zero_grad()
        return loss

    return step


@pytest.mark.parametrize("keep", [True, False], ids=["gradients kept", "gradients dropped"])
def test_a_training_step_copies_nothing(keep):
    shapes = [(128, 256), (128,), (128, 128), (128,), (10, 128), (10,)]
    params = [weft.zeros(*shape, requires_grad=True) for shape in shapes]
    optimizer = weft.optim.AdamW(params)
    (x,), (y,) = tensors((512, 256)), tensors((512,), dtype=weft.int64)
    plan = compiled(mlp_step(params, optimizer, keep), x, y)
    assert not any("copy" in name or "concat" in name for name in names(plan)), names(plan)
    products = [name for name in names(plan) if name.startswith("gemm")]
    assert len(products) == 8  # three forward, three weight gradients, two input gradients
    # Besides: rows of the loss (3), column sums (at most 2 for each bias), clipping and update (4).
    assert len(plan) <= len(products) + 3 + 6 + 4, names(plan)


def test_the_memory_of_a_training_step_is_predicted_and_reused():
    shapes = [(128, 256), (128,), (128, 128), (128,), (10, 128), (10,)]
    params = [weft.zeros(*shape, requires_grad=True) for shape in shapes]
    optimizer = weft.optim.AdamW(params)
    (x,), (y,) = tensors((512, 256)), tensors((512,), dtype=weft.int64)
    memory = compiled(mlp_step(params, optimizer, False), x, y).memory()
    assert memory.arena_bytes < sum(interval.nbytes for interval in memory.arena)  # places are used more than once
    for one in memory.arena:
        for two in memory.arena:
            if one is not two and one.first <= two.last and two.first <= one.last:
                assert one.offset + one.nbytes <= two.offset or two.offset + two.nbytes <= one.offset
    assert memory.peak == memory.inputs + memory.outputs + memory.arena_bytes


def test_the_gradient_of_overlapping_windows_is_computed_once():
    """By the sums of a batch norm's backward, which store it for the gradient of what was normalised."""

    def loss(x, w, b, g):
        y = F.batch_norm(x.permute(0, 3, 1, 2), None, None, w, b, training=True)
        return (F.max_pool2d(y.relu(), 3, 2, 1) * g.permute(0, 3, 1, 2)).sum()

    args = tensors((2, 24, 24, 16), (16,), (16,), (2, 12, 12, 16))
    kernels = compiled(weft.grad(loss, argnums=(0, 1, 2)), *args).kernels()
    sums, _, result = kernels[-3:]
    assert sums.name.startswith("rows") and result.flops < 0.9 * sums.flops


def chain_of_means(length):
    def chain(x):
        for _ in range(length):
            x = x - x.mean() * 0.9
        return x

    return chain


def test_a_chain_of_reductions_is_cut():
    """Each reduction that depends on the last reads its row once more: all in one kernel would be quadratic."""
    (x,) = tensors((8, 16))
    most = Tuning().max_reductions
    counts = {length: len(compiled(chain_of_means(length), x)) for length in (most, 200)}
    assert counts[most] <= 2
    assert 200 // most <= counts[200] <= 2 + 200 // most
    given = np.random.default_rng(0).standard_normal((8, 16))
    with weft.device("cpu"):
        found = weft.compile(chain_of_means(60))(weft.tensor(given)).numpy()
    np.testing.assert_allclose(found, chain_of_means(60)(given), 1e-10, 1e-12)
