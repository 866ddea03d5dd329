"""nn.utils: flat vectors of parameters, fused layers, modules without values, clipping."""

import numpy as np
import pytest
import torch

import weft
import weft.nn as nn
from weft.nn import utils

pytestmark = pytest.mark.usefixtures("on_each_device")


def twins(layer, oracle):
    """torch's layer with the values of ours."""
    oracle.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in layer.state_dict().items()})
    return layer, oracle


def test_every_name_of_torch_is_there():
    missing = set(torch.nn.utils.__all__) - set(utils.__all__)
    # Renamed long ago, and memory formats, which tensors here do not have.
    assert missing == {
        "clip_grad_norm", "convert_conv2d_weight_memory_format", "convert_conv3d_weight_memory_format",
    }  # fmt: skip
    assert dir(utils) == utils.__all__
    with pytest.raises(AttributeError, match="no attribute 'wait_norm'"):
        utils.wait_norm  # noqa: B018


def test_parameters_to_a_vector_and_back():
    layer, oracle = twins(nn.Linear(3, 2), torch.nn.Linear(3, 2))
    vector = utils.parameters_to_vector(layer.parameters())
    expected = torch.nn.utils.parameters_to_vector(oracle.parameters()).detach().numpy()
    np.testing.assert_array_equal(vector.detach(), expected)
    vector.sum().backward()
    np.testing.assert_array_equal(layer.weight.grad, np.ones((2, 3)))
    before = list(layer.parameters())
    call = weft.compile(lambda x: layer(x))
    x = weft.rand(2, 3)
    call(x)
    utils.vector_to_parameters(weft.arange(8.0), layer.parameters())
    torch.nn.utils.vector_to_parameters(torch.arange(8.0), oracle.parameters())
    assert all(one is other for one, other in zip(layer.parameters(), before, strict=True))
    assert layer.weight.requires_grad
    np.testing.assert_array_equal(layer.weight.detach(), oracle.weight.detach().numpy())
    np.testing.assert_allclose(call(x).detach(), oracle(torch.from_numpy(np.array(x))).detach().numpy(), rtol=1e-6)
    with pytest.raises(weft.ShapeError, match="8 elements"):
        utils.vector_to_parameters(weft.ones(7), layer.parameters())
    with pytest.raises(weft.ShapeError, match="no parameters"):
        utils.parameters_to_vector([])


CONVOLUTIONS = {
    "1d": ("Conv1d", "BatchNorm1d", (4, 6, 3), {"bias": False}, (2, 4, 5)),
    "2d": ("Conv2d", "BatchNorm2d", (4, 6, 3), {"groups": 2, "padding": 1}, (2, 4, 5, 5)),
    "3d": ("Conv3d", "BatchNorm3d", (4, 6, 2), {}, (2, 4, 3, 3, 3)),
    "transposed": ("ConvTranspose2d", "BatchNorm2d", (4, 6, 3), {"stride": 2}, (2, 4, 3, 3)),
    "transposed, groups": ("ConvTranspose2d", "BatchNorm2d", (4, 6, 3), {"groups": 2}, (2, 4, 3, 3)),
}


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("affine", [True, False])
def test_a_convolution_and_its_batch_norm_as_one(case, affine):
    name, norm, arguments, options, shape = CONVOLUTIONS[case]
    weft.manual_seed(2)
    conv, bn = getattr(nn, name)(*arguments, **options), getattr(nn, norm)(6, affine=affine)
    for _ in range(3):
        bn(conv(weft.randn(*shape) * 2 + 1))
    with weft.no_grad():
        for param in bn.parameters():
            param.add_(weft.randn(6) * 0.3)
    conv.eval(), bn.eval()
    x = weft.randn(*shape)
    made = utils.fuse_conv_bn_eval(conv, bn, transpose="Transpose" in name)
    assert type(made) is type(conv) and made is not conv and made.weight.requires_grad
    np.testing.assert_allclose(made(x).detach(), bn(conv(x)).detach(), rtol=1e-4, atol=1e-5)
    if case == "transposed, groups":  # which torch cannot fuse
        return
    _, conv2 = twins(conv, getattr(torch.nn, name)(*arguments, **options))
    _, bn2 = twins(bn, getattr(torch.nn, norm)(6, affine=affine))
    expected = torch.nn.utils.fuse_conv_bn_eval(conv2.eval(), bn2.eval(), "Transpose" in name)
    for key, value in expected.state_dict().items():
        np.testing.assert_allclose(made.state_dict()[key], value.numpy(), rtol=1e-5, atol=1e-6, err_msg=key)
    assert made.bias.requires_grad == expected.bias.requires_grad


@pytest.mark.parametrize("bias", [True, False])
def test_a_dense_layer_and_its_batch_norm_as_one(bias):
    weft.manual_seed(2)
    layer, bn = nn.Linear(4, 3, bias=bias), nn.BatchNorm1d(3)
    for _ in range(3):
        bn(layer(weft.randn(5, 4) * 2 + 1))
    layer.eval(), bn.eval()
    x = weft.randn(5, 4)
    made = utils.fuse_linear_bn_eval(layer, bn)
    np.testing.assert_allclose(made(x).detach(), bn(layer(x)).detach(), rtol=1e-4, atol=1e-5)
    weight, shift = utils.fuse_linear_bn_weights(
        layer.weight, layer.bias, bn.running_mean, bn.running_var, bn.eps, bn.weight, bn.bias
    )
    np.testing.assert_array_equal(weight.detach(), made.weight.detach())
    np.testing.assert_array_equal(shift.detach(), made.bias.detach())


def test_a_batch_norm_of_one_channel_after_a_dense_layer():
    layer, bn = nn.Linear(4, 3, bias=False).eval(), nn.BatchNorm1d(1)
    bn(weft.randn(5, 1, 3) * 2 + 1)
    x = weft.randn(5, 1, 4)
    made = utils.fuse_linear_bn_eval(layer, bn.eval())
    np.testing.assert_allclose(made(x).detach(), bn(layer(x)).detach(), rtol=1e-4, atol=1e-5)


def test_fusing_needs_evaluation_and_statistics():
    conv, bn = nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)
    with pytest.raises(weft.GraphError, match=r"training mode.*eval"):
        utils.fuse_conv_bn_eval(conv.eval(), bn)
    with pytest.raises(weft.GraphError, match="without running statistics"):
        utils.fuse_conv_bn_eval(conv, nn.BatchNorm2d(3, track_running_stats=False).eval())
    with pytest.raises(weft.ShapeError, match="out_features=4 and num_features=3"):
        utils.fuse_linear_bn_eval(nn.Linear(2, 4).eval(), bn.eval())


def test_skip_init_draws_nothing():
    weft.manual_seed(3)
    expected = weft.rand(4).numpy()
    weft.manual_seed(3)
    layer = utils.skip_init(nn.Conv2d, 3, 5, kernel_size=3, dtype=weft.float64)
    np.testing.assert_array_equal(weft.rand(4), expected)
    assert layer.weight.shape == (5, 3, 3, 3) and layer.weight.dtype is weft.float64 and layer.weight.requires_grad
    other = nn.Conv2d(3, 5, 3, dtype=weft.float64)
    layer.load_state_dict(other.state_dict())
    x = weft.rand(1, 3, 4, 4, dtype=weft.float64)
    np.testing.assert_array_equal(layer(x).detach(), other(x).detach())
    with pytest.raises(weft.RangeError, match="no argument device"):
        utils.skip_init(nn.Sequential)
    with pytest.raises(weft.RangeError, match="a class of modules"):
        utils.skip_init(len)


def test_stateless_is_functional_call():
    layer = nn.Linear(2, 1, bias=False)
    result = utils.stateless.functional_call(layer, {"weight": weft.ones(1, 2)}, (weft.ones(2),))
    np.testing.assert_array_equal(result, [2.0])


def test_clipping_is_that_of_optim():
    from weft.optim import clip

    for name in ("clip_grad_norm_", "clip_grad_value_"):
        assert getattr(utils, name) is getattr(clip, name)
