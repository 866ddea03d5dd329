"""Records of forms of an operation that the list of kernels (tests/kernels) counts as kernels of their own: depthwise
and dilated convolutions, pooling of whole planes, attention with fewer heads of keys and with keys of another
length."""

import weft
import weft.nn.functional as F
from tests.records.conv import LOOSE, image
from tests.records.oracle import TF, torch
from tests.records.record import ALL, FLOATS, NARROW, Record, T, sample


def depthwise(functional):
    """Each channel convolved on its own, with any number of filters for each."""
    return lambda x, weight, *rest, **options: functional(x, weight, *rest, groups=x.shape[1], **options)


def attention(functional, **fixed):
    return lambda q, k, v, **options: functional(q, k, v, **fixed, **options)


RECORDS = [
    Record(
        "depthwise_conv2d",
        depthwise(F.conv2d),
        depthwise(TF.conv2d),
        [
            sample(image(2, 3, 7, 6), image(3, 1, 3, 3), image(3), padding=1),
            sample(image(1, 4, 9, 8), image(8, 1, 3, 2), stride=2),
            sample(image(2, 5, 1, 1), image(5, 1, 1, 1)),
        ],
        tolerance=LOOSE,
    ),
    Record(
        "dilated_conv2d",
        lambda x, weight, **options: F.conv2d(x, weight, **options),
        lambda x, weight, **options: TF.conv2d(x, weight, **options),
        [
            sample(image(2, 3, 9, 8), image(4, 3, 3, 2), dilation=2, padding=1),
            sample(image(1, 4, 11, 7), image(6, 2, 2, 3), dilation=(3, 2), stride=2, groups=2),
        ],
        tolerance=LOOSE,
    ),
    Record(
        "global_avgpool2d",
        lambda x: F.adaptive_avg_pool2d(x, 1),
        lambda x: TF.adaptive_avg_pool2d(x, 1),
        [sample(T((2, 3, 5, 7))), sample(T((3, 1, 1))), sample(T((1, 2, 33, 4)))],
        FLOATS,
    ),
    Record(
        "global_maxpool2d",
        lambda x: F.adaptive_max_pool2d(x, 1),
        lambda x: TF.adaptive_max_pool2d(x, 1),
        [sample(T((2, 3, 5, 7))), sample(T((3, 1, 1))), sample(T(values=[[[[1.0, 2.0], [2.0, 0.0]]]]))],
        FLOATS,
        finite_differences=False,  # at ties
    ),
    Record(
        "grouped_query_attention",
        attention(F.scaled_dot_product_attention, enable_gqa=True),
        attention(TF.scaled_dot_product_attention, enable_gqa=True),
        [
            sample(T((2, 6, 5, 4)), T((2, 2, 5, 4)), T((2, 2, 5, 3))),
            sample(T((1, 4, 7, 8)), T((1, 1, 7, 8)), T((1, 1, 7, 8)), is_causal=True),
        ],
        without=NARROW,
        tolerance=LOOSE,
    ),
    Record(
        "cross_attention",
        attention(F.scaled_dot_product_attention),
        attention(TF.scaled_dot_product_attention),
        [
            sample(T((2, 3, 5, 4)), T((2, 3, 9, 4)), T((2, 3, 9, 6))),
            sample(T((1, 2, 1, 8)), T((1, 2, 70, 8)), T((1, 2, 70, 8))),
        ],
        without=NARROW,
        tolerance=LOOSE,
    ),
    Record(
        "scatter_add_batched",
        lambda x, index, src: x.scatter_add(2, index, src),
        lambda x, index, src: x.scatter_add(2, index, src),
        [sample(T((2, 3, 4)), T((2, 3, 5), 0, 3, dtype="int64"), T((2, 3, 5)))],
        FLOATS,
    ),
    Record(
        "batched_transpose",
        weft.adjoint,
        lambda x: torch.transpose(x, -1, -2),
        [sample(T((3, 4, 5))), sample(T((2, 3, 1, 7))), sample(T((0, 2, 3))), sample(T((3, 4), layout="sliced"))],
        ALL,
    ),
]
