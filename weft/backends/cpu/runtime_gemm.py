"""Matrix products in the native runtime: `tile` runs one tile of a step, by CBLAS or by the simple product below.

`weft_sgemm` and `weft_dgemm` have the signature of CBLAS (row-major, beta 0) and need nothing; they serve where NumPy
brings no OpenBLAS. Each goes through a row of C eight columns at a time.
"""

from __future__ import annotations

import re

from weft.backends.cpu import runtime as cpu_runtime

_TILE = r"""
; One tile of a batched product, then the epilogue on it. Without anything to sum up the tile is zero.
define internal void @tile(ptr %step, ptr %slots, i64 %t, ptr %range) {
entry:
  %tiles_m = step tiles_m
  %tiles_n = step tiles_n
  %per_batch = mul i64 %tiles_m, %tiles_n
  %batch = sdiv i64 %t, %per_batch
  %rest = srem i64 %t, %per_batch
  %inner.count = step inner
  %outer = sdiv i64 %batch, %inner.count
  %inner = srem i64 %batch, %inner.count
  %row.across = sdiv i64 %rest, %tiles_n
  %column.across = srem i64 %rest, %tiles_n
  %row.down = srem i64 %rest, %tiles_m
  %column.down = sdiv i64 %rest, %tiles_m
  %down.word = step down
  %down = icmp ne i64 %down.word, 0
  %row = select i1 %down, i64 %row.down, i64 %row.across
  %column = select i1 %down, i64 %column.down, i64 %column.across
  %m.all = step m
  %n.all = step n
  %k = step k
  %tile_m = step tile_m
  %tile_n = step tile_n
  %itemsize = step itemsize
  %row0 = mul i64 %row, %tile_m
  %row.over = add i64 %row0, %tile_m
  %row1 = call i64 @llvm.smin.i64(i64 %row.over, i64 %m.all)
  %m = sub i64 %row1, %row0
  %col0 = mul i64 %column, %tile_n
  %col.over = add i64 %col0, %tile_n
  %col1 = call i64 @llvm.smin.i64(i64 %col.over, i64 %n.all)
  %n = sub i64 %col1, %col0
  %ta.word = step transpose_a
  %ta = trunc i64 %ta.word to i32
  %a.swapped = icmp eq i32 %ta, TRANSPOSED
  %a.down = select i1 %a.swapped, i64 0, i64 %row0
  %a.along = select i1 %a.swapped, i64 %row0, i64 0
  %tb.word = step transpose_b
  %tb = trunc i64 %tb.word to i32
  %b.swapped = icmp eq i32 %tb, TRANSPOSED
  %b.down = select i1 %b.swapped, i64 %col0, i64 0
  %b.along = select i1 %b.swapped, i64 0, i64 %col0
  %c.down = add i64 %row0, 0
  %c.along = add i64 %col0, 0
MATRICES
  %empty = icmp eq i64 %k, 0
  br i1 %empty, label %clear, label %multiply
clear:
  %z = phi i64 [ 0, %entry ], [ %z.next, %clear ]
  %z.next = add i64 %z, 1
  %z.offset = mul i64 %z, %c.row
  %z.start = getelementptr i8, ptr %c, i64 %z.offset
  %z.bytes = mul i64 %n, %itemsize
  call void @llvm.memset.p0.i64(ptr %z.start, i8 0, i64 %z.bytes, i1 false)
  %z.more = icmp slt i64 %z.next, %m
  br i1 %z.more, label %clear, label %after
multiply:
  %function = step function ptr
  %is.single = icmp eq i64 %itemsize, 4
  br i1 %is.single, label %single, label %double
single:
  call void %function(i32 101, i32 %ta, i32 %tb, i64 %m, i64 %n, i64 %k, float 1.0, ptr %a, i64 %lda, ptr %b, i64 %ldb, float 0.0, ptr %c, i64 %ldc)
  br label %after
double:
  call void %function(i32 101, i32 %ta, i32 %tb, i64 %m, i64 %n, i64 %k, double 1.0, ptr %a, i64 %lda, ptr %b, i64 %ldb, double 0.0, ptr %c, i64 %ldc)
  br label %after
after:
  %epilogue = step epilogue ptr
  %has = icmp ne ptr %epilogue, null
  br i1 %has, label %finish, label %out
finish:
  store i64 %batch, ptr %range
  %range1 = getelementptr i64, ptr %range, i64 1
  store i64 %row0, ptr %range1
  %range2 = getelementptr i64, ptr %range, i64 2
  store i64 %row1, ptr %range2
  %range3 = getelementptr i64, ptr %range, i64 3
  store i64 %col0, ptr %range3
  %range4 = getelementptr i64, ptr %range, i64 4
  store i64 %col1, ptr %range4
  %args = step epilogue_args ptr
  call void %epilogue(ptr %slots, ptr %args, ptr %range)
  br label %out
out:
  ret void
}
"""  # noqa: E501

# The address of the tile's first element of matrix X, and the elements from one row to the next.
_MATRIX = r"""
  %X.slot = step X_slot
  %X.place = getelementptr ptr, ptr %slots, i64 %X.slot
  %X.base = load ptr, ptr %X.place
  %X.offset = step X_offset
  %X.batch = step X_batch
  %X.outer = step X_outer
  %X.row = step X_row
  %X.00 = mul i64 %outer, %X.outer
  %X.01 = mul i64 %inner, %X.batch
  %X.0 = add i64 %X.00, %X.01
  %X.1 = mul i64 %X.down, %X.row
  %X.2 = mul i64 %X.along, %itemsize
  %X.3 = add i64 %X.offset, %X.0
  %X.4 = add i64 %X.1, %X.2
  %X.5 = add i64 %X.3, %X.4
  %X = getelementptr i8, ptr %X.base, i64 %X.5
  %ldX = sdiv i64 %X.row, %itemsize"""

_PRODUCT = r"""
define void @NAME(i32 %order, i32 %ta, i32 %tb, i64 %m, i64 %n, i64 %k, T %alpha, ptr %a, i64 %lda, ptr %b, i64 %ldb, T %beta, ptr %c, i64 %ldc) {
entry:
  %a.swapped = icmp eq i32 %ta, TRANSPOSED
  %b.swapped = icmp eq i32 %tb, TRANSPOSED
  %a.i = select i1 %a.swapped, i64 1, i64 %lda
  %a.k = select i1 %a.swapped, i64 %lda, i64 1
  %b.k = select i1 %b.swapped, i64 1, i64 %ldb
  %b.j = select i1 %b.swapped, i64 %ldb, i64 1
  %b.j1 = insertelement <8 x i64> poison, i64 %b.j, i64 0
  %b.js = shufflevector <8 x i64> %b.j1, <8 x i64> poison, <8 x i32> zeroinitializer
  %lanes = mul <8 x i64> %b.js, COUNTING
  br label %row
row:
  %i = phi i64 [ 0, %entry ], [ %i.next, %row.end ]
  %a.start = mul i64 %i, %a.i
  %c.start = mul i64 %i, %ldc
  br label %column
column:
  %j = phi i64 [ 0, %row ], [ %j.next, %column.end ]
  %left = sub i64 %n, %j
  %left1 = insertelement <8 x i64> poison, i64 %left, i64 0
  %lefts = shufflevector <8 x i64> %left1, <8 x i64> poison, <8 x i32> zeroinitializer
  %mask = icmp slt <8 x i64> COUNTING, %lefts
  %b.start = mul i64 %j, %b.j
  br label %inner
inner:
  %q = phi i64 [ 0, %column ], [ %q.next, %inner ]
  %sum = phi <8 x T> [ zeroinitializer, %column ], [ %sum.next, %inner ]
  %a.step = mul i64 %q, %a.k
  %a.at = add i64 %a.step, %a.start
  %a.place = getelementptr T, ptr %a, i64 %a.at
  %x = load T, ptr %a.place
  %x1 = insertelement <8 x T> poison, T %x, i64 0
  %xs = shufflevector <8 x T> %x1, <8 x T> poison, <8 x i32> zeroinitializer
  %b.step = mul i64 %q, %b.k
  %b.at = add i64 %b.step, %b.start
  %b.place = getelementptr T, ptr %b, i64 %b.at
  %b.places = getelementptr T, ptr %b.place, <8 x i64> %lanes
  %ys = call <8 x T> @llvm.masked.gather.v8S.v8p0(<8 x ptr> align SIZE %b.places, <8 x i1> %mask, <8 x T> zeroinitializer)
  %sum.next = call <8 x T> @llvm.fma.v8S(<8 x T> %xs, <8 x T> %ys, <8 x T> %sum)
  %q.next = add i64 %q, 1
  %q.more = icmp slt i64 %q.next, %k
  br i1 %q.more, label %inner, label %column.end
column.end:
  %c.at = add i64 %c.start, %j
  %c.place = getelementptr T, ptr %c, i64 %c.at
  call void @llvm.masked.store.v8S.p0(<8 x T> %sum.next, ptr align SIZE %c.place, <8 x i1> %mask)
  %j.next = add i64 %j, 8
  %j.more = icmp slt i64 %j.next, %n
  br i1 %j.more, label %column, label %row.end
row.end:
  %i.next = add i64 %i, 1
  %i.more = icmp slt i64 %i.next, %m
  br i1 %i.more, label %row, label %out
out:
  ret void
}

declare <8 x T> @llvm.masked.gather.v8S.v8p0(<8 x ptr>, <8 x i1>, <8 x T>)
declare <8 x T> @llvm.fma.v8S(<8 x T>, <8 x T>, <8 x T>)
declare void @llvm.masked.store.v8S.p0(<8 x T>, ptr, <8 x i1>)
"""  # noqa: E501


def module_part() -> str:
    """`tile`, `weft_sgemm` and `weft_dgemm` as LLVM IR."""
    matrices = "".join(_MATRIX.replace("X", name) for name in "abc")
    tile = cpu_runtime.expand(_TILE.replace("\nMATRICES", matrices))
    counting = "<" + ", ".join(f"i64 {lane}" for lane in range(8)) + ">"
    parts = [tile]
    for name, kind, short, size in (("weft_sgemm", "float", "f32", 4), ("weft_dgemm", "double", "f64", 8)):
        text = re.sub(r"\bT\b", kind, _PRODUCT.replace("v8S", f"v8{short}"))
        parts.append(text.replace("SIZE", str(size)).replace("NAME", name).replace("COUNTING", counting))
    return "".join(parts).replace("TRANSPOSED", str(cpu_runtime.TRANSPOSED))
