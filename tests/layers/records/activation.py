"""Records of the activations."""

import numpy as np
import torch

import weft
import weft.nn as nn
from tests.layers.oracles import of_torch
from tests.layers.record import Bad, LayerRecord

ANY = "every shape and every number is right"
SPECIAL = [-np.inf, -20.0, -6.0, -3.0, -1.0, -0.5, -0.0, 0.0, 0.5, 1.0, 3.0, 6.0, 20.0, np.inf]  # where functions bend


def compare_at_bends(name, arguments):
    """Values and slopes at the points where the functions bend are torch's."""

    def check():
        ours = weft.tensor(SPECIAL, dtype=weft.float64, requires_grad=True)
        theirs = torch.tensor(SPECIAL, dtype=torch.float64, requires_grad=True)
        layer, oracle = getattr(nn, name)(**arguments), getattr(torch.nn, name)(**arguments)
        result, expected = layer(ours), oracle(theirs)
        result.sum().backward()
        expected.sum().backward()
        np.testing.assert_allclose(result.detach(), expected.detach().numpy(), rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(
            ours.grad, theirs.grad.numpy(), rtol=1e-6, atol=1e-15
        )  # torch has constants in float32

    return check


def compare_in_place(name, arguments):
    """`inplace=True` writes to the input, and the numbers are the same."""

    def check():
        x = weft.tensor([[-2.0, 0.3], [0.0, 7.0]])
        expected = getattr(nn, name)(**arguments).eval()(x).numpy()
        layer = getattr(nn, name)(**arguments, inplace=True).eval()
        given = x.clone()
        assert layer(given) is given
        np.testing.assert_array_equal(given.numpy(), expected)
        assert "inplace=True" in repr(layer) or name in ("Hardsigmoid", "Hardswish")

    return check


def record(name, variant="", bends=True, **arguments):
    """An activation without parameters, compared with torch's."""
    cls = getattr(nn, name)
    checks = {"bends": compare_at_bends(name, arguments)} if bends else {}
    if "inplace" in cls.__init__.__code__.co_varnames:
        checks["in place"] = compare_in_place(name, arguments)
    return LayerRecord(
        name=name,
        variant=variant,
        make=lambda: cls(**arguments),
        inputs=lambda draw: (draw.normal(3, 4) * 3,),
        oracle=of_torch(lambda: getattr(torch.nn, name)(**arguments)),
        checks=checks,
        bad=[Bad(call=lambda layer: layer(weft.ones(2, dtype=weft.bool)), match="bool", error=weft.DTypeError)]
        if name in ("LeakyReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Softplus", "LogSigmoid")
        else (),
        no_bad=ANY,
    )


def check_random_slopes():
    """While training, the slopes below 0 are uniform in [lower, upper), and so are those of the gradient."""
    layer = nn.RReLU(0.2, 0.6)
    weft.manual_seed(0)
    x = weft.full((4000,), -2.0).requires_grad_()
    y = layer(x)
    y.sum().backward()
    slopes = (y.detach() / -2.0).numpy()
    assert 0.2 <= slopes.min() < 0.21
    assert 0.59 < slopes.max() < 0.6 + 1e-6
    assert abs(slopes.mean() - 0.4) < 5 * (0.4 / np.sqrt(12)) / np.sqrt(4000)
    np.testing.assert_allclose(x.grad, slopes, rtol=1e-6)
    np.testing.assert_array_equal(layer(weft.ones(3)).numpy(), np.ones(3))


def check_names():
    """Every activation of torch can be named, in any spelling."""
    for name in (
        "relu",
        "ReLU",
        "leaky_relu",
        "LeakyReLU",
        "log_softmax",
        "swish",
        "linear",
        "softmax",
        "prelu",
        "gelu",
    ):
        nn.Activation(name)(weft.ones(2, 2))
    assert repr(nn.Activation("swish").function) == "SiLU()"
    assert [key for key, _ in nn.Activation("prelu").named_parameters()] == ["function.weight"]
    assert nn.Swish is nn.SiLU is nn.get("swish")


RECORDS = [
    *[
        record(name)
        for name in ("ReLU", "ReLU6", "LeakyReLU", "ELU", "CELU", "SELU", "GELU", "SiLU", "Mish", "Softplus")
    ],
    *[record(name) for name in ("Softshrink", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh", "Tanh")],
    *[record(name) for name in ("Tanhshrink", "Sigmoid", "LogSigmoid", "Softsign")],
    record("LeakyReLU", "slope", negative_slope=0.3),
    record("ELU", "alpha", alpha=0.7),
    record("CELU", "alpha", alpha=0.7),
    record("GELU", "tanh", approximate="tanh"),
    record("Softplus", "sharp", beta=2.5, threshold=3.0),
    record("Softshrink", "wide", lambd=1.5),
    record("Hardshrink", "wide", lambd=1.5),
    record("Hardtanh", "asymmetric", min_val=-0.5, max_val=2.0),
    record("Threshold", threshold=0.5, value=-0.25),
    LayerRecord(
        name="RReLU",
        make=nn.RReLU,
        training=False,
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=of_torch(torch.nn.RReLU),
        checks={"random slopes": check_random_slopes, "in place": compare_in_place("RReLU", {})},
        bad=[Bad(call=lambda layer: nn.RReLU(0.5, 0.1)(weft.ones(1)), match="lower <= upper", error=weft.RangeError)],
    ),
    LayerRecord(
        name="PReLU",
        make=nn.PReLU,
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=of_torch(torch.nn.PReLU),
        no_bad=ANY,
    ),
    LayerRecord(
        name="PReLU",
        variant="per channel",
        make=lambda: nn.PReLU(3),
        inputs=lambda draw: (draw.normal(2, 3, 4),),
        oracle=of_torch(lambda: torch.nn.PReLU(3)),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 4)), match="3.*4|4.*3", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="GLU",
        make=nn.GLU,
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=of_torch(torch.nn.GLU),
        bad=[Bad(call=lambda layer: layer(weft.ones(2, 3)), match="glu.*3", error=weft.ShapeError)],
    ),
    LayerRecord(
        name="GLU",
        variant="channels",
        make=lambda: nn.GLU(1),
        inputs=lambda draw: (draw.normal(2, 4, 3),),
        oracle=of_torch(lambda: torch.nn.GLU(1)),
        no_bad="as along the last axis",
    ),
    LayerRecord(
        name="Activation",
        make=lambda: nn.Activation("leaky_relu", negative_slope=0.2),
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=of_torch(lambda: torch.nn.LeakyReLU(0.2)),
        checks={"names": check_names},
        bad=[
            Bad(call=lambda layer: nn.Activation("bogus"), match="'bogus'.*relu", error=weft.RangeError),
            Bad(call=lambda layer: nn.Activation(3), match="of type int", error=weft.errors.DTypeError),
        ],
    ),
    LayerRecord(
        name="Activation",
        variant="learned",
        make=lambda: nn.Activation("prelu", num_parameters=4),
        inputs=lambda draw: (draw.normal(3, 4),),
        oracle=of_torch(lambda: torch.nn.PReLU(4), rename=lambda key: key.removeprefix("function.")),
        no_bad="as by other names",
    ),
]
