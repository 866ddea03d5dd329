"""What tests that compute share: the devices that they run on, and a cold start. Files whose oracle is torch need
it to be there."""

import importlib.util
from pathlib import Path

import pytest

import weft
from tests.chosen_device import devices_of, skip_unless_able
from weft.compiler import plan_cache, realize

if importlib.util.find_spec("torch") is None:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("*.py") if "import torch" in path.read_text()]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "on_each_device" in metafunc.fixturenames:
        metafunc.parametrize("on_each_device", devices_of(metafunc.config), indirect=True)


@pytest.fixture
def on_each_device(request):
    """Every device that compiles and computes, in turn, as the default device; the random stream starts anew."""
    device = weft.get_device(request.param)
    skip_unless_able(request.node, device)
    with device:
        weft.manual_seed(0)
        yield request.param
        device.backend.synchronise()  # what is known late is this test's


@pytest.fixture
def cold(monkeypatch):
    """No plan is cached, neither in memory nor on disk."""
    monkeypatch.setattr(plan_cache, "ACTIVE", False)
    monkeypatch.setattr(realize, "_plans", type(realize._plans)())
    monkeypatch.setattr(realize, "_forms", type(realize._forms)())
