"""weft.autograd.Function: gradients that users write, against torch's class of the same name."""

import numpy as np
import pytest
import torch

import weft

pytestmark = pytest.mark.unit


@pytest.fixture(autouse=True, params=["reference", "cpu"])
def on_device(request):
    with weft.device(request.param):
        yield


def both(define, values, call):
    """Run `call(function class, tensors)` in Weft and in torch; the class is made by `define(Function base)`."""
    answers = []
    for frame in (weft, torch):
        cls = define(frame, frame.autograd.Function)
        tensors = [frame.tensor(value, requires_grad=True) for value in values]
        answers.append([np.asarray(one.detach().numpy()) for one in call(frame, cls, tensors)])
    for ours, theirs in zip(*answers, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    return answers[0]


def exponential(frame, base):
    class Exp(base):
        @staticmethod
        def forward(ctx, x):
            result = x.exp()
            ctx.save_for_backward(result)
            return result

        @staticmethod
        def backward(ctx, g):
            (result,) = ctx.saved_tensors
            return g * result

    return Exp


def straight_through(frame, base):
    class Round(base):
        @staticmethod
        def forward(ctx, x, scale, unused):
            ctx.scale = scale
            assert ctx.needs_input_grad == (True, False, False)
            return (x * scale).round() / scale

        @staticmethod
        def backward(ctx, g):
            return g * 2, None, None

    return Round


def two_results(frame, base):
    class Both(base):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            index = x.argmax()
            return x * y, x + y, index

        @staticmethod
        def backward(ctx, g, h, nothing):
            x, y = ctx.saved_tensors
            return g * y + h, g * x + h

    return Both


def test_a_saved_result():
    def call(frame, cls, tensors):
        (x,) = tensors
        (cls.apply(x) * x).sum().backward()
        return [x.grad]

    both(exponential, [[0.5, -1.0]], call)


def test_other_arguments_and_a_gradient_unlike_the_value():
    def call(frame, cls, tensors):
        (x,) = tensors
        y = cls.apply(x, 4.0, None)
        y.sum().backward()
        return [y, x.grad]

    both(straight_through, [[0.3, 0.7, -1.1]], call)


@pytest.mark.parametrize("used", ["first", "second", "both"])
def test_several_results(used):
    def call(frame, cls, tensors):
        x, y = tensors
        product, total, index = cls.apply(x, y)
        assert not index.requires_grad
        loss = {"first": product.sum(), "second": total.sum(), "both": (product * total).sum()}[used]
        loss.backward()
        return [x.grad, y.grad, index]

    both(two_results, [[1.0, 3.0], [2.0, -1.0]], call)


def test_backward_runs_once_for_all_results():
    calls = []

    class Count(weft.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1, x * 2

        @staticmethod
        def backward(ctx, g, h):
            calls.append(1)
            return g + 2 * h

    x = weft.ones(3, requires_grad=True)
    a, b = Count.apply(x)
    ((a * b).exp() + a).sum().backward()
    assert len(calls) == 1
    theirs = torch.ones(3, requires_grad=True)
    ((theirs * theirs * 2).exp() + theirs).sum().backward()
    np.testing.assert_allclose(x.grad.numpy(), theirs.grad.numpy(), rtol=1e-6)


def test_a_gradient_of_a_gradient():
    def call(frame, cls, tensors):
        (x,) = tensors
        if frame is torch:
            (first,) = torch.autograd.grad((cls.apply(x) * x).sum(), x, create_graph=True)
            first.square().sum().backward()
            return [x.grad]
        first = weft.grad(lambda y: (cls.apply(y) * y).sum())
        return [weft.grad(lambda y: first(y).square().sum())(x)]

    both(exponential, [[0.5, -1.0]], call)


def test_non_differentiable_results_and_missing_gradients():
    def define(frame, base):
        class Split(base):
            @staticmethod
            def forward(ctx, x):
                a, b, c = x * 1, x * 2, x * 3
                ctx.mark_non_differentiable(b)
                ctx.set_materialize_grads(False)
                return a, b, c

            @staticmethod
            def backward(ctx, g, none, h):
                assert none is None and h is None
                return g * 5

        return Split

    def call(frame, cls, tensors):
        (x,) = tensors
        a, b, c = cls.apply(x)
        assert (a.requires_grad, b.requires_grad, c.requires_grad) == (True, False, True)
        a.sum().backward()
        return [x.grad, b, c]

    both(define, [[1.0, 2.0]], call)


def test_without_gradients_nothing_is_recorded():
    cls = exponential(weft, weft.autograd.Function)
    assert not cls.apply(weft.ones(2)).requires_grad
    x = weft.ones(2, requires_grad=True)
    with weft.no_grad():
        assert not cls.apply(x).requires_grad


def test_inside_a_checkpoint():
    cls = exponential(weft, weft.autograd.Function)

    def grad(call):
        x = weft.tensor([0.1, 0.2], requires_grad=True)
        call(lambda x: cls.apply(x * 2) * x, x).sum().backward()
        return x.grad

    plain, again = grad(lambda fn, x: fn(x)), grad(weft.checkpoint)
    assert not any(node is other for node in _nodes(plain) for other in _nodes(again) if node.op == "exp")
    assert plain.tolist() == again.tolist()


def _nodes(tensor):
    from weft.graph.node import toposort

    return toposort([tensor.node])


def test_the_plan_is_found_again():
    cls = exponential(weft, weft.autograd.Function)

    def once():
        x = weft.tensor([0.5, -1.0], requires_grad=True)
        (cls.apply(x) * x).sum().backward()
        return x.grad.tolist()

    first, before = once(), weft.counters()["plans_built"]
    assert once() == first
    assert weft.counters()["plans_built"] == before


def gradient_of(answer):
    class Wrong(weft.autograd.Function):
        @staticmethod
        def forward(ctx, x, index):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return answer(g)

    x = weft.ones(2, requires_grad=True)
    Wrong.apply(x, weft.tensor([1])).sum().backward()


@pytest.mark.parametrize(
    ("answer", "kind", "words"),
    [
        (lambda g: g, weft.GraphError, r"Wrong.backward: given 1 gradients; expected 2: one for each argument"),
        (lambda g: (g, None, None), weft.GraphError, "given 3 gradients; expected 2"),
        (lambda g: (g.sum(), None), weft.ShapeError, r"a gradient of shape \(\) for argument 0; expected.* \(2,\)"),
        (lambda g: (g.double(), None), weft.DTypeError, "a float64 gradient for argument 0; expected.*float32"),
        (lambda g: (g, g), weft.DTypeError, "a gradient for argument 1, which is a int64 tensor"),
        (lambda g: (3.0, None), weft.GraphError, "a float for argument 0; expected a tensor or None"),
        (lambda g: (weft.ones(2, device="null"), None), weft.DeviceError, "a gradient on null for argument 0"),
    ],
)
def test_wrong_gradients_are_refused(answer, kind, words):
    with pytest.raises(kind, match=words):
        gradient_of(answer)


def test_results_that_are_no_tensors_are_refused():
    class Wrong(weft.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x, 3

    with pytest.raises(weft.GraphError, match=r"Wrong.forward: given a int as a result"):
        Wrong.apply(weft.ones(2, requires_grad=True))


def test_compiled():
    if str(weft.default_device()) == "reference":
        pytest.skip("interprets graphs, not plans")

    class Held(weft.autograd.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.held = x * y  # an attribute, not saved
            ctx.save_for_backward(x)
            return ctx.held.tanh()

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return g * (1 - ctx.held.tanh() ** 2), (g * x).sum().expand(2)

    w = weft.tensor([0.5, 0.25], requires_grad=True)

    def step(x):
        w.grad = None
        loss = (Held.apply(x, w) ** 2).sum()
        loss.backward()
        return loss

    x = weft.tensor([1.0, 2.0])
    compiled = weft.compile(step)
    for _ in range(2):
        loss = compiled(x).item()
        grads = w.grad.tolist()
        assert (loss, grads) == (step(x).item(), w.grad.tolist())


def test_a_function_without_its_methods():
    class Nothing(weft.autograd.Function):
        pass

    class OneWay(weft.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2.0

    x = weft.ones(2, requires_grad=True)
    with pytest.raises(weft.GraphError, match="a class without `forward`; expected a static method forward"):
        Nothing.apply(x)
    with pytest.raises(weft.GraphError, match="a class without `backward`; expected a static method backward"):
        OneWay.apply(x).sum().backward()
    assert OneWay.apply(x).tolist() == [2.0, 2.0]
