"""Records of windows: pooling, padding, interpolation, sampling."""

import math

import weft
import weft.nn.functional as F
from tests.records.oracle import TF, torch
from tests.records.record import FLOATS, NARROW, NUMBERS, Record, T, sample

INF, NAN = math.inf, math.nan
TIES = [[[1.0, 1.0, 2.0, 2.0], [1.0, 1.0, 2.0, 0.0], [-INF, -INF, NAN, 1.0], [-INF, -INF, NAN, NAN]]]


def shape(rank, *, batch=2, channels=3, extent=7):
    """[batch, channels, ...] with extents that differ from axis to axis."""
    return (batch, channels, *[extent - axis for axis in range(rank)])


def refused(name, *args):
    call = getattr(F, name)
    rank = int(name[-2])
    return [
        (lambda: call(weft.ones(5), *args, 2), weft.ShapeError, rf"{name}: given shape \(5,\)"),
        (lambda: call(weft.ones(*shape(rank)), *args, 99), weft.ShapeError, "at least one window along every axis"),
        (lambda: call(weft.ones(*shape(rank)), *args, 0), weft.RangeError, "kernel_size=0"),
        (lambda: call(weft.ones(*shape(rank)), *args, 2, 0), weft.RangeError, "stride=0"),
        (lambda: call(weft.ones(*shape(rank)), *args, (1, 2, 3, 4)), weft.RangeError, r"kernel_size=\(1, 2, 3, 4\)"),
    ]


def max_pool(rank):
    name = f"max_pool{rank}d"
    plain = T(shape(rank))
    samples = [
        sample(T((1, 1, *[4, 4, 3][:rank])), 2),
        sample(T((2, *[5, 4, 3][:rank])), 2, 1),
        sample(plain, 3, 2, 1),
        sample(plain, 2, ceil_mode=True),
        sample(plain, 3, 1, 1, 2),
        sample(plain, 3, 3, 1, ceil_mode=True),
        sample(plain, 5, 1, 2),
        sample(T(shape(rank, batch=0)), 2),
        sample(T(shape(rank), layout="transposed"), [2, 3, 1][:rank], [1, 2, 2][:rank]),
        sample(T(shape(rank, extent=40)[: rank + 2]), 2) if rank < 3 else sample(plain, 1),
    ]
    if rank == 2:
        samples += [sample(T(values=TIES), 2), sample(T(values=TIES), 3, 1, 1), sample(T(values=TIES), 2, 1, 1, 2)]
    errors = refused(name)
    errors.append((lambda: getattr(F, name)(weft.ones(*shape(rank)), 2, 2, 2), weft.ShapeError, "at most half of it"))
    return [
        Record(name, getattr(F, name), getattr(TF, name), samples, NUMBERS if rank == 2 else FLOATS, errors=errors),
        Record(
            f"{name}_with_indices",
            getattr(F, f"{name}_with_indices"),
            lambda *args: getattr(TF, name)(*args, return_indices=True),
            [sample(plain, 2), sample(plain, 3, 2, 1), sample(plain, 5, 2, 2), sample(plain, 3, 1, 0, 2, True)],
        ),
    ]


def avg_pool(rank):
    name = f"avg_pool{rank}d"
    plain = T(shape(rank))
    samples = [
        sample(T((1, 1, *[4, 4, 3][:rank])), 2),
        sample(T((2, *[5, 4, 3][:rank])), 2, 1),
        sample(plain, 3, 2, 1),
        sample(plain, 3, 2, 1, count_include_pad=False),
        sample(plain, 2, ceil_mode=True),
        sample(plain, 3, 2, 1, ceil_mode=True),
        sample(plain, 3, 2, 1, ceil_mode=True, count_include_pad=False),
        sample(plain, 5, 1, 2),
        sample(T(shape(rank, batch=0)), 2),
        sample(T(shape(rank), layout="transposed"), [2, 3, 1][:rank], [1, 2, 2][:rank]),
    ]
    if rank > 1:
        samples.append(sample(plain, 2, divisor_override=3))
    without = NARROW if rank == 3 else ()  # torch has none
    return Record(name, getattr(F, name), getattr(TF, name), samples, errors=refused(name), without=without)


def lp_pool(rank):
    name = f"lp_pool{rank}d"
    samples = [
        sample(T((1, 1, *[4, 4, 3][:rank]), 0.5, 2.0), 2, 2),
        sample(T(shape(rank), 0.5, 2.0), 3, 3, 2),
        sample(T(shape(rank), 0.5, 2.0), 1.5, 2, 1, True),
    ]
    return Record(name, getattr(F, name), getattr(TF, name), samples, errors=refused(name, 2), without=NARROW)


def adaptive(kind, rank):
    name = f"adaptive_{kind}_pool{rank}d"
    call, theirs = getattr(F, name), getattr(TF, name)
    samples = [
        sample(T((1, 2, *[5, 4, 3][:rank])), 2),
        sample(T(shape(rank)), 1),
        sample(T(shape(rank)), [3, 2, 5][:rank]),
        sample(T(shape(rank)[1:]), 3),
        sample(T(shape(rank)), [9, 4, 2][:rank]),
        sample(T(shape(rank, batch=0)), 2),
    ]
    if rank > 1:
        samples.append(sample(T(shape(rank)), (None, 2, 2)[:rank]))
    errors = [
        (lambda: call(weft.ones(5), 2), weft.ShapeError, rf"{name}: given shape \(5,\)"),
        (lambda: call(weft.ones(*shape(rank)), 0), weft.ShapeError, "output_size=0"),
        (lambda: call(weft.ones(*shape(rank)), (1,) * (rank + 1)), weft.ShapeError, "a count for each"),
    ]
    records = [Record(name, call, theirs, samples, errors=errors, without=NARROW)]
    if kind == "max":
        records.append(
            Record(
                f"{name}_with_indices",
                getattr(F, f"{name}_with_indices"),
                lambda *args: theirs(*args, return_indices=True),
                [sample(T(shape(rank)), 2), sample(T(shape(rank)), [3, 5, 4][:rank])],
                without=NARROW,
            )
        )
    return records


def unpooled(rank):
    name, pool = f"max_unpool{rank}d", f"max_pool{rank}d"

    def both(functional):
        def call(x, *args, output_size=None):
            values, indices = getattr(functional, pool)(x, *args, return_indices=True)
            return getattr(functional, name)(values, indices, *args, output_size=output_size)

        return call

    small = (1, 2, *[4, 4, 2][:rank])
    samples = [sample(T(small), 2), sample(T((3, *[7, 4, 7][:rank])), 3, 3, 1)]
    samples.append(sample(T((2, 3, *[7, 5, 5][:rank])), 2, output_size=[7, 5, 5][:rank]))
    call = getattr(F, name)
    ones, places = weft.ones(*small), weft.zeros(*small, dtype=weft.int64)
    errors = [
        (lambda: call(ones, places.float(), 2), weft.DTypeError, f"{name}: given a float32 tensor"),
        (lambda: call(ones, places[:, :1], 2), weft.ShapeError, "two equal ones"),
        (lambda: call(ones, places, 2, output_size=[99] * rank), weft.ShapeError, "less than a stride"),
    ]
    return Record(name, both(F), both(TF), samples, errors=errors, without=NARROW)


def interpolated(mode, rank, **options):
    small, plain = T((1, 1, *[5, 4, 2][:rank])), T(shape(rank, extent=6))
    samples = [
        sample(small, [7, 3, 4][:rank], mode=mode, **options),
        sample(plain, scale_factor=2, mode=mode, **options),
        sample(plain, scale_factor=[1.7, 0.6, 1.3][:rank], mode=mode, **options),
        sample(plain, scale_factor=0.5, mode=mode, **options),
        sample(plain, [1, 9, 5][:rank], mode=mode, **options),
        sample(plain, scale_factor=1.6, mode=mode, recompute_scale_factor=True, **options),
        sample(plain, [6, 5, 4][:rank], mode=mode, **options),
        sample(T(shape(rank, extent=40 if rank < 3 else 9)), scale_factor=3, mode=mode, **options),
    ]
    label = f"interpolate_{mode}_{rank}d{'_aligned' if options.get('align_corners') else ''}"
    tolerance = {"float32": (1e-5, 1e-5), "float64": (1e-5, 1e-6) if "nearest" not in mode else (1e-10, 1e-12)}
    return Record(label, F.interpolate, TF.interpolate, samples, tolerance=tolerance, without=NARROW)


def gridded(mode, padding_mode, align_corners, rank=2):
    samples = [
        sample(T((1, 2, *[3, 4, 2][:rank])), T((1, *[2, 3, 2][:rank], rank), -1.6, 1.6)),
        sample(T((2, 3, *[5, 6, 4][:rank])), T((2, *[4, 3, 2][:rank], rank), -1.3, 1.3)),
        sample(T((1, 1, *[1, 1, 1][:rank])), T((1, *[2, 2, 2][:rank], rank), -0.9, 0.9)),
    ]

    def options(call):
        return lambda x, grid: call(x, grid, mode=mode, padding_mode=padding_mode, align_corners=align_corners)

    name = f"grid_sample_{rank}d_{mode}_{padding_mode}{'_aligned' if align_corners else ''}"
    tolerance = {"float32": (1e-4, 1e-5), "float64": (1e-9, 1e-11)}
    return Record(name, options(F.grid_sample), options(TF.grid_sample), samples, tolerance=tolerance, without=NARROW)


def deformed(x, offset, mask, weight):
    """A deformable convolution made of the columns."""
    n, places = x.shape[0], weight.shape[2] * weight.shape[3]
    columns = F.deform_unfold(x, offset, mask, weight.shape[2:], 2, 1)
    rows = columns.reshape(n, x.shape[1] * places, -1)
    return (weight.reshape(weight.shape[0], -1) @ rows).reshape(n, weight.shape[0], *columns.shape[3:])


def deformed_torch(x, offset, mask, weight):
    """The same with grid_sample, place by place."""
    _, c, h, w = x.shape
    kh, kw = weight.shape[2:]
    out = 0
    groups = offset.shape[1] // (2 * kh * kw)
    oh, ow = offset.shape[2:]
    for k in range(kh * kw):
        parts = []
        for g in range(groups):
            channels = x[:, g * (c // groups) : (g + 1) * (c // groups)]
            row = 2 * (g * kh * kw + k)
            ys = torch.arange(oh).view(1, oh, 1) * 2 - 1 + k // kw + offset[:, row]
            xs = torch.arange(ow).view(1, 1, ow) * 2 - 1 + k % kw + offset[:, row + 1]
            grid = torch.stack([(2 * xs + 1) / w - 1, (2 * ys + 1) / h - 1], -1).to(x.dtype)
            picked = TF.grid_sample(channels, grid, align_corners=False)
            parts.append(picked * mask[:, None, g * kh * kw + k])
        out = out + torch.einsum("nchw,oc->nohw", torch.cat(parts, 1), weight[:, :, k // kw, k % kw])
    return out


def padded(mode):
    samples = [
        sample(T((1, 2, 5)), (2, 1), mode),
        sample(T((2, 3, 4, 5)), (2, 1, 3, 0), mode),
        sample(T((3, 4, 5)), (1, 2, 2, 1), mode),
        sample(T((1, 2, 3, 4, 5)), (1, 2, 2, 1, 1, 1), mode),
        sample(T((1, 2, 5)), (2, 0), mode),
        sample(T((2, 33)), (3, 4), mode),
    ]
    if mode != "circular":
        samples.append(sample(T((1, 2, 5)), (2, -1), mode))
    most = {"reflect": 2, "circular": 3}.get(mode)
    errors = [(lambda: F.pad(weft.ones(2, 3), (1, 1, 1, 1, 1, 1), mode), weft.ShapeError, "pad: given")]
    errors.append((lambda: F.pad(weft.ones(2, 2, 2, 3), (1, 1), mode), weft.ShapeError, "all axes but one or two"))
    if most is not None:
        errors.append((lambda: F.pad(weft.ones(2, 3), (most + 1, 0), mode), weft.ShapeError, f"at most {most}"))
    return Record(f"pad_{mode}", F.pad, TF.pad, samples, FLOATS, errors=errors)


PATCHES = [
    sample(T((1, 2, 4, 5)), 2),
    sample(T((2, 3, 7, 6)), (3, 2), 1, 1, 2),
    sample(T((3, 7, 6)), 2, (2, 3), (1, 2), (1, 2)),
    sample(T((0, 3, 7, 6)), 2),
]
COLUMNS = [
    sample(T((1, 8, 6)), (3, 4), 2),
    sample(T((2, 12, 16)), (5, 5), 2),
    sample(T((1, 9, 9)), (5, 5), 3, padding=1, stride=2),
    sample(T((1, 4, 9)), (7, 7), 2, dilation=2, stride=2, padding=0),
    sample(T((8, 6)), (3, 4), 2),
]

RECORDS = [
    *[record for kind in ("avg", "max") for rank in (1, 2, 3) for record in adaptive(kind, rank)],
    *[unpooled(rank) for rank in (1, 2, 3)],
    *[interpolated("nearest", rank) for rank in (1, 2, 3)],
    *[interpolated("nearest-exact", rank) for rank in (1, 2, 3)],
    *[interpolated("area", rank) for rank in (1, 2, 3)],
    interpolated("linear", 1),
    interpolated("linear", 1, align_corners=True),
    interpolated("bilinear", 2),
    interpolated("bilinear", 2, align_corners=True),
    interpolated("bicubic", 2),
    interpolated("bicubic", 2, align_corners=True),
    interpolated("trilinear", 3),
    interpolated("trilinear", 3, align_corners=True),
    *[
        gridded("bilinear", padding_mode, align_corners)
        for padding_mode in ("zeros", "border", "reflection")
        for align_corners in (False, True)
    ],
    gridded("nearest", "zeros", False),
    gridded("nearest", "border", True),
    gridded("nearest", "reflection", False),
    gridded("bicubic", "zeros", True),
    gridded("bicubic", "border", False),
    gridded("bicubic", "reflection", False),
    gridded("bilinear", "zeros", False, rank=3),
    gridded("bilinear", "reflection", True, rank=3),
    gridded("nearest", "border", False, rank=3),
    *[padded(mode) for mode in ("reflect", "replicate", "circular")],
    Record(
        "interpolate_errors",
        F.interpolate,
        TF.interpolate,
        [sample(T((1, 1, 2)), 3)],
        errors=[
            (lambda: F.interpolate(weft.ones(1, 1, 3)), weft.ShapeError, "one of the two"),
            (lambda: F.interpolate(weft.ones(1, 1, 3), 0), weft.ShapeError, "extents of at least 1"),
            (lambda: F.interpolate(weft.ones(1, 1, 3), 2, mode="cubic"), weft.RangeError, "mode='cubic'"),
            (lambda: F.interpolate(weft.ones(1, 1, 3), 2, mode="bilinear"), weft.ShapeError, "4 axes"),
            (lambda: F.interpolate(weft.ones(1, 1, 3), 2, align_corners=True), weft.RangeError, "align_corners=True"),
            (lambda: F.interpolate(weft.ones(1, 1, 3), 2, antialias=True), weft.RangeError, "antialias=True"),
            (lambda: F.interpolate(weft.arange(6).reshape(1, 1, 6), 2), weft.DTypeError, "int64"),
        ],
    ),
    Record("upsample_nearest", F.upsample_nearest, TF.interpolate, [sample(T((1, 2, 3, 2)), scale_factor=2)]),
    Record(
        "upsample_bilinear",
        F.upsample_bilinear,
        lambda x, size: TF.interpolate(x, size, mode="bilinear", align_corners=True),
        [sample(T((1, 2, 3, 2)), 5)],
        without=NARROW,
    ),
    Record("upsample", F.upsample, TF.interpolate, [sample(T((1, 2, 3, 2)), 5)]),
    Record(
        "affine_grid",
        F.affine_grid,
        TF.affine_grid,
        [
            sample(T((2, 2, 3)), (2, 3, 4, 5), align_corners=False),
            sample(T((2, 2, 3)), (2, 3, 4, 3), align_corners=True),
            sample(T((1, 3, 4)), (1, 2, 2, 3, 4), align_corners=False),
            sample(T((1, 3, 4)), (1, 2, 2, 3, 4), align_corners=True),
        ],
        errors=[
            (lambda: F.affine_grid(weft.ones(1, 2, 2), (1, 1, 2, 2)), weft.ShapeError, r"theta \(1, 2, 2\)"),
            (
                lambda: F.grid_sample(weft.ones(1, 1, 2, 2), weft.ones(1, 2, 2, 3)),
                weft.ShapeError,
                "grid_sample: given",
            ),
            (lambda: F.grid_sample(weft.ones(1, 1, 2, 2), weft.ones(1, 2, 2, 2), "cubic"), weft.RangeError, "'cubic'"),
            (
                lambda: F.grid_sample(weft.ones(1, 1, 2, 2), weft.ones(1, 2, 2, 2), padding_mode="wrap"),
                weft.RangeError,
                "padding_mode='wrap'",
            ),
        ],
        without=NARROW,
    ),
    Record(
        "deform_unfold",
        deformed,
        deformed_torch,
        [
            sample(T((1, 2, 3, 2)), T((1, 8, 2, 2), -1, 1), T((1, 4, 2, 2), 0, 1), T((1, 2, 2, 2))),
            sample(T((2, 4, 5, 6)), T((2, 36, 3, 3), -1, 1), T((2, 18, 3, 3), 0, 1), T((3, 4, 3, 3))),
        ],
        tolerance={"float32": (1e-4, 1e-4), "float64": (1e-9, 1e-10)},
        without=NARROW,
        errors=[
            (
                lambda: F.deform_unfold(weft.ones(1, 1, 4, 4), weft.ones(1, 3, 2, 2)),
                weft.ShapeError,
                "an offset of shape",
            ),
            (
                lambda: F.deform_unfold(weft.ones(1, 1, 4, 4), weft.ones(1, 18, 2, 2), weft.ones(1, 2, 2, 2)),
                weft.ShapeError,
                "a mask of shape",
            ),
        ],
    ),
    Record(
        "unfold",
        F.unfold,
        TF.unfold,
        PATCHES,
        errors=[
            (lambda: F.unfold(weft.ones(4, 4), 2), weft.ShapeError, r"unfold: given shape \(4, 4\)"),
            (lambda: F.unfold(weft.ones(1, 1, 2, 2), 3), weft.ShapeError, "at least one patch"),
        ],
    ),
    Record(
        "fold",
        F.fold,
        TF.fold,
        COLUMNS,
        without=NARROW,  # torch adds in 16 bits
        errors=[(lambda: F.fold(weft.ones(1, 4, 5), (3, 4), 2), weft.ShapeError, r"fold: given shape \(1, 4, 5\)")],
    ),
    Record(
        "unfold_axis",
        lambda x, *args: x.unfold(*args),
        lambda x, *args: x.unfold(*args),
        [sample(T((3, 7)), 1, 3, 2), sample(T((7, 3)), 0, 2, 2), sample(T((2, 5, 3)), -2, 5, 1)],
        errors=[(lambda: weft.ones(3).unfold(0, 4, 1), weft.ShapeError, "unfold: given size=4")],
    ),
    Record(
        "pixel_shuffle",
        F.pixel_shuffle,
        TF.pixel_shuffle,
        [sample(T((2, 8, 2, 3)), 2), sample(T((9, 2, 1)), 3)],
        errors=[(lambda: F.pixel_shuffle(weft.ones(3, 2, 2), 2), weft.ShapeError, "3 channels")],
    ),
    Record(
        "pixel_unshuffle",
        F.pixel_unshuffle,
        TF.pixel_unshuffle,
        [sample(T((2, 2, 4, 6)), 2), sample(T((1, 3, 6)), 3)],
        errors=[(lambda: F.pixel_unshuffle(weft.ones(3, 3, 2), 2), weft.ShapeError, "downscale_factor=2")],
    ),
    Record(
        "channel_shuffle",
        F.channel_shuffle,
        TF.channel_shuffle,
        [sample(T((2, 6, 2, 3)), 3), sample(T((1, 4, 3)), 2)],
        errors=[(lambda: F.channel_shuffle(weft.ones(1, 3, 2), 2), weft.ShapeError, "channel_shuffle: given")],
    ),
    *[record for rank in (1, 2, 3) for record in max_pool(rank)],
    *[avg_pool(rank) for rank in (1, 2, 3)],
    *[lp_pool(rank) for rank in (1, 2, 3)],
]
