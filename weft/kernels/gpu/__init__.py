"""GPU schedules: a nest, or a problem such as a matrix product, becomes a kernel of workgroups, subgroups and lanes.

Which lane computes what, and in which order partial results are combined, follows from shapes and the device's limits;
results have the same bits for any number of workgroups. Nothing here knows a vendor, a driver or the text of a kernel:
schedules consult `target.Target` and build statements of `kernels.ir`.

**Rows.** A kernel with reductions along rows (`rows`, `chunked_rows`) is composed of three objects:

- *Ownership* (`row_ownership`): which lanes share a row, which elements each of them has, and the loops over those.
  `StridedElements` (ends known at run time), `TileElements` (the row is one `Tile`), `RoundElements` (rounds of tiles).
- *Staging* (`row_staging`): where elements are found again that several passes need. `DirectStaging` and
  `RereadStaging` (memory), `RegisterStaging`, `shared_staging.SharedStaging`, `row_prefetch.PrefetchStaging`.
- *Emission* (`row_emission`): the statements of one pass, from the loops of the one and the accesses of the other.

`row_kernel.RowKernel` holds the three, and the combination of partial results (`row_combination`).

The path of one reduction, the maximum in a softmax over rows of 50,257 elements:

1. `schedule.schedule` gets the nest: points (rows), one inner axis, stages (the maximum, then the sum), inner stores.
2. `rows.schedule_rows` splits off the axis that lanes share and chooses a tile from its extent; registers do not hold
   the row, so ownership is `RoundElements`, and `choose_staging` finds that three passes read the same loads: they are
   copied into shared memory (`SharedStaging`), as many rounds as there is room for.
3. `RowKernel.emit_row` emits the copies, then for each stage one pass: `staging.begin_pass` gives a `RowPass` (private
   arrays, loads, values in terms of what is staged), to which the kernel adds an `Update` of `max_part`, and
   `emission.emit_pass` puts that into the loops over rounds, steps and vectors, inside a `Reduction`.
4. `TreeCombination.combine` makes `max` of every lane's `max_part`: exchanges inside subgroups, then shared memory.
5. The last pass stores elements, and `RowKernel.launch` adds the loop over rows, the shared arrays and the geometry.
"""
