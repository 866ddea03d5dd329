"""What tests that compute share: the devices that they run on, and a cold start. Files whose oracle is torch need
it to be there."""

import importlib.util
from pathlib import Path

import pytest

import weft
from weft.compiler import plan_cache, realize

if importlib.util.find_spec("torch") is None:
    collect_ignore = [path.name for path in Path(__file__).parent.glob("*.py") if "import torch" in path.read_text()]


def computing() -> list:
    """The CPU, and a GPU where there is one: those tests are marked `gpu` and run by `make test-gpu`."""
    found = ["cpu"]
    try:
        weft.get_device("cuda")
        found.append(pytest.param("cuda", marks=pytest.mark.gpu))
    except weft.DeviceError:
        pass
    return found


@pytest.fixture(params=computing())
def on_each_device(request):
    """Every device that compiles and computes, in turn, as the default device; the random stream starts anew."""
    if request.param != "cpu" and request.node.get_closest_marker("cpu_only"):
        pytest.skip("looks at what only the CPU has")
    with weft.device(request.param):
        weft.manual_seed(0)
        yield request.param
        weft.get_device(request.param).backend.synchronise()  # what is known late is this test's


@pytest.fixture
def cold(monkeypatch):
    """No plan is cached, neither in memory nor on disk."""
    monkeypatch.setattr(plan_cache, "ACTIVE", False)
    monkeypatch.setattr(realize, "_plans", type(realize._plans)())
    monkeypatch.setattr(realize, "_forms", type(realize._forms)())
