"""What tests that compute share: the devices that they run on."""

import pytest

import weft


@pytest.fixture(params=["cpu"])
def on_each_device(request):
    """Every device that compiles and computes, in turn, as the default device; the random stream starts anew."""
    with weft.device(request.param):
        weft.manual_seed(0)
        yield request.param
