"""A block written with modules compiles to the kernels of the plain tensor code: compiled for the null device."""

import pytest

import weft
import weft.nn as nn
import weft.nn.functional as F


@pytest.fixture(autouse=True)
def on_null():
    with weft.device("null"):
        yield


def compiled(function, *args):
    step = weft.compile(function)
    step(*args)
    return step.plan


def check_same_plans(by_modules, by_tensors, *args):
    """The same kernels in the same order, and as many bytes."""
    ours, plain = compiled(by_modules, *args), compiled(by_tensors, *args)
    assert [kernel.name for kernel in ours.kernels()] == [kernel.name for kernel in plain.kernels()]
    assert ours.bytes == plain.bytes
    assert ours.memory().arena_bytes == plain.memory().arena_bytes
    return len(ours)


def resnet_block(block):
    """torchvision's BasicBlock as functions of tensors, with the parameters of `block`."""

    def bn(x, layer):
        if layer.training:
            layer.num_batches_tracked.add_(1)
        return F.batch_norm(
            x, layer.running_mean, layer.running_var, layer.weight, layer.bias, layer.training, 0.1, 1e-5
        )

    def call(x):
        shortcut = x
        if block.downsample is not None:
            shortcut = bn(F.conv2d(x, block.downsample[0].weight, stride=2), block.downsample[1])
        stride = 1 if block.downsample is None else 2
        y = F.relu(bn(F.conv2d(x, block.conv1.weight, stride=stride, padding=1), block.bn1))
        return F.relu(bn(F.conv2d(y, block.conv2.weight, padding=1), block.bn2) + shortcut)

    return call


def training_step(call, params):
    """The gradients to the input and to all parameters."""

    def step(x, g):
        for param in params:
            param.grad = None
        x = x.detach().requires_grad_()
        (call(x) * g).sum().backward()
        return x.grad, *[param.grad for param in params]

    return step


def data(*shape):
    made = weft.zeros(*shape)
    weft.eval(made)
    return made


# Kernels of evaluation, of training forward (two convolutions with their layouts, statistics in two passes, one kernel
# for all counters of batches), and of forward and backward.
@pytest.mark.parametrize(("arguments", "most"), [((16, 16), (6, 15, 32)), ((16, 32, 2), (9, 19, 45))])
def test_a_resnet_block(arguments, most):
    weft.manual_seed(0)
    block = nn.BasicBlock(*arguments)
    plain = resnet_block(block)
    x = data(4, 16, 16, 16)
    side = 16 if len(arguments) == 2 else 8
    g = data(4, arguments[1], side, side)
    inference = check_same_plans(block.eval(), plain, x)
    forward = check_same_plans(block.train(), plain, x)
    params = list(block.parameters())
    backward = check_same_plans(training_step(block, params), training_step(plain, params), x, g)
    found = (inference, forward, backward)
    assert all(one <= other for one, other in zip(found, most, strict=True)), found
