"""Parts of results, values made of them, memory that others see, and what functions write in place."""

from __future__ import annotations

import gc

import numpy as np

import weft
from weft.cli.retained import REPLAYS, Case, check, expect
from weft.core.interop import GivenCapsule

# --- parts of several results -----------------------------------------------------------------------------------------


@check
def whole_structure(case: Case) -> None:
    retained = [case.several() for _ in range(4)]
    for k, (first, rest) in enumerate(retained, 1):
        expect([first, rest["double"], rest["rest"][0]], k, 2 * k, 3 * k)


@check
def first_of_several(case: Case) -> None:
    expect([case.several()[0] for _ in range(5)], 1, 2, 3, 4, 5)


@check
def one_inside_of_several(case: Case) -> None:
    expect([case.several()[1]["double"] for _ in range(5)], 2, 4, 6, 8, 10)


@check
def last_of_several(case: Case) -> None:
    expect([case.several()[1]["rest"][0] for _ in range(5)], 3, 6, 9, 12, 15)


@check
def different_parts_of_several(case: Case) -> None:
    first, (_, parts), (_, more) = case.several()[0], case.several(), case.several()
    case.replay()
    expect([first, parts["double"], more["rest"][0]], 1, 4, 9)


@check
def container_of_results_changed_by_its_holder(case: Case) -> None:
    retained = case.several()[1]
    retained["rest"].clear()
    retained["more"] = case.several()[1]["rest"]
    case.replay()
    expect([retained["double"], retained["more"][0]], 2, 6)


# --- values made of results -------------------------------------------------------------------------------------------


@check
def waiting_sum(case: Case) -> None:
    retained = [case.step() + 10.0 for _ in range(4)]
    case.replay()
    expect(retained, 11, 12, 13, 14)


@check
def waiting_chain(case: Case) -> None:
    retained = case.step()
    for _ in range(5):
        retained = retained + case.step()
    case.replay()
    expect(retained, 1 + 2 + 3 + 4 + 5 + 6)


@check
def view_by_reshape(case: Case) -> None:
    retained = [case.step().reshape(2, -1) for _ in range(4)]
    expect(retained, 1, 2, 3, 4)


@check
def view_by_slice(case: Case) -> None:
    retained = [case.step()[1:3] for _ in range(4)]
    expect(retained, 1, 2, 3, 4)


@check
def view_by_index(case: Case) -> None:
    retained = [case.step()[case.size - 1] for _ in range(4)]
    expect(retained, 1, 2, 3, 4)


@check
def view_that_was_computed(case: Case) -> None:
    retained = [case.step().reshape(-1, 2).t() for _ in range(4)]
    weft.eval(*retained)
    case.replay()
    expect(retained, 1, 2, 3, 4)


@check
def view_of_a_dropped_view(case: Case) -> None:
    retained = case.step().reshape(2, -1)[0].expand(3, -1)
    case.replay()
    expect(retained, 1)


@check
def parts_by_split(case: Case) -> None:
    first, second = case.step().split(case.size // 2)
    case.replay()
    expect([first, second], 1, 1)


@check
def detached(case: Case) -> None:
    retained = [case.step().detach() for _ in range(4)]
    expect(retained, 1, 2, 3, 4)


@check
def result_as_argument(case: Case) -> None:
    double = weft.compile(lambda x: x * 2.0)
    retained = [double(case.step()) for _ in range(4)]
    expect(retained, 2, 4, 6, 8)


@check
def result_of_a_function_as_its_own_argument(case: Case) -> None:
    grow = weft.compile(lambda x: x + 1.0)
    retained = [grow(case.one)]
    for _ in range(5):
        retained.append(grow(retained[-1]))
    expect(retained, 2, 3, 4, 5, 6, 7)


@check
def result_captured_by_another_function(case: Case) -> None:
    retained = case.step()
    add = weft.compile(lambda x: x + retained)
    expect([add(case.one) for _ in range(3)], 2, 2, 2)
    case.replay()
    expect(add(case.one), 2)


@check
def result_donated(case: Case) -> None:
    take = weft.compile(lambda x: x * 10.0, donate=[0])
    retained = [take(case.step()) for _ in range(4)]
    expect(retained, 10, 20, 30, 40)


@check
def result_changed_in_place(case: Case) -> None:
    retained = case.step()
    retained.add_(100.0)
    case.step().add_(1000.0)
    expect([case.step() for _ in range(3)], 3, 4, 5)
    expect(retained, 101)


@check
def result_that_was_given_flags(case: Case) -> None:
    marked = case.step()
    marked.requires_grad_()
    marked.name, marked.grad = "mine", weft.ones(case.size)
    del marked
    for _ in range(REPLAYS):
        fresh = case.step()
        assert not fresh.requires_grad and fresh.name is None and fresh.grad is None
        del fresh


@check
def history_of_a_gradient(case: Case) -> None:
    x = case.step().requires_grad_()
    loss = (x * x).sum()
    case.replay()
    loss.backward()
    assert x.grad is not None
    expect([x, x.grad], 1, 2)


# --- memory that others see -------------------------------------------------------------------------------------------


@check
def numpy_array(case: Case) -> None:
    retained = [case.step().numpy() for _ in range(4)]
    case.replay()
    expect(retained, 1, 2, 3, 4)


@check
def numpy_array_and_its_tensor(case: Case) -> None:
    tensor = case.step()
    retained = tensor.numpy()
    case.replay()
    expect([tensor, retained], 1, 1)
    del tensor
    case.replay()
    expect(retained, 1)


@check
def numpy_view_of_a_view(case: Case) -> None:
    retained = [case.step().numpy()[::2].reshape(-1, 1)[1:] for _ in range(4)]
    case.replay()
    gc.collect()
    expect(retained, 1, 2, 3, 4)


@check
def numpy_protocol(case: Case) -> None:
    retained = [np.asarray(case.step()) for _ in range(4)]
    case.replay()
    expect(retained, 1, 2, 3, 4)


@check
def numpy_array_shared_where_it_can_be(case: Case) -> None:
    retained = [case.step().__array__(copy=False) for _ in range(4)]
    case.replay()
    expect(retained, 1, 2, 3, 4)


@check
def memory_view(case: Case) -> None:
    retained = [np.asarray(case.step()).data for _ in range(4)]
    case.replay()
    expect([np.asarray(one) for one in retained], 1, 2, 3, 4)


@check
def capsule(case: Case) -> None:
    retained = [case.step().__dlpack__(max_version=(1, 0)) for _ in range(4)]
    case.replay()
    expect([np.from_dlpack(GivenCapsule(one)) for one in retained], 1, 2, 3, 4)


@check
def capsule_that_was_dropped(case: Case) -> None:
    retained = case.step()
    retained.__dlpack__(max_version=(1, 0))
    case.replay()
    expect(retained, 1)


@check
def array_from_a_capsule(case: Case) -> None:
    retained = [np.from_dlpack(case.step()) for _ in range(4)]
    case.replay()
    gc.collect()
    expect(retained, 1, 2, 3, 4)


@check
def tensor_from_a_capsule(case: Case) -> None:
    retained = [weft.from_dlpack(np.from_dlpack(case.step())) for _ in range(4)]
    case.replay()
    expect(retained, 1, 2, 3, 4)


# --- what functions write in place ------------------------------------------------------------------------------------


@check
def captured_tensor(case: Case) -> None:
    case.step()
    retained = [(case.counter * 1.0, case.step())[0] for _ in range(4)]
    expect(retained, 1, 2, 3, 4)


@check
def captured_tensor_read(case: Case) -> None:
    retained = []
    for _ in range(4):
        case.step()
        retained.append(case.counter.numpy())
    expect(retained, 1, 2, 3, 4)


@check
def captured_tensor_seen_through_a_view(case: Case) -> None:
    case.step()
    retained, copied = case.counter[1:3], case.counter[1:3].clone()
    case.replay()
    expect([retained, copied], case.counter.numpy()[0], 1)  # a view shows the present value


@check
def captured_tensor_behind_a_capsule(case: Case) -> None:
    case.step()
    retained = np.from_dlpack(case.counter)
    case.replay()
    expect(retained, 1)


@check
def captured_tensor_with_flags_changed(case: Case) -> None:
    case.differentiate()
    expect(case.counter, 1)
    case.counter.requires_grad_()
    retained = case.counter.detach() * 1.0
    case.counter.requires_grad_(False)
    case.replay()
    expect(retained, 1)


@check
def captured_tensor_as_argument(case: Case) -> None:
    double = weft.compile(lambda x: x * 2.0)
    retained = []
    for _ in range(4):
        case.step()
        retained.append(double(case.counter))
    expect(retained, 2, 4, 6, 8)


@check
def snapshot(case: Case) -> None:
    retained = []
    for _ in range(4):
        case.step()
        retained.append(weft.snapshot({"counter": case.counter})["counter"])
    expect(retained, 1, 2, 3, 4)


@check
def gradient(case: Case) -> None:
    retained = []
    for _ in range(4):
        case.differentiate()
        assert case.weight.grad is not None
        retained.append(case.weight.grad * 1.0)
    expect(retained, 1, 2, 3, 4)


@check
def gradient_as_array(case: Case) -> None:
    retained = []
    for _ in range(4):
        case.differentiate()
        assert case.weight.grad is not None
        retained.append(case.weight.grad.numpy())
    expect(retained, 1, 2, 3, 4)


@check
def gradient_seen_through_a_view(case: Case) -> None:
    case.differentiate()
    assert case.weight.grad is not None
    retained, copied = case.weight.grad.reshape(2, -1), case.weight.grad.reshape(2, -1).clone()
    for _ in range(REPLAYS):
        case.differentiate()
    expect([retained, copied], 1 + REPLAYS, 1)  # a view shows the present value


@check
def gradient_beside_results(case: Case) -> None:
    losses = []
    for _ in range(4):
        losses.append(case.differentiate())
        assert case.weight.grad is not None
    expect([*losses, case.weight.grad], 0, 0, 0, 0, 4)


@check
def gradient_put_aside(case: Case) -> None:
    case.differentiate()
    retained, case.weight.grad = case.weight.grad, None
    assert retained is not None
    kept = retained.clone()
    case.differentiate()
    expect(kept, 1)
