"""What random functions refuse."""

import pytest

import weft

pytestmark = pytest.mark.usefixtures("on_each_device")

Z, LONG, NAN = weft.zeros, weft.int64, float("nan")


WRONG = {
    "uniform ends": lambda: Z(2).uniform_(1, 0),
    "uniform inf": lambda: Z(2).uniform_(0, float("inf")),
    "uniform width": lambda: Z(2).uniform_(-3e38, 3e38),
    "uniform dtype": lambda: Z(2, dtype=LONG).uniform_(),
    "normal std": lambda: Z(2).normal_(0, -1),
    "normal nan": lambda: Z(2).normal_(0, NAN),
    "normal dtype": lambda: Z(2, dtype=LONG).normal_(),
    "log_normal std": lambda: Z(2).log_normal_(0, 0),
    "log_normal dtype": lambda: Z(2, dtype=LONG).log_normal_(),
    "exponential rate": lambda: Z(2).exponential_(0),
    "exponential dtype": lambda: Z(2, dtype=LONG).exponential_(),
    "cauchy sigma": lambda: Z(2).cauchy_(0, 0),
    "cauchy dtype": lambda: Z(2, dtype=LONG).cauchy_(),
    "geometric 0": lambda: Z(2).geometric_(0.0),
    "geometric 1": lambda: Z(2).geometric_(1.0),
    "geometric dtype": lambda: Z(2, dtype=weft.bool).geometric_(0.5),
    "bernoulli p": lambda: Z(2).bernoulli_(2.0),
    "bernoulli nan": lambda: weft.bernoulli(Z(2), NAN),
    "bernoulli tensor": lambda: Z(2).bernoulli_(weft.tensor(1.5)),
    "bernoulli integer": lambda: Z(2).bernoulli_(weft.tensor([1])),
    "bernoulli shape": lambda: Z(2).bernoulli_(Z(3, 2)),
    "bernoulli input": lambda: weft.bernoulli(weft.tensor([-0.1])),
    "bernoulli dtype": lambda: weft.bernoulli(weft.tensor([1])),
    "poisson negative": lambda: weft.poisson(weft.tensor([-1.0])),
    "poisson nan": lambda: weft.poisson(weft.tensor([NAN])),
    "poisson dtype": lambda: weft.poisson(weft.tensor([1])),
    "random empty": lambda: Z(2).random_(0),
    "random order": lambda: Z(2).random_(5, 2),
    "random fit": lambda: Z(2, dtype=weft.uint8).random_(0, 257),
    "random negative": lambda: Z(2, dtype=weft.uint8).random_(-1, 5),
    "random bool": lambda: Z(2, dtype=weft.bool).random_(3),
    "random three": lambda: Z(2).random_(1, 2, 3),
    "randperm n": lambda: weft.randperm(-1),
    "randperm dtype": lambda: weft.randperm(300, dtype=weft.uint8),
    "randperm float": lambda: weft.randperm(2.5),
    "multinomial negative": lambda: weft.multinomial(weft.tensor([-1.0, 2.0]), 1),
    "multinomial nan": lambda: weft.multinomial(weft.tensor([NAN, 2.0]), 1),
    "multinomial inf": lambda: weft.multinomial(weft.tensor([float("inf"), 2.0]), 1, True),
    "multinomial zeros": lambda: weft.multinomial(weft.tensor([[1.0, 2.0], [0.0, 0.0]]), 1, True),
    "multinomial many": lambda: weft.multinomial(Z(2) + 1, 3),
    "multinomial none": lambda: weft.multinomial(Z(2) + 1, 0),
    "multinomial dtype": lambda: weft.multinomial(weft.tensor([1, 2]), 1),
    "multinomial shape": lambda: weft.multinomial(Z(1, 2, 3) + 1, 1),
    "multinomial scalar": lambda: weft.multinomial(weft.tensor(1.0), 1),
    "normal size": lambda: weft.normal(0.0, 1.0),
    "normal size and tensor": lambda: weft.normal(Z(2), 1.0, (2,)),
    "normal negative": lambda: weft.normal(Z(2), -1.0),
    "normal negative tensor": lambda: weft.normal(0.0, weft.tensor([1.0, -1.0])),
    "normal integer": lambda: weft.normal(weft.tensor([1]), 1.0),
    "normal shapes": lambda: weft.normal(Z(2), Z(3)),
    "normal integers": lambda: weft.normal(0.0, 1.0, (2,), dtype=LONG),
    "randint order": lambda: weft.randint(5, 2, (3,)),
    "randint fit": lambda: weft.randint(300, (3,), dtype=weft.uint8),
    "randint size": lambda: weft.randint(3, 3),
    "randint none": lambda: weft.randint(size=(2,)),
    "randint float": lambda: weft.randint(2.5, (2,)),
    "randint_like": lambda: weft.randint_like(Z(2)),
    "rand dtype": lambda: weft.rand(2, dtype=LONG),
    "randn negative": lambda: weft.randn(-2),
    "rand twice": lambda: weft.rand(2, size=(3,)),
}  # fmt: skip


@pytest.mark.cpu_only
@pytest.mark.parametrize("call", WRONG.values(), ids=WRONG)
def test_refused(call):
    state = weft.default_generator.get_state()
    with pytest.raises(weft.WeftError, match="given"):
        call()
    assert weft.default_generator.get_state() == state  # nothing was drawn


def test_arguments_by_name():
    assert weft.rand(size=(2, 3)).shape == weft.randn(size=[2, 3]).shape == weft.zeros(size=(2, 3)).shape == (2, 3)
    assert weft.randint(high=3, size=(4,)).shape == weft.randint(low=1, high=3, size=(4,)).shape == (4,)
    assert weft.randint(1, high=2, size=(4,)).tolist() == [1, 1, 1, 1] == weft.randint(1, 2, size=(4,)).tolist()
    assert weft.randint(2, 3, (2,), dtype=weft.float32, requires_grad=True).requires_grad
    assert weft.randint_like(weft.zeros(2), low=2, high=3).tolist() == [2.0, 2.0]
    assert weft.zeros(2).random_(to=1).tolist() == [0.0, 0.0] and weft.ones(2).random_(3, to=4).tolist() == [3.0, 3.0]
    assert weft.zeros(2).random_(from_=5, to=6).tolist() == [5.0, 5.0]
    assert weft.zeros(200, dtype=weft.uint8).random_(250, None).numpy().min() >= 250
