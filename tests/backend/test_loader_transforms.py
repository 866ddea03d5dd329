"""Augmentation on the device beside NumPy's and torch's closed forms for the same parameters, eager and compiled."""

import colorsys
import math

import numpy as np
import pytest
import torch

import weft
import weft.data as data
from weft.data import transforms as T
from weft.data.seeds import drawing_from
from weft.data.transforms import values

IMAGES = np.random.default_rng(0).random((6, 3, 7, 9), dtype=np.float32)
LABELS = np.arange(6)


def drawn(transform, x):
    """Parameters for a batch, from a generator of their own, as tensors."""
    with drawing_from(weft.Generator(2)):
        return transform.draw(x)


def arrays(parameters):
    return [one.numpy() for one in parameters]


def check(transform, expected, images=IMAGES, atol=1e-6):
    """A transform beside `expected(image, *parameters of that image)`, eagerly and compiled."""
    x = weft.tensor(images)
    parameters = drawn(transform, x)
    rows = [expected(image, *one) for image, *one in zip(images, *arrays(parameters), strict=True)]
    found = transform.apply(x, *parameters)
    assert found.dtype == x.dtype
    np.testing.assert_allclose(found.numpy(), np.stack(rows), atol=atol, rtol=0)
    with drawing_from(weft.Generator(2)):
        eager = transform(x).numpy()
    generator = weft.Generator(2)

    @weft.compile
    def step(x):
        with drawing_from(generator):
            return transform(x)

    np.testing.assert_array_equal(step(x).numpy(), eager)
    np.testing.assert_array_equal(eager, found.numpy())
    return arrays(parameters)


def test_flips(on_each_device):
    (flags,) = check(T.RandomHorizontalFlip(), lambda image, flip: image[:, :, ::-1] if flip else image)
    assert 0 < flags.sum() < len(flags)
    check(T.RandomVerticalFlip(), lambda image, flip: image[:, ::-1] if flip else image)
    x = weft.tensor((IMAGES * 255).astype(np.uint8))
    assert (T.RandomHorizontalFlip(1.0)(x).numpy() == x.numpy()[..., ::-1]).all()
    assert (T.RandomHorizontalFlip(0.0)(x).numpy() == x.numpy()).all()


@pytest.mark.parametrize("padding", [0, 2])
def test_crops(on_each_device, padding):
    crop = T.RandomCrop((4, 5), padding, 0.5)

    def expected(image, top, left):
        wide = np.pad(image, ((0, 0), (padding, padding), (padding, padding)), constant_values=0.5)
        return wide[:, top : top + 4, left : left + 5]

    top, left = check(crop, expected, atol=0)
    assert len(set(top)) > 1 and len(set(left)) > 1
    check(T.CenterCrop((3, 4)), lambda image: image[:, 2:5, 2:6], atol=0)
    whole = weft.tensor((IMAGES * 255).astype(np.uint8))
    assert T.RandomCrop((7, 9))(whole).tolist() == whole.tolist()  # the only place


def affine(image, degrees, right, down, scale, shear):
    """The same in torch, from the inverse of the map in homogeneous pixel coordinates, float64."""
    height, width = image.shape[1:]
    a, s = math.radians(float(degrees)), math.radians(float(shear))
    rotation = np.array([[math.cos(a), math.sin(a), 0], [-math.sin(a), math.cos(a), 0], [0, 0, 1]])
    slant = np.array([[1, math.tan(s), 0], [0, 1, 0], [0, 0, 1]])
    size = np.diag([float(scale), float(scale), 1])
    move = np.array([[1, 0, right * width], [0, 1, down * height], [0, 0, 1]], np.float64)
    to_pixels = np.diag([width / 2, height / 2, 1])
    back = np.linalg.inv(to_pixels) @ np.linalg.inv(move @ rotation @ size @ slant) @ to_pixels
    theta = torch.tensor(back[None, :2])
    grid = torch.nn.functional.affine_grid(theta, (1, *image.shape), align_corners=False)
    source = torch.tensor(image[None], dtype=torch.float64)
    return torch.nn.functional.grid_sample(source, grid, align_corners=False)[0].numpy()


@pytest.mark.parametrize(
    "transform",
    [
        T.RandomRotation(30),
        T.RandomScale((0.5, 1.5)),
        T.RandomAffine(translate=(0.2, 0.4)),
        T.RandomAffine(shear=20),
        T.RandomAffine(45, 0.1, (0.7, 1.3), (-10, 30)),
    ],
)
def test_affine_maps_are_torchs(on_each_device, transform):
    check(transform, affine, atol=2e-5)


def test_a_quarter_turn_is_exact(on_each_device):
    square = weft.tensor(IMAGES[:, :, :, :7])
    turned = T.RandomRotation((90, 90))(square).numpy()
    np.testing.assert_allclose(turned, np.rot90(IMAGES[:, :, :, :7], axes=(2, 3)), atol=1e-5)  # counter-clockwise


def blend(image, other, factor):
    return np.clip(image * factor + other * (1 - factor), 0, 1)


def gray(image):
    return np.tensordot(np.float64(values.GRAY), image, 1)[None]


def rotate_hue(image, shift):
    result = np.empty_like(image)
    for row in range(image.shape[1]):
        for column in range(image.shape[2]):
            hue, saturation, value = colorsys.rgb_to_hsv(*image[:, row, column].tolist())
            result[:, row, column] = colorsys.hsv_to_rgb((hue + float(shift)) % 1.0, saturation, value)
    return result


def test_colors(on_each_device):
    check(T.RandomBrightness(0.6), lambda image, factor: blend(image, 0.0, factor))
    check(T.RandomContrast((0.2, 1.9)), lambda image, factor: blend(image, gray(image).mean(), factor))
    check(T.RandomSaturation(0.9), lambda image, factor: blend(image, gray(image), factor))
    images = IMAGES.copy()
    images[0, :, 0] = 0.25  # gray, black and white
    images[0, :, 1], images[0, :, 2] = 0.0, 1.0
    check(T.RandomHue(0.5), rotate_hue, images, atol=5e-6)
    single = IMAGES[:, :1]
    check(T.RandomContrast(0.5), lambda image, factor: blend(image, image.mean(), factor), single)


def test_noise_and_normalization(on_each_device):
    check(T.GaussianNoise(0.3), lambda image, noise: image + np.float32(0.3) * noise)
    mean, std = np.float32([0.1, 0.5, 0.9]), np.float32([0.5, 1.0, 2.0])
    expected = (IMAGES - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(T.Normalize(mean.tolist(), std.tolist())(weft.tensor(IMAGES)).numpy(), expected, 1e-6)
    np.testing.assert_allclose(T.Normalize(0.5, 2.0)(weft.tensor(IMAGES)).numpy(), (IMAGES - 0.5) / 2, 1e-6)


def test_cutout(on_each_device):
    def expected(image, row, column):
        result = image.copy()
        result[:, max(row - 2, 0) : row + 2, max(column - 1, 0) : column + 2] = 0.25
        return result

    check(T.Cutout((4, 3), 0.25), expected, atol=0)


@pytest.mark.parametrize("alpha", [0.2, 1.0, 4.0])
def test_mixup(on_each_device, alpha):
    mixup, x, y = T.Mixup(alpha, classes=6), weft.tensor(IMAGES), weft.tensor(LABELS)
    parameters = drawn(mixup, x)
    share, partner = arrays(parameters)
    assert (0 <= share).all() and (share <= 1).all() and sorted(partner) == [*range(6)]
    images, labels = (one.numpy() for one in mixup.mix(x, y, *parameters))
    part = share[:, None, None, None]
    np.testing.assert_allclose(images, part * IMAGES + (1 - part) * IMAGES[partner], atol=1e-6)
    hot = np.eye(6, dtype=np.float32)
    np.testing.assert_allclose(labels, share[:, None] * hot + (1 - share[:, None]) * hot[partner], atol=1e-6)


def test_cutmix(on_each_device):
    cutmix, x, y = T.CutMix(1.0, classes=6), weft.tensor(IMAGES), weft.tensor(LABELS)
    parameters = drawn(cutmix, x)
    images, labels = (one.numpy() for one in cutmix.mix(x, y, *parameters))
    for k, (share, partner, row, column) in enumerate(zip(*arrays(parameters), strict=True)):
        side = math.sqrt(1 - float(share))
        rows, columns = int(side * 7) // 2, int(side * 9) // 2
        expected = IMAGES[k].copy()
        box = np.s_[:, max(row - rows, 0) : row + rows, max(column - columns, 0) : column + columns]
        expected[box] = IMAGES[partner][box]
        area = expected[box][0].size / 63
        np.testing.assert_array_equal(images[k], expected)
        hot = np.eye(6)
        np.testing.assert_allclose(labels[k], (1 - area) * hot[k] + area * hot[partner], atol=1e-6)
    assert len(cutmix(x, y, y)) == 3


@pytest.mark.parametrize("alpha", [0.2, 0.5, 2.0])
def test_shares_follow_the_beta_distribution(on_each_device, alpha):
    x = weft.zeros(20_000, 1)
    with drawing_from(weft.Generator(1)):
        found = T.draw_beta(x, alpha).numpy().astype(np.float64)
    exact = torch.distributions.Beta(alpha, alpha)
    assert abs(found.mean() - 0.5) < 0.01 and abs(found.var() - float(exact.variance)) < 0.01
    rng = np.random.default_rng(0).beta(alpha, alpha, 20_000)
    ends = np.linspace(0.025, 0.975, 39)
    distance = np.abs(np.searchsorted(np.sort(found), ends) - np.searchsorted(np.sort(rng), ends)).max() / 20_000
    assert distance < 0.02  # Kolmogorov and Smirnov: 0.019 at 99.9 % for two samples of 20,000


ALL = [
    T.RandomHorizontalFlip(), T.RandomVerticalFlip(), T.RandomCrop(2, padding=1), T.CenterCrop(1), T.RandomRotation(30),
    T.RandomScale((0.8, 1.2)), T.RandomAffine(10, 0.1, (0.9, 1.1), 5), T.GaussianNoise(0.1), T.RandomBrightness(0.5),
    T.RandomContrast(0.5), T.RandomSaturation(0.5), T.RandomHue(0.2), T.Cutout(2, 0.5), T.Normalize(0.5, 0.5),
    T.Mixup(0.4, classes=6), T.CutMix(0.4, classes=6),
]  # fmt: skip


@pytest.mark.parametrize("transform", ALL, ids=lambda one: type(one).__name__)
def test_dtypes_and_sizes(on_each_device, transform):
    rng = np.random.default_rng(0)
    for shape in ((1, 3, 1, 1), (6, 3, 2, 9)):
        exact = rng.integers(0, 9, shape).astype(np.float64) / 8
        labels = weft.arange(shape[0])
        for dtype, atol in ((weft.float64, 1e-6), (weft.float32, 1e-5), (weft.float16, 6e-3), (weft.bfloat16, 5e-2)):
            x = weft.tensor(exact).to(dtype)
            noise = isinstance(transform, T.GaussianNoise)
            with drawing_from(weft.Generator(2)):
                parameters = transform.draw(weft.tensor(exact).to(weft.float32))
            if isinstance(transform, (T.Mixup, T.CutMix)):
                found, expected = (transform.mix(one, labels, *parameters)[0] for one in (x, weft.tensor(exact)))
            else:
                parameters = [parameters[0].to(dtype)] if noise else parameters
                wide = [one.to(weft.float64) for one in parameters] if noise else parameters
                found, expected = transform.apply(x, *parameters), transform.apply(weft.tensor(exact), *wide)
            assert found.dtype == dtype and found.shape == expected.shape
            np.testing.assert_allclose(found.to(weft.float64).numpy(), expected.numpy(), atol=atol)


def test_a_whole_pipeline_in_the_plan(on_each_device):
    images = weft.tensor((IMAGES * 255).astype(np.uint8))
    pipeline = T.Compose(
        T.ToFloat(), T.RandomCrop(6, padding=1), T.RandomHorizontalFlip(), T.RandomAffine(10, 0.1, (0.9, 1.1)),
        T.RandomBrightness(0.2), T.RandomHue(0.1), T.GaussianNoise(0.01), T.Cutout(2),
        T.Normalize((0.5, 0.5, 0.5), (0.2, 0.2, 0.2)), T.Mixup(0.3, classes=6),
    )  # fmt: skip
    loader = data.DataLoader(
        data.TensorDataset(images, weft.tensor(LABELS)), 3, shuffle=True, seed=0, device=on_each_device,
        transform=pipeline,
    )  # fmt: skip
    resident = loader.resident()
    step = weft.compile(lambda: resident.next())
    for _ in range(2):
        resident.start_epoch(0)
        first = [step() for _ in range(2)]
    before = weft.counters()
    resident.start_epoch(0)
    again = [step() for _ in range(2)]
    after = weft.counters()
    assert [after[one] - before[one] for one in ("uploads", "downloads", "traces")] == [0, 0, 0]
    for one, other in zip(first, again, strict=True):
        assert one[0].shape == (3, 3, 6, 6) and one[1].shape == (3, 6)
        np.testing.assert_array_equal(one[0].numpy(), other[0].numpy())
    assert not np.array_equal(first[0][0].numpy(), first[1][0].numpy())


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda x: T.RandomCrop(20)(x), "a window that fits"),
        (lambda x: T.RandomCrop(0)(x), "size=0"),
        (lambda x: T.RandomHorizontalFlip(2.0)(x), "p=2.0"),
        (lambda x: T.RandomHorizontalFlip()(x[0]), r"\[samples, channels, height, width\]"),
        (lambda x: T.GaussianNoise(1.0)(x.to(weft.uint8)), r"Fix: put ToFloat\(\) before it"),
        (lambda x: T.Normalize((0.5,), (0.5,))(x), "1 numbers for 3 channels"),
        (lambda x: T.Normalize(0.5, 0.0)(x), "std=0.0"),
        (lambda x: T.RandomHue(0.7)(x), "amount=0.7"),
        (lambda x: T.RandomHue(0.1)(x[:, :1]), "1 channels"),
        (lambda x: T.Mixup()(x), "without labels"),
        (lambda x: T.Mixup()(x, weft.arange(6)), "classes="),
        (lambda x: T.Mixup(0.0), "alpha=0.0"),
        (lambda x: T.CenterCrop(20)(x), "at least"),
    ],
)
def test_wrong_use(call, match):
    with pytest.raises(weft.WeftError, match=match):
        call(weft.tensor(IMAGES))
