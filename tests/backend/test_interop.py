"""Values in and out without copies: NumPy and DLPack, their lifetimes, and the memory that must not be shared."""

import gc
import sys
import weakref

import numpy as np
import pytest
import torch

import weft
from weft.base.dtypes import ALL

DTYPES = [dtype.name for dtype in ALL]
pytestmark = [pytest.mark.usefixtures("on_each_device"), pytest.mark.cpu_only]  # memory that the host sees


def address(x):
    """Where the first element of an array, a torch tensor or a computed Weft tensor lies."""
    if isinstance(x, weft.Tensor):
        weft.eval(x)
        return x.node.buffer.pointer
    return x.data_ptr() if isinstance(x, torch.Tensor) else x.__array_interface__["data"][0]


def values(dtype, *shape):
    """An array of small whole numbers in a dtype of Weft, which may be bfloat16."""
    count = int(np.prod(shape))
    return (np.arange(count) % 5).reshape(shape).astype(weft.base.dtypes.by_name(dtype).numpy)


def computed(x):
    weft.eval(x)
    return x


# ---- NumPy in --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("make", [weft.from_numpy, weft.asarray])
def test_arrays_are_shared(dtype, make):
    array = values(dtype, 40, 30)
    before = weft.counters()
    x = make(array)
    assert address(x) == address(array) and x.shape == (40, 30) and x.dtype.name == dtype
    assert weft.counters()["uploads"] == before["uploads"]
    np.testing.assert_array_equal(x.numpy().astype(np.float64), array.astype(np.float64))
    assert np.shares_memory(x.numpy(), array)


def test_tensor_copies():
    array = np.ones(1000, np.float32)
    x = weft.tensor(array)
    array[:] = 2
    assert x.sum().item() == 1000


@pytest.mark.parametrize(
    "array",
    [
        np.arange(60.0).reshape(6, 10).T,
        np.arange(60.0)[::2],
        np.arange(60.0)[::-1],
        np.broadcast_to(np.ones(3), (4, 3)),
    ],
    ids=["transposed", "strided", "reversed", "broadcast"],
)
def test_what_is_not_contiguous_is_copied(array):
    x = weft.from_numpy(array)
    np.testing.assert_array_equal(x.numpy(), array)
    assert address(x) != address(array)
    np.testing.assert_array_equal(weft.from_dlpack(array.copy()[..., ::-1]).numpy(), array[..., ::-1])
    with pytest.raises(weft.CopyError, match="asarray: given an array that is not contiguous, and copy=False"):
        weft.asarray(array, copy=False)
    with pytest.raises(weft.CopyError, match="from_dlpack: given an array that is not contiguous"):
        weft.from_dlpack(np.arange(60.0)[::2], copy=False)


def test_misaligned_arrays_are_copied():
    raw = np.zeros(41, np.uint8)
    array = raw[1:].view(np.float32)
    array[:] = np.arange(10)
    x = weft.from_numpy(array)
    assert address(x) % 4 == 0 and x.tolist() == list(range(10))


def test_arrays_that_begin_anywhere():
    """Kernels ask for no more than an element's own alignment."""
    raw = np.arange(3 * 777, dtype=np.float32)
    for start in range(1, 9):
        array = raw[start : start + 3 * 500].reshape(3, 500)
        x = weft.asarray(array, copy=False)
        np.testing.assert_array_equal(
            (x * 2 + x.sum(-1, keepdim=True)).numpy(), array * 2 + array.sum(-1, keepdims=True)
        )
        np.testing.assert_allclose((x @ x.T).numpy(), array.astype(np.float64) @ array.T, rtol=1e-4)


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 2, 2), ()])
def test_empty_and_scalar_arrays(shape):
    array = np.zeros(shape, np.int32)
    for x in (weft.from_numpy(array), weft.asarray(array, copy=False), weft.from_dlpack(array), weft.asarray(array)):
        assert x.shape == shape and x.dtype is weft.int32
        assert x.numpy().shape == shape and np.asarray(x).shape == shape
        assert torch.from_dlpack(x).shape == shape and np.from_dlpack(x).shape == shape


def test_read_only_arrays_are_shared():
    array = np.arange(1000.0)
    array.flags.writeable = False
    assert address(weft.from_numpy(array)) == address(array)
    assert address(weft.from_dlpack(array)) == address(array)


def test_the_array_lives_as_long_as_the_tensor():
    array = np.arange(5000.0)
    gone = weakref.ref(array)
    x = weft.from_numpy(array)
    part = x[10:20]
    del array
    gc.collect()
    assert gone() is not None
    del x
    assert part.tolist() == list(range(10, 20))
    result = (part + 1).numpy()
    del part
    gc.collect()
    assert gone() is None and result[0] == 11


def test_shared_memory_is_never_written():
    """Assigning to the tensor, eagerly or in a compiled function, leaves the array alone."""
    array = np.ones(1000, np.float32)
    x = weft.from_numpy(array)
    x += 1
    x[3] = 7
    weft.eval(x)
    y = weft.from_numpy(array)

    @weft.compile
    def step(z):
        y.add_(z)
        return y.sum()

    z = weft.from_numpy(array)
    assert [step(z).item() for _ in range(3)] == [2000.0, 3000.0, 4000.0]
    assert (array == 1).all() and y.numpy()[0] == 4


def test_asarray_of_other_things():
    x = weft.ones(3)
    assert weft.asarray(x).tolist() == x.tolist()
    assert weft.asarray([1.5, 2.5]).dtype is weft.float32
    assert weft.asarray(np.float64(2.0)).dtype is weft.float64
    assert weft.asarray(np.ones(3), weft.float32).dtype is weft.float32
    assert weft.asarray(torch.ones(3, dtype=torch.int16)).dtype is weft.int16
    assert address(weft.asarray(np.ones(500), copy=True)) != address(weft.asarray(np.ones(500)))
    for call in (lambda: weft.asarray([1, 2], copy=False), lambda: weft.asarray(np.ones(3), weft.float32, copy=False)):
        with pytest.raises(weft.CopyError, match="copy=False"):
            call()
    with pytest.raises(ValueError):
        weft.asarray(3.0, copy=False)
    assert weft.asarray(x, device="reference").device.name == "reference"


def test_what_is_no_array():
    with pytest.raises(weft.DTypeError, match="from_numpy: given a list"):
        weft.from_numpy([1, 2])
    with pytest.raises(weft.DTypeError, match="from_dlpack: given a list"):
        weft.from_dlpack([1, 2])
    with pytest.raises(weft.DTypeError, match="complex64"):
        weft.from_numpy(np.zeros(2, np.complex64))
    with pytest.raises(weft.DTypeError, match=r"complex64|DLPack's dtype code 5"):
        weft.from_dlpack(torch.zeros(2, dtype=torch.complex64))
    with pytest.raises(weft.DTypeError, match="DLPack's dtype code"):
        weft.from_dlpack(torch.zeros(2, dtype=torch.float8_e4m3fn))


# ---- NumPy out -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
def test_reading_shares_memory(dtype):
    x = computed(weft.tensor(values(dtype, 70, 30)).reshape(30, 70))
    for array in (x.numpy(), np.asarray(x), np.asarray(x, copy=False)):
        assert address(array) == address(x) and array.shape == (30, 70) and array.dtype == x.dtype.numpy
        assert not array.flags.writeable
    copied = np.array(x)
    assert address(copied) != address(x) and copied.flags.writeable
    np.testing.assert_array_equal(copied, x.numpy())


def test_what_numpy_returns_cannot_be_written():
    for size in (3, 3000):
        array = weft.ones(size).numpy()
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 5
        array.copy()[0] = 5


def test_dtype_on_the_way():
    x = computed(weft.arange(3000.0))
    assert np.asarray(x, dtype=np.float64).dtype == np.float64
    assert address(np.asarray(x, dtype=np.float32)) == address(x)
    with pytest.raises(ValueError, match="copy=False"):
        np.asarray(x, dtype=np.float64, copy=False)


def test_an_array_outlives_its_tensor():
    x = computed(weft.arange(100_000))
    array = x.numpy()
    del x
    gc.collect()
    others = [computed(weft.zeros(100_000, dtype=weft.int64)) for _ in range(4)]
    np.testing.assert_array_equal(array, np.arange(100_000))
    assert len(others) == 4


def test_results_of_replays_keep_their_values():
    """A compiled function writes its results to the same memory only while nobody looks at it."""
    step = weft.compile(lambda x: x * 2)
    arrays = [step(weft.full((5000,), float(k))).numpy() for k in range(5)]
    assert [array[0] for array in arrays] == [0, 2, 4, 6, 8] and [array[-1] for array in arrays] == [0, 2, 4, 6, 8]
    capsules = [np.from_dlpack(step(weft.full((5000,), float(k)))) for k in range(5)]
    assert [array[0] for array in capsules] == [0, 2, 4, 6, 8]
    tensors = [torch.from_dlpack(step(weft.full((5000,), float(k)))) for k in range(5)]
    assert [tensor[0].item() for tensor in tensors] == [0, 2, 4, 6, 8]


def test_cells_that_are_written_in_place_are_copied():
    weight = weft.tensor(np.zeros(5000, np.float32))
    other = weft.tensor(np.ones(5000, np.float32))

    @weft.compile
    def step(x):
        weight.add_(x * other)
        return weight.sum()

    before = weight.numpy()
    step(weft.ones(5000))
    arrays = []
    for _ in range(3):
        arrays.append((weight.numpy(), np.asarray(weight), np.from_dlpack(weight), torch.from_dlpack(weight)))
        step(weft.ones(5000))
    assert before[0] == 0
    assert [[float(array[7]) for array in row] for row in arrays] == [[1.0] * 4, [2.0] * 4, [3.0] * 4]
    with pytest.raises(weft.CopyError, match="a compiled function writes in place"):
        np.asarray(weight, copy=False)
    assert other.numpy()[0] == 1


def test_parameters_shared_before_a_step_keep_their_values():
    weight = weft.tensor(np.ones(5000, np.float32), requires_grad=True)
    optimizer = weft.optim.SGD([weight], lr=0.1)
    before = weight.numpy()
    for _ in range(2):
        (weight * 2).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    assert before[0] == 1 and weight.numpy()[0] == np.float32(1 - 0.4)


def test_no_leak():
    x = computed(weft.ones(5000))
    slab = x.node.buffer.slab
    before = sys.getrefcount(slab)
    for _ in range(10):
        x.numpy(), np.from_dlpack(x), torch.from_dlpack(x)
    gc.collect()
    assert sys.getrefcount(slab) == before


# ---- DLPack ----------------------------------------------------------------------------------------------------------

TORCH = {name: getattr(torch, name) for name in DTYPES}


@pytest.mark.parametrize("dtype", DTYPES)
def test_torch_and_back(dtype):
    given = torch.arange(600).reshape(20, 30).remainder(5).to(TORCH[dtype])
    x = weft.from_dlpack(given)
    assert address(x) == address(given) and x.dtype.name == dtype and x.shape == (20, 30)
    assert x.tolist() == given.tolist()
    back = torch.from_dlpack(x)
    assert address(back) == address(given) and back.dtype is given.dtype and torch.equal(back, given)
    made = computed(weft.tensor(values(dtype, 20, 30)) + weft.zeros(20, 30, dtype=x.dtype))
    shared = torch.from_dlpack(made)
    assert address(shared) == address(made) and shared.dtype is given.dtype and shared.tolist() == made.tolist()


@pytest.mark.parametrize("dtype", [name for name in DTYPES if name != "bfloat16"])
def test_numpy_by_dlpack(dtype):
    x = computed(weft.tensor(values(dtype, 400, 3)))
    array = np.from_dlpack(x)
    assert address(array) == address(x) and not array.flags.writeable
    np.testing.assert_array_equal(array, x.numpy(), strict=True)


def test_lifetime_through_torch():
    given = torch.arange(5000.0)
    x = weft.from_dlpack(given)
    pointer = address(given)
    del given
    gc.collect()
    churn = [torch.zeros(5000) for _ in range(4)]
    assert address(x) == pointer and x[4999].item() == 4999 and len(churn) == 4
    back = torch.from_dlpack(x)
    del x
    gc.collect()
    assert back[4999].item() == 4999
    own = torch.from_dlpack(computed(weft.arange(5000)))
    gc.collect()
    filled = [computed(weft.zeros(5000, dtype=weft.int64)) for _ in range(4)]
    assert own[-1].item() == 4999 and len(filled) == 4


def test_strided_torch_tensors_are_copied():
    given = torch.arange(12.0).reshape(3, 4).t()
    x = weft.from_dlpack(given)
    assert x.tolist() == given.tolist() and address(x) != address(given)
    contiguous = torch.arange(500.0)
    assert address(weft.from_dlpack(contiguous, copy=True)) != address(contiguous)


def test_readers_from_before_version_one_get_a_copy():
    x = computed(weft.arange(1000.0))

    class Old:
        def __dlpack__(self):
            return x.__dlpack__()

        def __dlpack_device__(self):
            return x.__dlpack_device__()

    y = weft.from_dlpack(Old())  # reads a capsule without a version, too
    assert y.tolist() == x.tolist() and address(y) != address(x)
    with pytest.raises(weft.CopyError, match="knows no read-only memory"):
        x.__dlpack__(copy=False)
    assert address(np.from_dlpack(x, copy=True)) != address(x)


def test_devices():
    x = weft.ones(3)
    assert x.__dlpack_device__() == (1, 0)
    with pytest.raises(weft.DeviceError, match=r"__dlpack__: given device \(2, 0\)"):
        x.__dlpack__(max_version=(1, 0), dl_device=(2, 0))
    elsewhere = weft.ones(3, device="null")
    for read in (elsewhere.__dlpack_device__, elsewhere.__dlpack__, lambda: np.from_dlpack(elsewhere)):
        with pytest.raises(weft.DeviceError, match="__dlpack__: given a tensor on null"):
            read()

    class Elsewhere:
        def __dlpack__(self, **_):
            raise AssertionError("must not be asked")

        def __dlpack_device__(self):
            return 2, 0

    with pytest.raises(weft.DeviceError, match="from_dlpack: given memory of device type 2"):
        weft.from_dlpack(Elsewhere())


def test_gradients_stay_behind():
    x = weft.ones(3, requires_grad=True)
    assert not weft.from_dlpack(x).requires_grad and torch.from_dlpack(x * 2).tolist() == [2, 2, 2]
    with pytest.raises(BufferError):
        weft.from_dlpack(torch.ones(3, requires_grad=True))


def test_inside_compile_values_are_not_known():
    for read in (np.asarray, np.from_dlpack, lambda x: x.numpy()):
        with pytest.raises(weft.GraphError, match=r"inside weft\.compile"):
            weft.compile(lambda x, read=read: x + read(x))(weft.ones(2))


@pytest.mark.parametrize("device", ["reference"])
def test_other_devices_of_the_host(device):
    with weft.device(device):
        array = np.arange(1000.0)
        x = weft.from_numpy(array)
        assert np.shares_memory(x.numpy(), array) and not x.numpy().flags.writeable
        assert (x + 1).numpy()[-1] == 1000
        assert torch.from_dlpack(x).data_ptr() == address(array)
