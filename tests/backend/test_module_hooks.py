"""Hooks of modules: of calls, gradients and state."""

import warnings

import pytest
import torch

import weft
import weft.nn as nn

pytestmark = pytest.mark.usefixtures("on_each_device")


def test_extra_state_and_hooks_of_state():
    class Extra(nn.Module):
        def __init__(self):
            super().__init__()
            self.steps = 0

        def get_extra_state(self):
            return {"steps": self.steps}

        def set_extra_state(self, state):
            self.steps = state["steps"]

    model = Extra()
    model.steps = 7
    state = model.state_dict()
    assert list(state) == ["_extra_state"]
    other = Extra()
    other.load_state_dict(state)
    assert other.steps == 7
    layer = nn.Linear(1, 1)
    handle = layer.register_load_state_dict_pre_hook(
        lambda module, state, prefix, *_: state.update(bias=state.pop("old_bias"))
    )
    layer.load_state_dict({"weight": weft.ones(1, 1), "old_bias": weft.ones(1)})
    assert layer.bias.item() == 1.0
    handle.remove()
    layer.register_state_dict_post_hook(lambda module, state, prefix, _: state.update(note=1))
    assert layer.state_dict()["note"] == 1


def test_hooks_are_torchs():
    logs = []
    for library in (weft, torch):
        log = []
        layer = library.nn.Linear(2, 2).double()
        with library.no_grad():
            layer.weight.copy_(library.eye(2))
            layer.bias.zero_()
        layer.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
        layer.register_forward_hook(lambda module, args, out, log=log: log.append(out.sum().item()))
        layer.register_forward_hook(lambda module, args, kwargs, out: out + 1, with_kwargs=True)
        layer.register_full_backward_pre_hook(lambda module, grads: (grads[0] * 3,))
        layer.register_full_backward_hook(
            lambda module, given, out, log=log: log.append((given[0].sum().item(), out[0].sum().item()))
        )
        x = library.ones(1, 2, dtype=library.float64, requires_grad=True)
        y = layer(x)
        y.sum().backward()
        log += [y.sum().item(), x.grad.tolist(), layer.weight.grad.tolist()]
        logs.append(log)
    assert logs[0] == logs[1]


def test_a_hook_can_be_removed():
    layer = nn.Linear(1, 1)
    calls = []
    with layer.register_forward_hook(lambda *_: calls.append(1)):
        layer(weft.ones(1))
    layer(weft.ones(1))
    assert calls == [1]
    with pytest.raises(weft.GraphError, match="a function"):
        layer.register_forward_hook(3)


def test_hooks_after_loading_and_overridden_loading_are_torchs():
    logs = []
    for library in (weft, torch):
        log = []

        class Part(library.nn.Module):
            _version = 2

            def __init__(self, name, below=None, library=library, log=log):
                super().__init__()
                self.w = library.nn.Parameter(library.zeros(1))
                self.label, self.more = name, 0
                self.below = below
                self.log = log

                def loaded(module, keys):
                    log.append((name, module.w.item()))
                    keys.missing_keys.clear()

                self.register_load_state_dict_post_hook(loaded)

            def _save_to_state_dict(self, destination, prefix, keep_vars):
                super()._save_to_state_dict(destination, prefix, keep_vars)
                destination[prefix + "more"] = self.w.detach() + 1

            def _load_from_state_dict(self, state_dict, prefix, local_metadata, *args):
                self.more = state_dict.pop(prefix + "more").item()
                self.log.append((self.label, local_metadata.get("version")))
                super()._load_from_state_dict(state_dict, prefix, local_metadata, *args)

        model = Part("outer", Part("inner"))
        state = model.state_dict()
        log.append(sorted(state))
        state["w"] += 5
        del state["below.w"]
        result = model.load_state_dict(state)  # the hook takes the missing key out
        log += [list(result.missing_keys), model.w.item(), model.more]
        logs.append(log)
    assert logs[0] == logs[1]


def test_gradients_for_hooks_are_in_the_places_of_the_arguments():
    logs = []
    for library in (weft, torch):

        class Product(library.nn.Module):
            def forward(self, a, number, b):
                return (a * b * number, number)

        log = []
        layer = Product()
        layer.register_full_backward_hook(
            lambda module, given, out, log=log: log.append([None if g is None else g.tolist() for g in (*given, *out)])
        )
        a, b = library.ones(1), library.ones(1, requires_grad=True)
        layer(a, 2.0, b)[0].sum().backward()
        weight = library.ones(1, requires_grad=True)
        layer.forward = lambda x, weight=weight: x * weight
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch says that no input requires grad
            layer(library.ones(1)).sum().backward()
        logs.append(log)
    assert logs[0] == logs[1]
