"""What users find by name has a docstring; its examples are doctests, which pytest collects from the modules."""

from __future__ import annotations

import inspect
import types

import pytest

import weft

pytestmark = pytest.mark.unit

PLACES = {
    "weft": weft,
    "weft.nn.functional": weft.nn.functional,
    "weft.linalg": weft.linalg,
    "weft.autograd": weft.autograd,
    "weft.testing": weft.testing,
    "weft.optim": weft.optim,
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


@pytest.mark.parametrize("name", PLACES)
def test_every_public_name_has_a_docstring(name):
    names = public(PLACES[name])
    bare = [key for key, value in names.items() if not (inspect.getdoc(value) or "").strip()]
    bare += [key for key, value in names.items() if inspect.isclass(value) and not value.__doc__]  # not a base's
    assert len(names) >= 2 and bare == []
