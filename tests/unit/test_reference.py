"""What users find by name has a docstring; its examples are doctests, which pytest collects from the modules."""

from __future__ import annotations

import inspect
import types

import pytest

import weft

pytestmark = pytest.mark.unit

UNKNOWN = ("inplace", "_stacklevel", "dtype")  # parameters of PyTorch's that stand elsewhere in Weft
NAMESPACES = {
    "weft": weft,
    "weft.nn.functional": weft.nn.functional,
    "weft.linalg": weft.linalg,
    "weft.autograd": weft.autograd,
    "weft.testing": weft.testing,
    "weft.optim": weft.optim,
    "weft.signal.windows": weft.signal.windows,
    "weft.Tensor": weft.Tensor,
    "weft.kernel": weft.kernel,
}


def public(place: object) -> dict[str, object]:
    """Functions and classes of Weft that a user finds at `place`."""
    names = getattr(place, "__all__", None) or [name for name in dir(place) if not name.startswith("_")]
    found = {name: getattr(place, name) for name in names}
    return {name: value for name, value in found.items() if callable(value) and _is_ours(value)}


def _is_ours(value: object) -> bool:
    module = getattr(value, "__module__", None) or "weft"
    return not isinstance(value, types.ModuleType) and module.split(".")[0] == "weft"


@pytest.mark.parametrize("name", NAMESPACES)
def test_every_public_name_has_a_docstring(name):
    names = public(NAMESPACES[name])
    bare = [key for key, value in names.items() if not (inspect.getdoc(value) or "").strip()]
    bare += [key for key, value in names.items() if inspect.isclass(value) and not value.__doc__]  # not a base's
    assert len(names) >= 2 and bare == []


A, B, FLAGS, CLASSES = weft.tensor([1.0, 2.0]), weft.tensor([3.0, 5.0]), weft.tensor([True, False]), weft.tensor([1, 0])


@pytest.mark.parametrize(
    ("named", "positional"),
    [
        (lambda: weft.add(input=A, other=B), lambda: A + B),
        (lambda: A.mul(other=B), lambda: A * B),
        (lambda: weft.softmax(input=A, dim=0), lambda: A.softmax(0)),
        (lambda: weft.pow(input=A, exponent=B), lambda: A**B),
        (lambda: weft.where(condition=FLAGS, input=A, other=B), lambda: weft.where(FLAGS, A, B)),
        (lambda: weft.dot(input=A, tensor=B), lambda: weft.dot(A, B)),
        (lambda: weft.outer(input=A, vec2=B), lambda: weft.outer(A, B)),
        (lambda: weft.addcmul(input=A, tensor1=B, tensor2=A), lambda: weft.addcmul(A, B, A)),
        (lambda: weft.split(tensor=A, split_size_or_sections=1)[1], lambda: A[1:]),
        (lambda: weft.broadcast_to(input=A, size=(3, 2)), lambda: weft.broadcast_to(A, (3, 2))),
        (lambda: weft.searchsorted(sorted_sequence=B, input=A), lambda: weft.searchsorted(B, A)),
        (lambda: weft.zeros_like(input=A), lambda: A * 0),
        (lambda: weft.nonzero(input=CLASSES), lambda: weft.tensor([[0]])),
        (lambda: weft.nn.functional.one_hot(tensor=CLASSES, num_classes=2), lambda: weft.eye(2).flip(0)),
        (lambda: weft.nn.functional.dropout(input=A, p=0.0), lambda: A),
    ],
)
def test_operands_have_pytorchs_names(named, positional):
    assert named().tolist() == positional().tolist()


def test_functional_takes_its_arguments_in_pytorchs_order():
    """Parameters of every function that PyTorch writes in Python; it may have more, which are not known here."""
    functional = pytest.importorskip("torch").nn.functional
    compared = 0
    for name, function in public(weft.nn.functional).items():
        theirs = getattr(functional, name, None)
        if not inspect.isfunction(theirs):
            continue
        wanted = [key for key in inspect.signature(theirs).parameters if key not in UNKNOWN]
        have = [
            key
            for key in inspect.signature(function).parameters
            if key not in ("inplace", "generator", "state", "draw")
        ]
        if wanted == ["args", "kwargs"]:
            continue
        pairs = list(zip(wanted, have, strict=False))
        wrong = [(one, two) for one, two in pairs if one != two]
        assert not wrong, (name, wrong)
        compared += 1
    assert compared > 50
