"""Tuning: what decides only how fast a device computes, as one record of numbers that can be searched.

No field fixes an order of additions: those are rules of `weft.kernels.numerics`, and a test changes each field and
compares bits. On GPUs what shares a kernel with a long row can change its order (docs/numerics.md lists such sums), and
so can the fields that decide what is fused. `weft tune` searches some of the others (`weft.profiling.tune`); what it
finds is used from the next process on (`weft.plan.kept_tuning`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tuning:
    """Thresholds of the compiler, of schedules and of backends for one class of devices, and speeds of tiles. Any
    positive number is legal; sizes of workgroups and runs are powers of two.

    >>> from dataclasses import replace
    >>> replace(Tuning(), max_tasks=128).max_tasks
    128
    """

    # Tasks: how the points of a kernel are divided among workers.
    min_task_bytes: int = 32768  # memory traffic that a task is worth
    max_tasks: int = 64
    min_copy_chunk: int = 8192  # elements of a task that copies a value
    conv_task_flops: int = 400_000  # operations that a task of a convolution is worth
    max_conv_tasks: int = 128
    conv_tasks_per_thread: int = 8  # of a weight gradient, whose tasks are long so that they share what they read
    attention_task_flops: int = 200_000
    min_streamed_bytes: int = 8 << 20  # a result at least this large would push everything else out of the caches
    min_parallel_work: int = 48 << 10  # bytes and operations from which a step of a CPU's plan is given to all threads
    min_parallel_plan: int = 192 << 10  # the same for a whole plan

    # Kernels of CPUs.
    max_gather_points: int = 64  # adjacent points that read the same rows, for which an inner loop is written
    cached_row_cost: int = 8  # operations from which a value of a row is read back rather than computed again
    max_cached_row: int = 8192  # elements of a row whose values may be kept
    max_cached_bytes: int = 1 << 18  # of all kept values of a row, which lie on the stack
    max_conv_tile_pixels: int = 16  # accumulators of a tile
    max_unrolled_taps: int = 9  # innermost taps that are unrolled; those further out are loops
    conv_pixels_per_pass: int = 256  # pixels worth of work for each pass over the weights of a block of channels
    scan_strip: int = 2048  # columns of a task, where sums down columns are long: fewer are read in short pieces
    max_counting_sort: int = 64  # elements of a row that is sorted by counting, for each element, those before it
    max_sort_stack_bytes: int = 32768  # of scratch that the sort of a row may take from the stack
    min_coarse_sort: int = 8192  # elements from which a radix sort has fewer passes with larger tables

    # Kernels of GPUs.
    workgroup_size: int = 256  # lanes of a workgroup whose lanes, or subgroups, share nothing
    max_single_elements: int = 1 << 16  # elements up to which one lane takes one of them
    bytes_in_flight: int = 64  # that a lane requests before it uses the first
    max_unrolled_operations: int = 512  # of one lane
    max_streams: int = 16  # arrays that a lane reads and writes, beyond which its vectors are narrower
    min_transposed_elements: int = 1 << 14  # elements from which what is read across goes through shared memory
    min_transposed_stride: int = 8  # from which a load counts as one across
    max_subgroup_sums: int = 8  # partial results of subgroups that each lane combines by itself
    chunk_registers: int = 128  # of a lane that has the running sums of a chunk of rows
    staged_bytes_per_register: int = 3  # that such a lane keeps: sums, two rows, what all rows use
    min_prefetch_bytes: int = 32768  # of the next rows of a chunk that a workgroup has in flight, if two or more fit
    column_prefetch_bytes: int = 8192  # the same where there are column sums alone
    max_column_stages: int = 16  # rows that such a workgroup keeps at most
    column_rows_in_flight: int = 8  # rows that a lane loads together where they are not prefetched
    storing_workgroups: int = 2  # of a processor that store elements beside column sums: they access adjacent rows
    column_register_factor: int = 2  # times the registers of a lane where a processor holds as many lanes as it can
    max_sorted_run: int = 4096  # words that a workgroup sorts, where it has lanes and memory for them
    max_batched_launches: int = 24  # small launches that become one, so that the text of a kernel stays short
    max_batched_buffers: int = 48  # buffers of all of them
    max_concurrent_workgroups: int = 256  # of a launch that becomes one with others: more occupy a GPU; 0: none does
    # (name, speed) of tiles of products (`kernels.gpu.product_tiles`); none: the defaults there. Only ratios count.
    product_speeds: tuple[tuple[str, int], ...] = ()

    # Fusion: which values share a kernel.
    max_candidates: int = 6  # regions that a root tries to join
    max_recent_candidates: int = 8  # regions, latest first, among which unrelated ones are tried too
    small_volume: int = 1 << 16  # elements up to which unrelated work of the same form shares a kernel
    small_gpu_volume: int = 1 << 21  # the same where a launch takes as long as moving megabytes
    max_small_reads: int = 8  # values that such a kernel reads
    max_reductions: int = 24  # of one kernel: each that depends on others reads the row once more
    max_unrelated_cost: int = 512  # arithmetic per element of a kernel with unrelated results
    merge_window: int = 32  # regions of one domain, latest first, that a region may be merged with
    max_values: int = 64  # values that one kernel reads or stores, unless a single result needs more
    max_operations: int = 400  # elementwise operations of one kernel, and below one value that it computes
    max_cost: int = 1024  # the same, weighed by their cost

    # Values that are stored rather than computed again, by operations per element.
    recompute_cost: int = 60  # rather than computed twice
    repeated_reduction_cost: int = 8  # rather than for each of its repetitions in a reduction
    repeated_window_cost: int = 16  # rather than for every window
    shared_cost: int = 24  # rather than in each lane of a GPU, where at least `min_sharing_elements` elements share it
    min_sharing_elements: int = 256
    max_indices: int = 8  # different indices at which a value of some cost is computed rather than stored
    max_repeated_cost: int = 128  # operations, times different indices, up to which it is computed at each of them
    min_slice_ratio: int = 4  # how many times larger a value is than a slice that is read as memory of its own

    # Memory and steps.
    max_ready: int = 64  # regions that are ready to run among which the next one is chosen
    step_group: int = 16  # steps in a row whose values are looked at together to find free memory in the arena
