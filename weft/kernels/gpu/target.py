"""Target: what the GPU schedules know of a device, taken from its features, limits and tuning.

The sizes are upper bounds of what a kernel may use. Nothing here names a vendor: a schedule asks whether there are
subgroups, asynchronous copies or native functions, and how large a workgroup and its shared memory may be.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from weft.base.capabilities import Features, Limits
from weft.base.tuning import Tuning


@dataclass(frozen=True, slots=True)
class Target:
    """What a schedule knows of a device. The defaults are what every GPU has."""

    workgroup_size: int = 256  # lanes, at most
    subgroup_size: int = 0  # lanes that exchange values without memory; 0: there are none
    shared_bytes: int = 16384  # that a workgroup may share
    access_bytes: int = 16  # of the widest single access to memory
    functions: tuple[str, ...] = ()  # of the kernel language that are operations of the device
    resident_lanes: int = 0  # that a processor holds; 0: not known
    has_async_copies: bool = False  # copies into shared memory proceed while lanes compute
    static_shared_bytes: int = 16384  # that a kernel may declare; arrays beyond come with the launch
    registers: int = 0  # of a lane, at most; 0: not known
    resident_registers: int = 0  # of a lane where a processor holds all its lanes; 0: not known
    tuning: Tuning = field(default_factory=Tuning)

    @property
    def independent_lanes(self) -> int:
        """Lanes of a workgroup whose lanes share nothing."""
        return min(self.tuning.workgroup_size, self.workgroup_size)


def target_of(features: Features, limits: Limits, tuning: Tuning) -> Target:
    """The target that a device's features and limits describe, with its tuning."""
    return Target(
        limits.workgroup_size,
        limits.subgroup_size if features.subgroup_operations else 0,
        limits.shared_bytes,
        limits.access_bytes,
        features.native_functions,
        limits.resident_lanes,
        features.async_copies,
        limits.static_shared_bytes,
        limits.registers,
        limits.resident_registers,
        tuning,
    )
