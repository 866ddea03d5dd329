"""Written by `make stubs` from the table of operations; not to be edited."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

from weft.dtypes import DTypeLike
from weft.random import Generator
from weft.tensor import Tensor

class ValuesIndices(NamedTuple):
    values: Tensor
    indices: Tensor

class TensorMethods:

    def __abs__(self) -> Tensor:
        ...

    def __add__(self, other: Any) -> Tensor:
        ...

    def __and__(self, other: Any) -> Tensor:
        ...

    def __floordiv__(self, other: Any) -> Tensor:
        ...

    def __ge__(self, other: Any) -> Tensor:
        ...

    def __gt__(self, other: Any) -> Tensor:
        ...

    def __iadd__(self, other: Any) -> Tensor:
        ...

    def __iand__(self, other: Any) -> Tensor:
        ...

    def __ifloordiv__(self, other: Any) -> Tensor:
        ...

    def __ilshift__(self, other: Any) -> Tensor:
        ...

    def __imod__(self, other: Any) -> Tensor:
        ...

    def __imul__(self, other: Any) -> Tensor:
        ...

    def __invert__(self) -> Tensor:
        ...

    def __ior__(self, other: Any) -> Tensor:
        ...

    def __ipow__(self, other: Any) -> Tensor:
        ...

    def __irshift__(self, other: Any) -> Tensor:
        ...

    def __isub__(self, other: Any) -> Tensor:
        ...

    def __itruediv__(self, other: Any) -> Tensor:
        ...

    def __ixor__(self, other: Any) -> Tensor:
        ...

    def __le__(self, other: Any) -> Tensor:
        ...

    def __lshift__(self, other: Any) -> Tensor:
        ...

    def __lt__(self, other: Any) -> Tensor:
        ...

    def __matmul__(self, other: Any) -> Tensor:
        ...

    def __mod__(self, other: Any) -> Tensor:
        ...

    def __mul__(self, other: Any) -> Tensor:
        ...

    def __neg__(self) -> Tensor:
        ...

    def __or__(self, other: Any) -> Tensor:
        ...

    def __pow__(self, other: Any) -> Tensor:
        ...

    def __radd__(self, other: Any) -> Tensor:
        ...

    def __rand__(self, other: Any) -> Tensor:
        ...

    def __rfloordiv__(self, other: Any) -> Tensor:
        ...

    def __rmatmul__(self, other: Any) -> Tensor:
        ...

    def __rmod__(self, other: Any) -> Tensor:
        ...

    def __rmul__(self, other: Any) -> Tensor:
        ...

    def __ror__(self, other: Any) -> Tensor:
        ...

    def __rpow__(self, other: Any) -> Tensor:
        ...

    def __rshift__(self, other: Any) -> Tensor:
        ...

    def __rsub__(self, other: Any) -> Tensor:
        ...

    def __rtruediv__(self, other: Any) -> Tensor:
        ...

    def __rxor__(self, other: Any) -> Tensor:
        ...

    def __sub__(self, other: Any) -> Tensor:
        ...

    def __truediv__(self, other: Any) -> Tensor:
        ...

    def __xor__(self, other: Any) -> Tensor:
        ...

    def abs(self) -> Tensor:
        """|x|; the gradient at 0 is 0."""
        ...

    def abs_(self) -> Tensor:
        """`abs`, in place."""
        ...

    def add(self, other: Tensor | float, *, alpha: float = 1) -> Tensor:
        """a + alpha * b. Two bool tensors: logical or."""
        ...

    def add_(self, other: Tensor | float, *, alpha: float = 1) -> Tensor:
        """`add`, in place."""
        ...

    def addbmm(self, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta * x + alpha * the sum of all products of the batch."""
        ...

    def addbmm_(self, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """`addbmm`, in place."""
        ...

    def addcdiv(self, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """x + value * a / b."""
        ...

    def addcdiv_(self, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """`addcdiv`, in place."""
        ...

    def addcmul(self, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """x + value * a * b."""
        ...

    def addcmul_(self, tensor1: Tensor, tensor2: Tensor, *, value: float = 1) -> Tensor:
        """`addcmul`, in place."""
        ...

    def addmm(self, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta * x + alpha * (mat1 @ mat2) of matrices. With beta 0, `input` is ignored, NaN too."""
        ...

    def addmm_(self, mat1: Tensor, mat2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """`addmm`, in place."""
        ...

    def addmv(self, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta * x + alpha * (mat @ vec)."""
        ...

    def addmv_(self, mat: Tensor, vec: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """`addmv`, in place."""
        ...

    def addr(self, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta * x + alpha * the outer product of two vectors."""
        ...

    def addr_(self, vec1: Tensor, vec2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """`addr`, in place."""
        ...

    def all(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Whether every element is not zero; True over none."""
        ...

    def amax(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The maximum over `dim`; NaN wins. The gradient is shared among equal maxima."""
        ...

    def amin(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The minimum over `dim`; NaN wins. The gradient is shared among equal minima."""
        ...

    def any(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Whether any element is not zero; False over none."""
        ...

    def argmax(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The index of the maximum, int64: the first on ties, the first NaN if there is one."""
        ...

    def argmin(self, dim: int | None = None, keepdim: bool = False) -> Tensor:
        """The index of the minimum, int64: the first on ties, the first NaN if there is one."""
        ...

    def argsort(self, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
        """The indices along `dim` that put the elements in order, int64. Always stable."""
        ...

    def argwhere(self) -> Tensor:
        """`nonzero` as one tensor [count, rank]."""
        ...

    def baddbmm(self, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta * x + alpha * (batch1 @ batch2), matrix by matrix."""
        ...

    def baddbmm_(self, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """`baddbmm`, in place."""
        ...

    def bincount(self, weights: Tensor | None = None, minlength: int = 0) -> Tensor:
        """How often each number from 0 on occurs in a vector, or the sum of its weights; as long as the largest number asks
        for, and at least `minlength`."""
        ...

    def bitwise_and(self, other: Tensor | float) -> Tensor:
        """a & b for bool and integer tensors."""
        ...

    def bitwise_and_(self, other: Tensor | float) -> Tensor:
        """`bitwise_and`, in place."""
        ...

    def bitwise_left_shift(self, other: Tensor | float) -> Tensor:
        """a << b for integer tensors."""
        ...

    def bitwise_left_shift_(self, other: Tensor | float) -> Tensor:
        """`bitwise_left_shift`, in place."""
        ...

    def bitwise_not(self) -> Tensor:
        """~x for bool and integer tensors."""
        ...

    def bitwise_not_(self) -> Tensor:
        """`bitwise_not`, in place."""
        ...

    def bitwise_or(self, other: Tensor | float) -> Tensor:
        """a | b for bool and integer tensors."""
        ...

    def bitwise_or_(self, other: Tensor | float) -> Tensor:
        """`bitwise_or`, in place."""
        ...

    def bitwise_right_shift(self, other: Tensor | float) -> Tensor:
        """a >> b for integer tensors; the sign stays."""
        ...

    def bitwise_right_shift_(self, other: Tensor | float) -> Tensor:
        """`bitwise_right_shift`, in place."""
        ...

    def bitwise_xor(self, other: Tensor | float) -> Tensor:
        """a ^ b for bool and integer tensors."""
        ...

    def bitwise_xor_(self, other: Tensor | float) -> Tensor:
        """`bitwise_xor`, in place."""
        ...

    def bmm(self, mat2: Tensor) -> Tensor:
        """[B, M, K] @ [B, K, N]."""
        ...

    def broadcast_to(self, size: Sequence[int]) -> Tensor:
        """`input` broadcast to a shape."""
        ...

    def cast(self, dtype: DTypeLike) -> Tensor:
        """`input` in another dtype: float to integer truncates, anything to bool is `!= 0`."""
        ...

    def ceil(self) -> Tensor:
        """The smallest whole number not below x; the gradient is 0."""
        ...

    def ceil_(self) -> Tensor:
        """`ceil`, in place."""
        ...

    def chunk(self, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
        """At most `chunks` pieces of equal size along `dim` (the last may be smaller)."""
        ...

    def clamp(self, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
        """`input` held between `min` and `max`; the gradient passes where min <= x <= max. NaN stays NaN and gets none."""
        ...

    def clamp_(self, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
        """`clamp`, in place."""
        ...

    def clone(self) -> Tensor:
        """The same value in a tensor of its own; gradients pass."""
        ...

    def cos(self) -> Tensor:
        """The cosine of x in radians."""
        ...

    def cos_(self) -> Tensor:
        """`cos`, in place."""
        ...

    def count_nonzero(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """How many elements are not zero, int64."""
        ...

    def cross(self, other: Tensor, dim: int = -1) -> Tensor:
        """The vector product of vectors of three along `dim`; the other axes broadcast."""
        ...

    def cummax(self, dim: int) -> ValuesIndices:
        """The largest element so far, and where it stands: the latest of equal ones. NaN counts as largest. The gradient
        goes to that element."""
        ...

    def cummin(self, dim: int) -> ValuesIndices:
        """The smallest element so far, and where it stands: the latest of equal ones; once there was a NaN, that."""
        ...

    def cumprod(self, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
        """The product of each element and all before it along `dim`. The gradient is right at zeros (of first order)."""
        ...

    def cumprod_(self, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
        """`cumprod`, in place."""
        ...

    def cumsum(self, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
        """The sum of each element and all before it along `dim`."""
        ...

    def cumsum_(self, dim: int, *, dtype: DTypeLike | None = None) -> Tensor:
        """`cumsum`, in place."""
        ...

    def diag(self, diagonal: int = 0) -> Tensor:
        """A vector as the diagonal of a matrix; the diagonal of a matrix as a vector."""
        ...

    def diag_embed(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
        """The last axis laid along a diagonal of two new axes, zeros elsewhere."""
        ...

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """The elements with indices (i, i + offset) on two axes, which become the last axis."""
        ...

    def diff(self, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
        """Each element less the one before it along `dim`, `n` times over; of bools, whether they differ."""
        ...

    def div(self, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
        """a / b; integers divide in the default dtype, float32. `rounding_mode` is None, 'floor' or 'trunc'."""
        ...

    def div_(self, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
        """`div`, in place."""
        ...

    def dot(self, tensor: Tensor) -> Tensor:
        """The sum of products of two vectors."""
        ...

    def eq(self, other: Tensor | float) -> Tensor:
        """a == b, bool; NaN equals nothing."""
        ...

    def eq_(self, other: Tensor | float) -> Tensor:
        """`eq`, in place."""
        ...

    def erf(self) -> Tensor:
        """The error function."""
        ...

    def erf_(self) -> Tensor:
        """`erf`, in place."""
        ...

    def exp(self) -> Tensor:
        """e to the power x."""
        ...

    def exp2(self) -> Tensor:
        """2 to the power x."""
        ...

    def exp2_(self) -> Tensor:
        """`exp2`, in place."""
        ...

    def exp_(self) -> Tensor:
        """`exp`, in place."""
        ...

    @overload
    def expand(self, *sizes: int | Sequence[int]) -> Tensor:
        """Repeat axes of extent 1 and add leading axes; -1 keeps an extent."""
        ...
    @overload
    def expand(self, sizes: Sequence[int]) -> Tensor:
        """Repeat axes of extent 1 and add leading axes; -1 keeps an extent."""
        ...

    def expm1(self) -> Tensor:
        """exp(x) - 1, precise near 0."""
        ...

    def expm1_(self) -> Tensor:
        """`expm1`, in place."""
        ...

    def flatten(self, start_dim: int = 0, end_dim: int = -1) -> Tensor:
        """The axes from `start_dim` to `end_dim` made one."""
        ...

    @overload
    def flip(self, *dims: int | Sequence[int]) -> Tensor:
        """The order of elements reversed along `dims`."""
        ...
    @overload
    def flip(self, dims: Sequence[int]) -> Tensor:
        """The order of elements reversed along `dims`."""
        ...

    def fliplr(self) -> Tensor:
        """The second axis reversed."""
        ...

    def flipud(self) -> Tensor:
        """The first axis reversed."""
        ...

    def floor(self) -> Tensor:
        """The largest whole number not above x; the gradient is 0."""
        ...

    def floor_(self) -> Tensor:
        """`floor`, in place."""
        ...

    def floor_divide(self, other: Tensor | float) -> Tensor:
        """The quotient rounded down, from the exact remainder. Integer division by zero gives 0, and the least integer by
        -1 itself."""
        ...

    def floor_divide_(self, other: Tensor | float) -> Tensor:
        """`floor_divide`, in place."""
        ...

    def fmod(self, other: Tensor | float) -> Tensor:
        """The exact rest of a / b with the sign of the dividend, as C's fmod."""
        ...

    def fmod_(self, other: Tensor | float) -> Tensor:
        """`fmod`, in place."""
        ...

    def gather(self, dim: int, index: Tensor) -> Tensor:
        """Elements of `input` along `dim`: `out[i][j] = x[index[i][j]][j]` for `dim=0`. `index` has the rank of `input`."""
        ...

    def ge(self, other: Tensor | float) -> Tensor:
        """a >= b, bool."""
        ...

    def ge_(self, other: Tensor | float) -> Tensor:
        """`ge`, in place."""
        ...

    def gt(self, other: Tensor | float) -> Tensor:
        """a > b, bool."""
        ...

    def gt_(self, other: Tensor | float) -> Tensor:
        """`gt`, in place."""
        ...

    def hardshrink(self, lambd: float = 0.5) -> Tensor:
        """x outside [-lambd, lambd], 0 inside; NaN stays NaN."""
        ...

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
        """How many elements fall into each of `bins` equal parts of [min, max]; between the smallest and the largest
        element if both are 0. Elements outside and NaN are not counted."""
        ...

    def index_add(self, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
        """`input` with slices of `source`, times `alpha`, added to its slices `index` along `dim`."""
        ...

    def index_add_(self, dim: int, index: Tensor, source: Tensor, alpha: float = 1) -> Tensor:
        """`index_add`, in place."""
        ...

    def index_copy(self, dim: int, index: Tensor, source: Tensor) -> Tensor:
        """`input` with slices of `source` written over its slices `index` along `dim`; the last one stays."""
        ...

    def index_copy_(self, dim: int, index: Tensor, source: Tensor) -> Tensor:
        """`index_copy`, in place."""
        ...

    def index_fill(self, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
        """`input` with its slices `index` along `dim` filled with one number."""
        ...

    def index_fill_(self, dim: int, index: Tensor, value: Tensor | float) -> Tensor:
        """`index_fill`, in place."""
        ...

    def index_put(self, indices: Sequence[Tensor], values: Tensor | float, accumulate: bool = False) -> Tensor:
        """`input` with `values` written to (with `accumulate`, added at) integer tensors for its first axes."""
        ...

    def index_put_(self, indices: Sequence[Tensor], values: Tensor | float, accumulate: bool = False) -> Tensor:
        """`index_put`, in place."""
        ...

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """The slices of `input` along `dim` with the numbers in `index`, a vector of integers."""
        ...

    def inner(self, other: Tensor) -> Tensor:
        """Products summed over the last axis of both; with a scalar, plain products."""
        ...

    def isfinite(self) -> Tensor:
        """Where x is neither infinite nor NaN."""
        ...

    def isinf(self) -> Tensor:
        """Where x is infinite."""
        ...

    def isnan(self) -> Tensor:
        """Where x is not a number."""
        ...

    def kron(self, other: Tensor) -> Tensor:
        """The Kronecker product: every element of `input` times all of `other`."""
        ...

    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
        """The `k`-th smallest element along `dim`, k counted from 1, and where it stands."""
        ...

    def le(self, other: Tensor | float) -> Tensor:
        """a <= b, bool."""
        ...

    def le_(self, other: Tensor | float) -> Tensor:
        """`le`, in place."""
        ...

    def lerp(self, end: Tensor, weight: Tensor | float) -> Tensor:
        """a + weight * (b - a)."""
        ...

    def lerp_(self, end: Tensor, weight: Tensor | float) -> Tensor:
        """`lerp`, in place."""
        ...

    def log(self) -> Tensor:
        """The natural logarithm; -inf at 0, NaN below."""
        ...

    def log10(self) -> Tensor:
        """The logarithm to base 10."""
        ...

    def log10_(self) -> Tensor:
        """`log10`, in place."""
        ...

    def log1p(self) -> Tensor:
        """log(1 + x), precise near 0."""
        ...

    def log1p_(self) -> Tensor:
        """`log1p`, in place."""
        ...

    def log2(self) -> Tensor:
        """The logarithm to base 2."""
        ...

    def log2_(self) -> Tensor:
        """`log2`, in place."""
        ...

    def log_(self) -> Tensor:
        """`log`, in place."""
        ...

    def log_softmax(self, dim: int) -> Tensor:
        """log(softmax(x)) without overflow."""
        ...

    def logcumsumexp(self, dim: int) -> Tensor:
        """log(cumsum(exp(x))) without overflow."""
        ...

    def logical_and(self, other: Tensor | float) -> Tensor:
        """Both not zero."""
        ...

    def logical_and_(self, other: Tensor | float) -> Tensor:
        """`logical_and`, in place."""
        ...

    def logical_not(self) -> Tensor:
        """Equal to zero."""
        ...

    def logical_not_(self) -> Tensor:
        """`logical_not`, in place."""
        ...

    def logical_or(self, other: Tensor | float) -> Tensor:
        """Either not zero."""
        ...

    def logical_or_(self, other: Tensor | float) -> Tensor:
        """`logical_or`, in place."""
        ...

    def logical_xor(self, other: Tensor | float) -> Tensor:
        """Exactly one not zero."""
        ...

    def logical_xor_(self, other: Tensor | float) -> Tensor:
        """`logical_xor`, in place."""
        ...

    def logsumexp(self, dim: int | Sequence[int] | None, keepdim: bool = False) -> Tensor:
        """log(sum(exp(x))) over `dim`, shifted by the maximum; -inf over nothing but -inf, with gradient 0 there."""
        ...

    def lt(self, other: Tensor | float) -> Tensor:
        """a < b, bool."""
        ...

    def lt_(self, other: Tensor | float) -> Tensor:
        """`lt`, in place."""
        ...

    def masked_fill(self, mask: Tensor, value: Tensor | float) -> Tensor:
        """`input` with `value` where the bool mask holds."""
        ...

    def masked_fill_(self, mask: Tensor, value: Tensor | float) -> Tensor:
        """`masked_fill`, in place."""
        ...

    def masked_scatter(self, mask: Tensor, source: Tensor) -> Tensor:
        """`input` with the elements of `source`, one after the other, where the bool mask (which broadcasts) holds."""
        ...

    def masked_scatter_(self, mask: Tensor, source: Tensor) -> Tensor:
        """`masked_scatter`, in place."""
        ...

    def masked_select(self, mask: Tensor) -> Tensor:
        """The elements of `input` where the bool mask holds, as a vector; both broadcast. Gradients pass."""
        ...

    def matmul(self, other: Tensor) -> Tensor:
        """The matrix product of the last two axes; the axes before them broadcast. A vector is a row on the left and a
        column on the right, and that axis is dropped from the result."""
        ...

    def matrix_power(self, n: int) -> Tensor:
        """The product of `n` square matrices `input`; the identity for 0."""
        ...

    @overload
    def max(self) -> Tensor:
        """The maximum of all elements; with `dim`, (values, indices), the gradient to the first maximum; with a tensor
        instead of `dim`, `maximum`."""
        ...
    @overload
    def max(self, dim: int, keepdim: bool = False) -> ValuesIndices:
        """The maximum of all elements; with `dim`, (values, indices), the gradient to the first maximum; with a tensor
        instead of `dim`, `maximum`."""
        ...
    @overload
    def max(self, other: Tensor) -> Tensor:
        """The maximum of all elements; with `dim`, (values, indices), the gradient to the first maximum; with a tensor
        instead of `dim`, `maximum`."""
        ...

    def maximum(self, other: Tensor | float) -> Tensor:
        """The larger of the two; NaN if either is. On ties each side gets half the gradient."""
        ...

    def mean(self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
        """The mean over `dim`, for float tensors; NaN over no elements."""
        ...

    @overload
    def median(self) -> Tensor:
        """The middle element in order (of two, the lower one) along `dim` and where it stands; without `dim`, of all
        elements, the value alone, whose gradient is shared among equal elements. A NaN anywhere is the median."""
        ...
    @overload
    def median(self, dim: int, keepdim: bool = False) -> ValuesIndices:
        """The middle element in order (of two, the lower one) along `dim` and where it stands; without `dim`, of all
        elements, the value alone, whose gradient is shared among equal elements. A NaN anywhere is the median."""
        ...

    @overload
    def min(self) -> Tensor:
        """The minimum of all elements; with `dim`, (values, indices); with a tensor instead of `dim`, `minimum`."""
        ...
    @overload
    def min(self, dim: int, keepdim: bool = False) -> ValuesIndices:
        """The minimum of all elements; with `dim`, (values, indices); with a tensor instead of `dim`, `minimum`."""
        ...
    @overload
    def min(self, other: Tensor) -> Tensor:
        """The minimum of all elements; with `dim`, (values, indices); with a tensor instead of `dim`, `minimum`."""
        ...

    def minimum(self, other: Tensor | float) -> Tensor:
        """The smaller of the two; NaN if either is. On ties each side gets half the gradient."""
        ...

    def mm(self, mat2: Tensor) -> Tensor:
        """[M, K] @ [K, N]."""
        ...

    def movedim(self, source: int, destination: int) -> Tensor:
        """One axis taken out and put in at another place."""
        ...

    def msort(self) -> Tensor:
        """The values in ascending order along the first axis."""
        ...

    def mul(self, other: Tensor | float) -> Tensor:
        """a * b. Two bool tensors: logical and."""
        ...

    def mul_(self, other: Tensor | float) -> Tensor:
        """`mul`, in place."""
        ...

    def mv(self, vec: Tensor) -> Tensor:
        """[M, K] @ [K]."""
        ...

    def narrow(self, dim: int, start: int, length: int) -> Tensor:
        """The part of `dim` from `start` on with `length` elements."""
        ...

    def ne(self, other: Tensor | float) -> Tensor:
        """a != b, bool."""
        ...

    def ne_(self, other: Tensor | float) -> Tensor:
        """`ne`, in place."""
        ...

    def neg(self) -> Tensor:
        """-x."""
        ...

    def neg_(self) -> Tensor:
        """`neg`, in place."""
        ...

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        """The indices of the elements that are not zero: [count, rank] int64, in row-major order; with `as_tuple`, one
        vector for each axis."""
        ...

    def norm(self, p: float | str | None = 'fro', dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The vector norm of order `p` over `dim` ('fro' and None mean 2). Matrix norms are in `weft.linalg`."""
        ...

    def outer(self, vec2: Tensor) -> Tensor:
        """[M] and [N] to the [M, N] products of each with each."""
        ...

    @overload
    def permute(self, *dims: int | Sequence[int]) -> Tensor:
        """The axes in another order."""
        ...
    @overload
    def permute(self, dims: Sequence[int]) -> Tensor:
        """The axes in another order."""
        ...

    def pow(self, exponent: Tensor | float) -> Tensor:
        """a to the power b. Small whole exponents, 0.5 and -1 become products, roots and quotients."""
        ...

    def pow_(self, exponent: Tensor | float) -> Tensor:
        """`pow`, in place."""
        ...

    def prelu(self, weight: Tensor) -> Tensor:
        """x above 0, weight * x below; one weight, or one for each channel (axis 1)."""
        ...

    def prod(self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
        """The product over `dim`. Its gradient is right with zeros among the factors (of first order)."""
        ...

    def put(self, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
        """`input` with the elements of `source` written to (or added at) places of the flattened tensor; the last stays."""
        ...

    def put_(self, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
        """`put`, in place."""
        ...

    def reciprocal(self) -> Tensor:
        """1 / x."""
        ...

    def reciprocal_(self) -> Tensor:
        """`reciprocal`, in place."""
        ...

    def relu(self) -> Tensor:
        """max(x, 0), with slope 0 at 0; NaN stays NaN."""
        ...

    def relu_(self) -> Tensor:
        """`relu`, in place."""
        ...

    def remainder(self, other: Tensor | float) -> Tensor:
        """The exact rest of a / b with the sign of the divisor, as Python's %. With an infinite divisor it is a, or b where
        the signs differ; by zero it is NaN, or 0 for integers."""
        ...

    def remainder_(self, other: Tensor | float) -> Tensor:
        """`remainder`, in place."""
        ...

    @overload
    def repeat(self, *sizes: int | Sequence[int]) -> Tensor:
        """The whole tensor `sizes[i]` times along axis i; more sizes than axes add leading ones."""
        ...
    @overload
    def repeat(self, sizes: Sequence[int]) -> Tensor:
        """The whole tensor `sizes[i]` times along axis i; more sizes than axes add leading ones."""
        ...

    def repeat_interleave(self, repeats: int | Tensor, dim: int | None = None) -> Tensor:
        """Every element `repeats` times in a row along `dim`; a tensor says how often for each one (outside compile)."""
        ...

    @overload
    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The elements in row-major order under another shape; one extent may be -1."""
        ...
    @overload
    def reshape(self, shape: Sequence[int]) -> Tensor:
        """The elements in row-major order under another shape; one extent may be -1."""
        ...

    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
        """Elements moved by `shifts` along `dims`, those pushed out coming in at the other end; without `dims`, of the
        flattened tensor."""
        ...

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
        """Turned by k quarter turns from the first of `dims` towards the second."""
        ...

    def round(self) -> Tensor:
        """The nearest whole number, ties to even; the gradient is 0."""
        ...

    def round_(self) -> Tensor:
        """`round`, in place."""
        ...

    def rsqrt(self) -> Tensor:
        """1 / sqrt(x)."""
        ...

    def rsqrt_(self) -> Tensor:
        """`rsqrt`, in place."""
        ...

    def scatter(self, dim: int, index: Tensor, src: Tensor | float, reduce: str | None = None) -> Tensor:
        """`input` with `src` written to `index` along `dim`: `out[index[i][j]][j] = src[i][j]` for `dim=0`. Of several
        entries for one place the last stays. `reduce` is None, 'add' or 'multiply'; `src` may be a number."""
        ...

    def scatter_(self, dim: int, index: Tensor, src: Tensor | float, reduce: str | None = None) -> Tensor:
        """`scatter`, in place."""
        ...

    def scatter_add(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """`input` with `src` added at `index` along `dim`, in order."""
        ...

    def scatter_add_(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """`scatter_add`, in place."""
        ...

    def scatter_reduce(self, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True) -> Tensor:
        """`input` folded with `src` at `index` along `dim`. `reduce`: 'sum', 'prod', 'mean', 'amax' or 'amin'. Without
        `include_self` the elements of `input` that something goes to do not count; the others stay."""
        ...

    def scatter_reduce_(self, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True) -> Tensor:
        """`scatter_reduce`, in place."""
        ...

    def select(self, dim: int, index: int) -> Tensor:
        """One slice along `dim`, without that axis."""
        ...

    def sigmoid(self) -> Tensor:
        """1 / (1 + e^-x), from e^-|x| so that nothing overflows."""
        ...

    def sigmoid_(self) -> Tensor:
        """`sigmoid`, in place."""
        ...

    def sign(self) -> Tensor:
        """-1, 0 or 1; NaN gives 0, a bool itself. No gradient."""
        ...

    def sign_(self) -> Tensor:
        """`sign`, in place."""
        ...

    def sin(self) -> Tensor:
        """The sine of x in radians."""
        ...

    def sin_(self) -> Tensor:
        """`sin`, in place."""
        ...

    def softmax(self, dim: int) -> Tensor:
        """e^x over its sum along `dim`, shifted by the maximum. Multiplies by 1/sum: one division a row."""
        ...

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:
        """(values, indices) in order along `dim`."""
        ...

    def split(self, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Pieces along `dim`: of one size (the last may be smaller), or of the sizes listed."""
        ...

    def sqrt(self) -> Tensor:
        """The square root; NaN below 0."""
        ...

    def sqrt_(self) -> Tensor:
        """`sqrt`, in place."""
        ...

    def square(self) -> Tensor:
        """x * x; of bools, as int64."""
        ...

    def square_(self) -> Tensor:
        """`square`, in place."""
        ...

    def squeeze(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """Drop axes of extent 1: all of them, or those of `dim` that have extent 1."""
        ...

    def std(self, dim: int | Sequence[int] | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None) -> Tensor:
        """The square root of `var`; the gradient where it is 0 is 0."""
        ...

    def sub(self, other: Tensor | float, *, alpha: float = 1) -> Tensor:
        """a - alpha * b."""
        ...

    def sub_(self, other: Tensor | float, *, alpha: float = 1) -> Tensor:
        """`sub`, in place."""
        ...

    def sum(self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
        """The sum over `dim`."""
        ...

    def swapaxes(self, axis0: int, axis1: int) -> Tensor:
        """Two axes exchanged: `transpose`."""
        ...

    def t(self) -> Tensor:
        """The transpose of a matrix; vectors and scalars stay."""
        ...

    def take(self, index: Tensor) -> Tensor:
        """Elements of the flattened tensor by number, in the shape of `index`; negative numbers count from the end."""
        ...

    def take_along_dim(self, indices: Tensor, dim: int | None = None) -> Tensor:
        """`gather` with axes of extent 1 repeated, and negative indices counted from the end; without `dim`, of the
        elements in a row, by numbers that are not negative."""
        ...

    def tan(self) -> Tensor:
        """The tangent of x in radians."""
        ...

    def tan_(self) -> Tensor:
        """`tan`, in place."""
        ...

    def tanh(self) -> Tensor:
        """The hyperbolic tangent."""
        ...

    def tanh_(self) -> Tensor:
        """`tanh`, in place."""
        ...

    def tensor_split(self, indices_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """As many parts as asked for, the first ones larger by one where it does not come out even; or parts cut before the
        given indices."""
        ...

    def tensordot(self, other: Tensor, dims: int | Sequence[Sequence[int]] = 2) -> Tensor:
        """Products summed over axes of both: the last `dims` of `input` with the first of `other`, or two lists of axes."""
        ...

    @overload
    def tile(self, *dims: int | Sequence[int]) -> Tensor:
        """`repeat` that also takes fewer counts than axes."""
        ...
    @overload
    def tile(self, dims: Sequence[int]) -> Tensor:
        """`repeat` that also takes fewer counts than axes."""
        ...

    def topk(self, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> ValuesIndices:
        """The `k` largest (or smallest) elements along `dim`, in order, and where they stand. Of equal elements the first
        come first; always sorted."""
        ...

    def trace(self) -> Tensor:
        """The sum of a matrix's diagonal."""
        ...

    def transpose(self, dim0: int, dim1: int) -> Tensor:
        """Two axes exchanged."""
        ...

    def tril(self, diagonal: int = 0) -> Tensor:
        """The elements on and below a diagonal, zeros above."""
        ...

    def tril_(self, diagonal: int = 0) -> Tensor:
        """`tril`, in place."""
        ...

    def triu(self, diagonal: int = 0) -> Tensor:
        """The elements on and above a diagonal, zeros below."""
        ...

    def triu_(self, diagonal: int = 0) -> Tensor:
        """`triu`, in place."""
        ...

    def trunc(self) -> Tensor:
        """The whole part of x, towards 0; the gradient is 0."""
        ...

    def trunc_(self) -> Tensor:
        """`trunc`, in place."""
        ...

    def unbind(self, dim: int = 0) -> tuple[Tensor, ...]:
        """Every slice along `dim`, without that axis."""
        ...

    def unflatten(self, dim: int, sizes: Sequence[int]) -> Tensor:
        """One axis made several; one of `sizes` may be -1."""
        ...

    def unfold(self, dimension: int, size: int, step: int) -> Tensor:
        """Windows of `size` elements, `step` apart, along an axis; the places in a window are a new last axis."""
        ...

    def unique(self, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
        """The different elements in ascending order (slices along `dim`, if given); on request also, for each element, the
        place of its equal, and how often each occurs. Every NaN is different."""
        ...

    def unique_consecutive(self, return_inverse: bool = False, return_counts: bool = False) -> Any:
        """The elements of the flattened tensor that differ from the one before; `unique`'s extras."""
        ...

    def unsqueeze(self, dim: int) -> Tensor:
        """A new axis of extent 1 at `dim`."""
        ...

    def vander(self, N: int | None = None, increasing: bool = False) -> Tensor:
        """Powers of a vector's elements as rows, from the highest down to 0, or up if `increasing`."""
        ...

    def var(self, dim: int | Sequence[int] | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None) -> Tensor:
        """The variance over `dim`: the sum of squared differences from the mean, divided by `count - correction`, which
        is 1, or 0 where it is not `unbiased`. A bool in the place of `dim` is `unbiased`."""
        ...

    @overload
    def view(self, *shape: int | Sequence[int]) -> Tensor:
        """`reshape`; what is written to the result is written to `input`."""
        ...
    @overload
    def view(self, shape: Sequence[int]) -> Tensor:
        """`reshape`; what is written to the result is written to `input`."""
        ...
