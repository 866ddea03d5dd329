"""What a device can do (`Features`) and how much of it (`Limits`), as the compiler and the schedules see it.

Both are frozen data that a backend fills in when it opens a device. The fuser, the schedules, the templates and the
runtime consult them and nothing else: no code outside a backend knows a vendor. The defaults describe the least that
any GPU offers, so a new backend states only what its devices have beyond that; `Limits` of 0 mean "not known", where
the field's comment says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

from weft.base.dtypes import DType
from weft.base.errors import size_text

MAX_BINDING_OFFSET = 256  # bytes of a binding before the value that it is for: bindings begin at multiples of as many


@dataclass(frozen=True, slots=True)
class MatrixUnit:
    """A unit that adds the product of a [rows, depth] and a [depth, columns] tile to a tile of float32 sums, by the
    `lanes` of one subgroup together. `operands` are the dtypes of the factors. `layout` says how the sums are spread
    over the lanes: `kernels.gpu.matrix_unit` has the words for it."""

    rows: int
    columns: int
    depth: int
    lanes: int
    operands: tuple[DType, ...]
    layout: str = "row_pairs"
    operand_copies: int = 1  # that the lanes hold together of each tile of an operand


@dataclass(frozen=True, slots=True)
class Features:
    """What a device can do."""

    # How kernels are made.
    workgroups: bool = False  # a GPU: lanes in workgroups with barriers and shared memory
    cpu_templates: bool = False  # the hand-written kernels for CPUs; without them their primitives are composed
    scalar_arguments: bool = False  # kernels take constants that change with each run as arguments
    # What GPU kernels may use.
    subgroup_operations: bool = False  # lanes of a subgroup exchange values without memory; see `Limits.subgroup_sizes`
    async_copies: bool = False  # copies into shared memory proceed while the lanes compute
    matrix_units: tuple[MatrixUnit, ...] = ()
    native_functions: tuple[str, ...] = ()  # of `kernels.ir.language.NATIVE`, those the device computes itself
    int64_arithmetic: bool = True  # kernels may compute with 64-bit integers
    # What products and attention do.
    small_products: bool = False  # the library of matrix products is fast at small tiles
    float16_products: bool = False  # factors of 16 bits are multiplied as they are, without a library too
    float16_attention: bool = False  # results of 16-bit attention are kept in 16 bits for its gradient, not float32

    def describe(self) -> list[str]:
        """The names of what the device has, for people."""
        return [field.name for field in fields(self) if getattr(self, field.name)]


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of everything a device has."""

    # CPUs.
    cpu_threads: int = 1  # threads of the operating system that share a plan's work
    vector_register_bytes: int = 512  # of all vector registers of a core together
    # One workgroup of a GPU.
    workgroup_size: int = 256  # lanes; of another number than a power of two (Mali has 384) the power below counts
    subgroup_sizes: tuple[int, ...] = ()  # that a subgroup may have; several where the device's compiler chooses
    shared_bytes: int = 16384  # shared memory in all
    static_shared_bytes: int = 16384  # shared memory that a kernel may declare; the rest comes with the launch
    registers: int = 0  # 32-bit registers of a lane; 0: not known
    access_bytes: int = 16  # of the widest single access to memory
    # A launch.
    workgroups: int = 1 << 20
    storage_buffers: int = 0  # bindings of a kernel; 0: any number
    binding_bytes: int = 0  # of one binding; 0: any number. A larger value is bound in parts
    offset_alignment: int = 1  # bytes: a binding begins at a multiple of this
    # The device.
    allocation_bytes: int = 0  # of one allocation, and so of one value, a multiple of 4096; 0: any number
    processors: int = 0  # that run workgroups independently; 0: not known
    resident_lanes: int = 0  # that a processor runs at a time; 0: not known
    resident_registers: int = 0  # 32-bit registers of a lane where `resident_lanes` run; 0: not known

    def __post_init__(self) -> None:
        object.__setattr__(self, "workgroup_size", 1 << self.workgroup_size.bit_length() - 1)

    @property
    def part_bytes(self) -> int:
        """Of the parts in which a value is bound that is too large for one binding, all but the last: a power of two.
        0: no value is too large."""
        return 1 << self.binding_bytes.bit_length() - 1 if self.binding_bytes else 0

    @property
    def flat_bytes(self) -> int:
        """Of the largest value that is one allocation and one binding; 0: any number."""
        return min([nbytes for nbytes in (self.whole_bytes, self.allocation_bytes) if nbytes], default=0)

    @property
    def whole_bytes(self) -> int:
        """Of the largest value that takes one binding, wherever in its memory it begins; 0: any number."""
        return max(self.binding_bytes - MAX_BINDING_OFFSET, 0)

    def count_bindings(self, nbytes: int) -> int:
        """How many bindings a value of so many bytes takes, wherever in its memory it begins.

        >>> limits = Limits(binding_bytes=128 << 20)
        >>> limits.count_bindings(100 << 20), limits.count_bindings(128 << 20), limits.count_bindings(300 << 20)
        (1, 2, 3)
        """
        if not self.binding_bytes or nbytes <= self.whole_bytes:
            return 1
        return -(-(nbytes + MAX_BINDING_OFFSET) // self.part_bytes)

    def count_total_bindings(self, sizes: Iterable[int]) -> int:
        """How many bindings values of so many bytes take together."""
        return sum([self.count_bindings(nbytes) for nbytes in sizes])

    @property
    def subgroup_size(self) -> int:
        """The size of every subgroup; 0 where there are none, or where the size is not known before a kernel runs."""
        return self.subgroup_sizes[0] if len(self.subgroup_sizes) == 1 else 0

    def describe(self) -> list[str]:
        """What a GPU offers a kernel, for people."""
        subgroups = "" if not self.subgroup_sizes else f" in subgroups of {' or '.join(map(str, self.subgroup_sizes))}"
        found = [
            f"{self.workgroup_size} lanes{subgroups} and {size_text(self.shared_bytes)} of shared memory a workgroup",
            f"{self.workgroups:,} workgroups",
        ]
        if self.storage_buffers:
            found.append(f"{self.storage_buffers} buffers a kernel")
        if self.binding_bytes:
            found.append(f"{size_text(self.binding_bytes)} a binding")
        if self.allocation_bytes:
            found.append(f"{size_text(self.allocation_bytes)} an allocation")
        if self.processors:
            found.append(f"{self.processors} processors")
        return found
