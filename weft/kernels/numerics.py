"""Every rule that fixes in which order floats are added, as functions and constants over shapes.

What is here decides bits: a change changes results in their last places, on purpose or not. Nothing here may depend on
how many workers a device has, how long a kernel took, or a setting. On CPUs shapes and dtypes are all that is asked
for, so bits are the same on every machine with the same library of products. On GPUs rules also take sizes of the
device, which are fixed for a model of GPU: lanes of a subgroup and of a workgroup, shared memory, bytes of an access.
So two models of GPU may differ in the last places, and one does not from run to run. Rules that depend on what else a
kernel computes say so. What only decides speed is a `weft.base.tuning.Tuning`. docs/numerics.md explains.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

# --- accumulators ----------------------------------------------------------------------------------------------------

CHAIN = 64  # additions that an accumulator takes one by one; chains' sums go to a compensated one
LANES = 32  # partial sums of a reduction along a contiguous axis on CPUs: element i goes to number i % LANES

# --- reductions ------------------------------------------------------------------------------------------------------

MIN_INNER_EXTENT = 64  # elements of a last axis that is reduced in a vector loop of its own
MAX_UNSPLIT_ROWS = 64  # rows that one pass over a column adds up before the sum is split
MIN_SPLIT_ELEMENTS = 32768  # elements from which a reduction with few results is split
MIN_CHUNK_ELEMENTS = 8192  # elements that make a chunk of a split row sum
MAX_NARROW_COLUMNS = 256  # columns of which chunks are as short as can be: their sums are little to store
MAX_CHAINED_WINDOWS = 8  # windows over an element that are added one by one rather than by a reduction


@dataclass(frozen=True, slots=True)
class Pieces:
    """How a kind of device cuts long reductions: rows into at most `rows` pieces, unless there are `enough` rows;
    columns into at most `columns` chunks of at least `least` rows, or into more where these would have more than
    `most` rows: a kernel adds up the rows of a chunk one by one. The sums of more than `again` chunks are cut once
    more. Where `sums` is not 0, chunks have at most so many
    sums in all, unless there are `fewest` chunks; and their number is a power of two, some of them a row shorter:
    kernels that add up chunks know it, and a batch that is a little shorter needs no other ones."""

    rows: int
    enough: int
    columns: int
    least: int
    most: int
    again: int
    fewest: int = 0
    sums: int = 0


CPU_PIECES = Pieces(64, 64, 64, 32, 2 * CHAIN, 1 << 14)
GPU_PIECES = Pieces(1024, 128, 2048, 16, 256, 2048, 256, 1 << 17)


def split_reduction(shape: tuple[int, ...], axes: tuple[int, ...], pieces: Pieces) -> tuple[int, int, int] | None:
    """(axis to cut, length of a piece, number of pieces) where a reduction is long and yields little, else None.

    >>> split_reduction((4, 65536), (1,), CPU_PIECES), split_reduction((4, 100), (1,), CPU_PIECES)
    ((1, 8192, 8), None)
    """
    n = math.prod(shape[axis] for axis in axes)
    kept = math.prod(shape) // n
    if len(shape) - 1 in axes:
        axis = max(axes, key=lambda position: shape[position])
        count = min(pieces.rows, -(-n // MIN_CHUNK_ELEMENTS), shape[axis])
        if kept >= pieces.enough or n < MIN_SPLIT_ELEMENTS or count < 2:
            return None
        per = -(-shape[axis] // count)
        per = -(-per // MIN_INNER_EXTENT) * MIN_INNER_EXTENT if axis == len(shape) - 1 else per
        return axis, per, -(-shape[axis] // per)
    if axes != (0,) or n <= MAX_UNSPLIT_ROWS:
        return None
    count = min(pieces.columns, -(-n // pieces.least))
    fewest = -(-n // pieces.most)
    if not pieces.sums:
        fewest = -(-n // CHAIN) if kept <= MAX_NARROW_COLUMNS else fewest
        per = -(-n // max(count, fewest))
        return 0, per, -(-n // per)
    most = max(pieces.sums // kept, pieces.fewest)
    count = max(min(_power_above(count), 1 << (most.bit_length() - 1)), _power_above(fewest))
    return 0, -(-n // count), count


def _power_above(n: int) -> int:
    return 1 << (n - 1).bit_length()


# --- rows on GPUs ----------------------------------------------------------------------------------------------------

MAX_SERIAL_ROW = 31  # elements of a row that one lane reduces in order; a subgroup has lanes for one more
MAX_UNROLLED_TERMS = 31  # extent of a reduced axis that a kernel knows; others may be open ends of a row
MIN_ROW_LANES = 32  # that share a row
MAX_SUBGROUP_ROW = 1024  # elements of a row that is one subgroup's
ROW_ELEMENTS_PER_LANE = 16  # while a workgroup has lanes enough
MAX_REGISTER_ELEMENTS = 32  # of a row that a lane keeps in registers
LARGE_WORKGROUP = 1024  # lanes from which a lane keeps ROW_ELEMENTS_PER_LANE at most
MAX_OPEN_ROW_LANES, LONG_OPEN_ROW = 256, 4096  # lanes of a row with open ends that has fewer elements
MIN_SHARED_ELEMENTS = 1024  # across which lanes go in parallel, where more axes are reduced
MAX_LONG_ROW_WIDTH = 8  # contiguous elements of a lane in a row that registers do not hold
MAX_ELEMENTS_IN_FLIGHT, MAX_ELEMENTS_PER_ROUND = 8192, 16  # of a workgroup, and of a lane, in one round of such a row
# Whether several passes over a long row read it from shared memory, and two workgroups find room for theirs there,
# decides how many lanes share it: these bounds change bits, though they read like tuning.
SHARING_ROW_LANES = 512  # of a workgroup that shares a processor with another
MAX_SHARING_WORKGROUPS = 2
RESERVED_ROW_BYTES = 2048  # of shared memory for partial results
STAGED_RECOMPUTE_COST = 8  # operations on the way to a value from which it is kept there


def is_serial_row(extent: int) -> bool:
    """Whether a GPU reduces a row in order: by one lane, and so that its bits are the same where lanes share it."""
    return extent <= MAX_SERIAL_ROW


def row_width(extent: int) -> int:
    """Contiguous elements of a row that a lane takes together.

    >>> row_width(4096), row_width(4098), row_width(4097), row_width(36)
    (4, 2, 1, 1)
    """
    return next(n for n in (4, 2, 1) if extent % n == 0 and (extent >= MIN_ROW_LANES * n or n == 1))


def min_row_lanes(subgroup_size: int) -> int:
    """Lanes that share a row at least: whole subgroups, where there are any."""
    return max(MIN_ROW_LANES, subgroup_size)


def row_lanes(extent: int, subgroup_size: int, workgroup_size: int) -> int:
    """Lanes that share a row of `extent` elements: one subgroup, else as many as have `ROW_ELEMENTS_PER_LANE` each.

    >>> row_lanes(1000, 32, 1024), row_lanes(5000, 32, 1024), row_lanes(5000, 0, 256), row_lanes(10**6, 64, 1024)
    (32, 512, 256, 1024)
    """
    lanes = min_row_lanes(subgroup_size)
    if subgroup_size != lanes or extent > MAX_SUBGROUP_ROW:
        while lanes * ROW_ELEMENTS_PER_LANE < extent and 2 * lanes <= workgroup_size:
            lanes *= 2
    return lanes


def is_register_row(lanes: int, per_lane: int) -> bool:
    """Whether registers hold a row of so many lanes and elements per lane; others are added in rounds."""
    return per_lane <= (MAX_REGISTER_ELEMENTS if lanes < LARGE_WORKGROUP else ROW_ELEMENTS_PER_LANE)


def open_row_lanes(extent: int, subgroup_size: int, workgroup_size: int) -> int:
    """Lanes of a row whose ends are known only when the kernel runs; lane k adds elements k, k + lanes, ..."""
    most = MAX_OPEN_ROW_LANES if extent < LONG_OPEN_ROW else workgroup_size
    return min(max(1 << max(extent - 1, 0).bit_length(), min_row_lanes(subgroup_size)), most, workgroup_size)


def long_row_width(access_bytes: int, itemsize: int) -> int:
    """Contiguous elements of a lane in a row that registers do not hold, where the widest element that its kernel reads
    or writes has `itemsize` bytes."""
    return min(max(access_bytes // itemsize, 1), MAX_LONG_ROW_WIDTH)


def long_row_steps(lanes: int, vector_width: int) -> int:
    """Vectors of a lane in one round of such a row. Rounds are what blocks of `CHAIN` additions are cut at."""
    return max(min(MAX_ELEMENTS_IN_FLIGHT // lanes, MAX_ELEMENTS_PER_ROUND) // vector_width, 1)


# --- columns on GPUs -------------------------------------------------------------------------------------------------

MAX_CHUNK_MEMBERS = 4  # subgroups that take the rows of a chunk in rotation
COLUMN_STRIP = 32  # columns of a workgroup
MIN_GROUPED_ROWS = 32  # below which one lane reduces a column
MAX_GROUPED_COLUMNS = 1 << 16  # beyond which it does, however many rows there are
MAX_COLUMN_LANES, MAX_LONG_COLUMN_LANES = 256, 1024  # of a workgroup
MIN_LONG_COLUMN = 256  # rows from which it has more
SEGMENT_FEATURES = 32  # a last axis whose extent divides this is joined with those before it where rows are segments
# A lane that reduces segments of several columns compensates every addition of a long sum; one that has a single column
# compensates the sums of blocks (`math.summation`).
MIN_SEGMENT_COLUMNS, MIN_SEGMENT_ELEMENTS = 32, 1 << 18  # of a table from which a lane has several columns


def chunk_members(sum_bytes: int, shared_bytes: int, subgroups: int) -> int:
    """How many of a workgroup's subgroups add up the rows of a chunk, where one has sums of so many bytes (one array
    for each dtype that its kernel adds up): as many as have room to combine them.

    >>> chunk_members(4096, 49152, 8), chunk_members(16384, 49152, 8), chunk_members(65536, 49152, 8)
    (4, 2, 1)
    >>> chunk_members(4096, 49152, 2)
    2
    """
    most = min(MAX_CHUNK_MEMBERS, shared_bytes // sum_bytes, subgroups)
    return 1 << (most.bit_length() - 1) if most else 1


def shares_lanes(rows: int, columns: int) -> bool:
    """Whether a lane of a GPU reduces the segments of several contiguous columns of a table of so many rows."""
    return columns >= MIN_SEGMENT_COLUMNS and rows * columns >= MIN_SEGMENT_ELEMENTS


def column_groups(rows: int, columns: int, workgroup_size: int) -> int:
    """How many groups of lanes add a column's rows in rotation; their sums are added in order. 1: one lane does it.

    >>> column_groups(31, 64, 1024), column_groups(100, 64, 1024), column_groups(1000, 64, 1024)
    (1, 8, 32)
    """
    if rows < MIN_GROUPED_ROWS or columns > MAX_GROUPED_COLUMNS:
        return 1
    most = MAX_COLUMN_LANES if rows < MIN_LONG_COLUMN else MAX_LONG_COLUMN_LANES
    return max(min(most, workgroup_size) // COLUMN_STRIP, 1)


# --- scans -----------------------------------------------------------------------------------------------------------

SCAN_BLOCK = 4 * CHAIN  # elements of a row that CPUs compute in lanes before they are added one by one: whole chains
MAX_SPLIT_SCAN_ROWS = 16  # with fewer rows than this, long ones are scanned in pieces
MIN_SPLIT_SCAN_ELEMENTS = 32768  # elements from which a row is long
MIN_SCAN_PIECE_ELEMENTS = 8192
MAX_SCAN_PIECES = 64  # of a row


def scan_piece(rows: int, extent: int) -> int | None:
    """Elements of a piece where rows are scanned in pieces on CPUs, else None."""
    if rows >= MAX_SPLIT_SCAN_ROWS or extent < MIN_SPLIT_SCAN_ELEMENTS:
        return None
    return -(-extent // min(MAX_SCAN_PIECES, -(-extent // MIN_SCAN_PIECE_ELEMENTS)))


MAX_LANE_SCAN = 32  # elements of a row up to which one lane of a GPU scans it
MAX_SERIAL_SCAN = 256  # elements of a line that is not contiguous up to which one lane scans it, however few there are
MIN_PARALLEL_LINES, MIN_PARALLEL_ROWS = 16384, 256  # that occupy a GPU with a lane, or a workgroup, for each
SCAN_ELEMENTS_PER_LANE = 9  # contiguous elements of a tile that one lane adds in order; odd, to avoid bank conflicts
MIN_SCAN_LANES, MAX_SCAN_LANES = 32, 256  # of a workgroup
MAX_SCAN_TILES = 2  # of a row up to which one workgroup scans it, however few rows there are


def is_line_scan(extent: int, inner: int) -> bool:
    """Whether a GPU scans (..., extent, inner) with one lane for each line, rather than with a workgroup for each."""
    return inner > 1 or extent <= MAX_LANE_SCAN


def gpu_scan_piece(outer: int, extent: int, inner: int) -> int | None:
    """Elements of a piece where lines of (outer, extent, inner) are scanned in pieces on GPUs, else None."""
    if is_line_scan(extent, inner):
        is_cut = outer * inner < MIN_PARALLEL_LINES and extent > MAX_SERIAL_SCAN
        return 1 << max((extent - 1).bit_length() // 2, 5) if is_cut else None
    per = max(MAX_SCAN_TILES * MAX_SCAN_LANES * SCAN_ELEMENTS_PER_LANE, -(-extent // MIN_PARALLEL_ROWS))
    return per if outer < MIN_PARALLEL_ROWS and extent > per else None


def scan_lanes(extent: int, itemsize: int, shared_bytes: int, workgroup_size: int) -> int:
    """Lanes of a workgroup that scans rows: enough for a tile of a row, or as many as the device has, or as shared
    memory has room for its elements, the lanes' sums twice, and what is carried from tile to tile.

    >>> scan_lanes(100, 4, 49152, 1024), scan_lanes(10**6, 4, 49152, 1024), scan_lanes(10**6, 8, 16384, 1024)
    (32, 256, 128)
    >>> scan_lanes(10**6, 4, 49152, 64)
    64
    """
    least = -(-extent // SCAN_ELEMENTS_PER_LANE)
    most = shared_bytes // ((SCAN_ELEMENTS_PER_LANE + 3) * itemsize)
    most = min(1 << (most.bit_length() - 1), workgroup_size, MAX_SCAN_LANES)
    return min(max(1 << max(least - 1, 0).bit_length(), MIN_SCAN_LANES), most)


# --- scattered rows --------------------------------------------------------------------------------------------------

MIN_WIDE_ROW = 8  # elements of a scattered row from which CPUs do not add in float64
MIN_ROWS_PER_TABLE_ROW = 2  # scattered rows for each row of the table from which it counts as small
MAX_UNSORTED_ROWS = 256  # scattered rows up to which every element of a GPU's table visits all of them
MAX_COMPARISONS = 1 << 22  # such visits in total that cost less than a sort
MIN_PIECEWISE_ROWS = 512  # scattered rows from which GPUs add the rows of the sorted list in pieces


def is_wide_row(elements: int) -> bool:
    """Whether CPUs add scattered rows of so many elements in their own dtype rather than in float64."""
    return elements >= MIN_WIDE_ROW


def is_small_table(rows: int, entries: int) -> bool:
    """Whether CPUs add up every `CHAIN` of the scattered rows that meet in a row of the table, rather than sort."""
    return MIN_ROWS_PER_TABLE_ROW * rows <= entries < 1 << 31


def is_scattered_by_visits(entries: int, elements: int) -> bool:
    """Whether on GPUs each of so many elements of a table visits all scattered rows, in order, rather than sort."""
    return entries <= MAX_UNSORTED_ROWS and entries * elements <= MAX_COMPARISONS


def scatter_piece(entries: int) -> int | None:
    """Rows of a piece of a GPU's sorted list: about the root of their number; None where it is added whole."""
    return None if entries < MIN_PIECEWISE_ROWS else 1 << (entries.bit_length() // 2)


# --- matrix products -------------------------------------------------------------------------------------------------

MAX_FUSED_PRODUCT = 8192  # multiply-adds up to which a matrix product is a fused loop rather than a library call
SMALL_GPU_PRODUCT = 1 << 23  # multiply-adds of a product whose time on a GPU is that of a loop along k
GPU_TILE, MIN_GPU_TILES = 128, 128  # a product of fewer tiles of this side leaves processors idle: its sums are cut
MIN_PART_LENGTH, MIN_SMALL_PART_LENGTH = 512, 48  # terms of each part, of large and of small products
MIN_SMALL_SUM = 256  # terms from which the sums of a small product are cut
MAX_SMALL_PARTS = 16  # all are loaded at once
MAX_SMALL_RESULTS, MAX_SMALL_SUM, MIN_SMALL_SIDE = 1 << 17, 4096, 8  # of a float32 product that needs no library
MAX_UNSPLIT_TERMS = 256  # of a sum of a GPU's library, up to which it may not add parts: that would take longer


def gpu_product_parts(m: int, n: int, k: int) -> int:
    """How many parts of equal length the sums of a GPU's product [m, k] @ [k, n] are cut into; parts begin at multiples
    of 4 elements, for fetches of four."""
    tiles = -(-m // GPU_TILE) * -(-n // GPU_TILE)
    if m * n * k <= SMALL_GPU_PRODUCT and k > MIN_SMALL_SUM:
        most = min(MAX_SMALL_PARTS, k // MIN_SMALL_PART_LENGTH)
    else:
        most = min(-(-MIN_GPU_TILES // tiles), k // MIN_PART_LENGTH)
    return max([parts for parts in range(1, most + 1) if k % (4 * parts) == 0], default=1)


def is_small_gpu_product(batch: int, m: int, n: int, k: int) -> bool:
    """Whether a float32 product is one of a GPU's own kernels, which are faster than its library there."""
    if m * n > MAX_SMALL_RESULTS or k > MAX_SMALL_SUM or min(m, n) < MIN_SMALL_SIDE:
        return False
    return batch * m * n * k <= SMALL_GPU_PRODUCT and n % 2 == 0 and k % 2 == 0


TILE_FLOPS = 2_000_000  # operations that a tile of a library's product on CPUs is worth
MAX_TILES, MAX_LARGE_TILES = 8, 16  # of a product, and of one of LARGE_PRODUCT_FLOPS operations and more
LARGE_PRODUCT_FLOPS = 4_000_000_000
MIN_TILE_SIDE = 32  # a side that is longer is halved
MAX_SMALL_TILE_PRODUCT = 1_000_000  # multiply-adds of a tile that a library's kernel for small products takes


def product_tiles(batch: int, m: int, n: int, k: int, transposed: tuple[bool, bool], small: bool) -> tuple[int, int]:
    """Height and width of the tiles of a product [m, k] @ [k, n] that a library of a CPU computes: it chooses an order
    of additions by the shape that it sees. With one that has `small` kernels, tiles that these take where they pay;
    else halve the longer side until there are enough tiles or they get small.

    >>> product_tiles(1, 1024, 1024, 1024, (False, False), False), product_tiles(1, 64, 64, 64, (False, False), True)
    ((512, 256), (32, 64))
    """
    if small:
        if transposed == (False, True) and 32 <= k <= 2 * MAX_SMALL_TILE_PRODUCT // (24 * 32):  # rows of both operands
            height, width = (32, 24) if k * 32 * 24 <= MAX_SMALL_TILE_PRODUCT else (24, 16)
            return min(m, height), min(n, width)
        if k <= 256 and transposed != (True, True):
            return min(m, 32), min(n, 112)
    flops = 2 * batch * m * n * k
    wanted = min(MAX_LARGE_TILES if flops >= LARGE_PRODUCT_FLOPS else MAX_TILES, flops // TILE_FLOPS)
    height, width = m, n
    while batch * -(-m // height) * -(-n // width) < wanted:
        if width >= height and width > MIN_TILE_SIDE:
            width = _half(width)
        elif height > MIN_TILE_SIDE:
            height = _half(height)
        else:
            break
    return height, width


def _half(extent: int) -> int:
    """Half of an extent, rounded up to a multiple of 16."""
    return -(-extent // 32) * 16


# --- convolutions ----------------------------------------------------------------------------------------------------

MIN_WINOGRAD_CHANNELS = 16  # channels and filters from which two pixels are computed by Winograd's F(2, 3)
MAX_DEPTHWISE_FILTERS = 4  # per group, up to which a convolution of single channels is a sum of products
MAX_WEIGHT_GRADIENT_CHAIN = 128  # pixels that one chain of additions of a weight gradient takes
MIN_WEIGHT_GRADIENT_TILES = 16  # with fewer tiles than this a weight gradient is summed in parts
TILING_REGISTER_BYTES = 2048  # vector registers by which these tiles are counted on every machine
TILING_PIXELS = 16  # accumulators of such a tile
LONG_PRODUCT_RATIO, MIN_LONG_PRODUCT_COLUMNS = 8, 128  # rows for each column from which a product is a weight gradient
MIN_LONG_PRODUCT_SIDE = 8  # columns on both sides of such a product


def weight_gradient_parts(batch: int, tiles: int) -> int:
    """In how many parts of the batch a weight gradient of so many tiles is summed."""
    return min(batch, -(-MIN_WEIGHT_GRADIENT_TILES // tiles))


def is_long_product(m: int, n: int, k: int) -> bool:
    """Whether the product [m, k] @ [k, n] is summed as a weight gradient is."""
    return min(m, n) >= MIN_LONG_PRODUCT_SIDE and k >= LONG_PRODUCT_RATIO * max(m, n, MIN_LONG_PRODUCT_COLUMNS)


# --- attention -------------------------------------------------------------------------------------------------------

ATTENTION_BLOCK = 64  # queries, and keys, that are worked on at a time on CPUs
ATTENTION_LANE_BYTES = 128  # of a vector loop: sums over lanes have one order on every machine
MAX_ATTENTION_BYTES = 256 << 10  # that a task may have on its thread's stack; blocks are smaller where rows are wide
MAX_GPU_HEAD_WIDTH = 256  # of a head that GPUs take in blocks; wider ones are composed of products and rows
MAX_GPU_ATTENTION_BYTES = 112 << 10  # of shared memory that decide how many queries and keys are in a block


def attention_block(widths: int, itemsize: int) -> int:
    """Queries, and keys, that a CPU works on at a time, where a query with its key, value and result has `widths`
    elements in all.

    >>> attention_block(256, 4), attention_block(1024, 4)
    (64, 16)
    """
    block = ATTENTION_BLOCK
    while block > 1 and 4 * block * widths * itemsize > MAX_ATTENTION_BYTES:
        block //= 2
    return block
