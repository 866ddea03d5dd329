"""Written by `make stubs` from the table of operations; not to be edited."""

from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, overload

from weft.base.dtypes import DTypeLike
from weft.random.generator import Generator
from weft.core.tensor import Tensor
from weft.plan.device import Device

class Frexp(NamedTuple):
    mantissa: Tensor
    exponent: Tensor

class MinMax(NamedTuple):
    min: Tensor
    max: Tensor

class SignLog(NamedTuple):
    sign: Tensor
    logabsdet: Tensor

class StdMean(NamedTuple):
    std: Tensor
    mean: Tensor

class ValuesIndices(NamedTuple):
    values: Tensor
    indices: Tensor

class VarMean(NamedTuple):
    var: Tensor
    mean: Tensor

class TensorMethods:

    @property
    def H(self) -> Tensor:
        """The transpose of a matrix, since numbers are real."""
        ...

    @property
    def T(self) -> Tensor:
        """The transpose of a matrix."""
        ...

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

    def __getitem__(self, key: Any) -> Tensor:
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

    def __rlshift__(self, other: Any) -> Tensor:
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

    def __rrshift__(self, other: Any) -> Tensor:
        ...

    def __rshift__(self, other: Any) -> Tensor:
        ...

    def __rsub__(self, other: Any) -> Tensor:
        ...

    def __rtruediv__(self, other: Any) -> Tensor:
        ...

    def __rxor__(self, other: Any) -> Tensor:
        ...

    def __setitem__(self, key: Any, value: Any) -> None:
        ...

    def __sub__(self, other: Any) -> Tensor:
        ...

    def __truediv__(self, other: Any) -> Tensor:
        ...

    def __xor__(self, other: Any) -> Tensor:
        ...

    def _move_with_history(self, device: Device) -> Tensor:
        """The tensor on another device, through which gradients flow back."""
        ...

    def abs(self) -> Tensor:
        """|x|; the gradient at 0 is 0."""
        ...

    def abs_(self) -> Tensor:
        """`abs`, in place."""
        ...

    def absolute(self) -> Tensor:
        """|x|; the gradient at 0 is 0."""
        ...

    def absolute_(self) -> Tensor:
        """`absolute`, in place."""
        ...

    def acos(self) -> Tensor:
        """The angle in [0, pi] whose cosine is x; NaN beyond 1."""
        ...

    def acos_(self) -> Tensor:
        """`acos`, in place."""
        ...

    def acosh(self) -> Tensor:
        """The inverse of `cosh` from 0 on, log(x + sqrt(x^2 - 1)); NaN below 1."""
        ...

    def acosh_(self) -> Tensor:
        """`acosh`, in place."""
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
        """x + value * a / b, of floats."""
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

    def adjoint(self) -> Tensor:
        """The last two axes exchanged: `x.mT`."""
        ...

    def all(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Whether every element is not zero; True over none."""
        ...

    def allclose(self, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> bool:
        """Whether `isclose` holds everywhere. It reads the tensors: outside `weft.compile` only."""
        ...

    def amax(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The maximum over `dim`; NaN wins. The gradient is shared among equal maxima."""
        ...

    def amin(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """The minimum over `dim`; NaN wins. The gradient is shared among equal minima."""
        ...

    def aminmax(self, *, dim: int | None = None, keepdim: bool = False) -> MinMax:
        """The minimum and the maximum, of all elements or along `dim`; NaN wins. Gradients are shared among equal ones."""
        ...

    def any(self, dim: int | Sequence[int] | None = None, keepdim: bool = False) -> Tensor:
        """Whether any element is not zero; False over none."""
        ...

    def arccos(self) -> Tensor:
        """The angle in [0, pi] whose cosine is x; NaN beyond 1."""
        ...

    def arccos_(self) -> Tensor:
        """`arccos`, in place."""
        ...

    def arccosh(self) -> Tensor:
        """The inverse of `cosh` from 0 on, log(x + sqrt(x^2 - 1)); NaN below 1."""
        ...

    def arccosh_(self) -> Tensor:
        """`arccosh`, in place."""
        ...

    def arcsin(self) -> Tensor:
        """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond 1."""
        ...

    def arcsin_(self) -> Tensor:
        """`arcsin`, in place."""
        ...

    def arcsinh(self) -> Tensor:
        """The inverse of `sinh`, log(x + sqrt(x^2 + 1))."""
        ...

    def arcsinh_(self) -> Tensor:
        """`arcsinh`, in place."""
        ...

    def arctan(self) -> Tensor:
        """The angle in (-pi/2, pi/2) whose tangent is x."""
        ...

    def arctan2(self, other: Tensor | float) -> Tensor:
        """The angle of the point (x, y) = (other, input), in [-pi, pi]; the signs of zeros count."""
        ...

    def arctan2_(self, other: Tensor | float) -> Tensor:
        """`arctan2`, in place."""
        ...

    def arctan_(self) -> Tensor:
        """`arctan`, in place."""
        ...

    def arctanh(self) -> Tensor:
        """The inverse of `tanh`, log((1 + x) / (1 - x)) / 2; infinite at 1, NaN beyond."""
        ...

    def arctanh_(self) -> Tensor:
        """`arctanh`, in place."""
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

    def asin(self) -> Tensor:
        """The angle in [-pi/2, pi/2] whose sine is x; NaN beyond 1."""
        ...

    def asin_(self) -> Tensor:
        """`asin`, in place."""
        ...

    def asinh(self) -> Tensor:
        """The inverse of `sinh`, log(x + sqrt(x^2 + 1))."""
        ...

    def asinh_(self) -> Tensor:
        """`asinh`, in place."""
        ...

    def atan(self) -> Tensor:
        """The angle in (-pi/2, pi/2) whose tangent is x."""
        ...

    def atan2(self, other: Tensor | float) -> Tensor:
        """The angle of the point (x, y) = (other, input), in [-pi, pi]; the signs of zeros count."""
        ...

    def atan2_(self, other: Tensor | float) -> Tensor:
        """`atan2`, in place."""
        ...

    def atan_(self) -> Tensor:
        """`atan`, in place."""
        ...

    def atanh(self) -> Tensor:
        """The inverse of `tanh`, log((1 + x) / (1 - x)) / 2; infinite at 1, NaN beyond."""
        ...

    def atanh_(self) -> Tensor:
        """`atanh`, in place."""
        ...

    def backward(self, gradient: Tensor | None = None, retain_graph: bool | None = None, create_graph: bool = False, inputs: Tensor | Sequence[Tensor] | None = None) -> None:
        """Add the gradient of this tensor to `.grad` of every leaf that requires one, or of these `inputs` alone. See
        `weft.autograd.backward`."""
        ...

    def baddbmm(self, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """beta * x + alpha * (batch1 @ batch2), matrix by matrix."""
        ...

    def baddbmm_(self, batch1: Tensor, batch2: Tensor, *, beta: float = 1, alpha: float = 1) -> Tensor:
        """`baddbmm`, in place."""
        ...

    def bernoulli(self, p: float | None = None, *, generator: Generator | None = None) -> Tensor:
        """1 with the probability that each element of `input` is, else 0; with `p`, that is the probability of all, and
        `input` only says the shape and the dtype. The gradient is 0."""
        ...

    def bernoulli_(self, p: Tensor | float = 0.5, *, generator: Generator | None = None) -> Tensor:
        """Take 1 with probability `p`, a number or a tensor that broadcasts, and else 0."""
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

    def cauchy_(self, median: float = 0.0, sigma: float = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Take random numbers of the Cauchy distribution."""
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
        """`input` clamped between `min` and `max`; the gradient passes where min <= x <= max. NaN stays NaN and gets none."""
        ...

    def clamp_(self, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
        """`clamp`, in place."""
        ...

    def clamp_max(self, max: Tensor | float) -> Tensor:
        """`input` where it is smaller than `max`, else `max`."""
        ...

    def clamp_max_(self, max: Tensor | float) -> Tensor:
        """`clamp_max`, in place."""
        ...

    def clamp_min(self, min: Tensor | float) -> Tensor:
        """`input` where it is larger than `min`, else `min`."""
        ...

    def clamp_min_(self, min: Tensor | float) -> Tensor:
        """`clamp_min`, in place."""
        ...

    def clip(self, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
        """`input` clamped between `min` and `max`; the gradient passes where min <= x <= max. NaN stays NaN and gets none."""
        ...

    def clip_(self, min: Tensor | float | None = None, max: Tensor | float | None = None) -> Tensor:
        """`clip`, in place."""
        ...

    def clone(self) -> Tensor:
        """The same value in a tensor of its own; gradients pass."""
        ...

    def cmplt(self, other: Tensor | float) -> Tensor:
        """a < b, bool."""
        ...

    def cmplt_(self, other: Tensor | float) -> Tensor:
        """`cmplt`, in place."""
        ...

    def combinations(self, r: int = 2, with_replacement: bool = False) -> Tensor:
        """All choices of `r` elements of a vector, as rows in the order of the elements."""
        ...

    def copy_(self, source: Any) -> Tensor:
        """Take the value of `source`, broadcast and cast; a tensor of another device is copied as by `to`."""
        ...

    def copysign(self, other: Tensor | float) -> Tensor:
        """The size of `input` with the sign of `other`; signs of zeros count."""
        ...

    def copysign_(self, other: Tensor | float) -> Tensor:
        """`copysign`, in place."""
        ...

    def corrcoef(self) -> Tensor:
        """The correlations of the rows of a matrix, whose columns are observations."""
        ...

    def cos(self) -> Tensor:
        """The cosine of x in radians."""
        ...

    def cos_(self) -> Tensor:
        """`cos`, in place."""
        ...

    def cosh(self) -> Tensor:
        """The hyperbolic cosine, (e^x + e^-x) / 2."""
        ...

    def cosh_(self) -> Tensor:
        """`cosh`, in place."""
        ...

    def count_nonzero(self, dim: int | Sequence[int] | None = None) -> Tensor:
        """How many elements are not zero, int64."""
        ...

    def cov(self, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None) -> Tensor:
        """The covariances of the rows of a matrix, whose columns are observations; of a vector, its variance. `fweights`
        says how often each observation counts, `aweights` how much."""
        ...

    def cross(self, other: Tensor, dim: int | None = None) -> Tensor:
        """The vector product of vectors of three along `dim`, or along the first axis of extent 3; other axes broadcast."""
        ...

    def cummax(self, dim: int) -> ValuesIndices:
        """The largest element so far, and its index: the latest of equal ones. NaN counts as largest. The gradient
        goes to that element."""
        ...

    def cummin(self, dim: int) -> ValuesIndices:
        """The smallest element so far, and its index: the latest of equal ones; once there was a NaN, that."""
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

    def deg2rad(self) -> Tensor:
        """Degrees as radians."""
        ...

    def deg2rad_(self) -> Tensor:
        """`deg2rad`, in place."""
        ...

    def det(self) -> Tensor:
        """`weft.linalg.det`."""
        ...

    def diag(self, diagonal: int = 0) -> Tensor:
        """A vector as the diagonal of a matrix; the diagonal of a matrix as a vector."""
        ...

    def diag_embed(self, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
        """The last axis laid along a diagonal of two new axes, zeros elsewhere."""
        ...

    def diagflat(self, offset: int = 0) -> Tensor:
        """All elements, in order, on a diagonal of a matrix."""
        ...

    def diagonal(self, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """The elements with indices (i, i + offset) on two axes, which become the last axis."""
        ...

    def diagonal_scatter(self, src: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
        """`input` with `src` as the diagonal of two axes that `diagonal` shows."""
        ...

    def diff(self, n: int = 1, dim: int = -1, prepend: Tensor | None = None, append: Tensor | None = None) -> Tensor:
        """Each element less the one before it along `dim`, `n` times over; of bools, whether they differ."""
        ...

    def digamma(self) -> Tensor:
        """The derivative of `lgamma`. At 0 it is infinite, with the sign of -x; NaN at -1, -2, ..."""
        ...

    def digamma_(self) -> Tensor:
        """`digamma`, in place."""
        ...

    def dist(self, other: Tensor, p: float = 2) -> Tensor:
        """The norm of order `p` of the difference of two tensors, which broadcast."""
        ...

    def div(self, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
        """a / b; integers divide in the default dtype, float32. `rounding_mode` is None, 'floor' or 'trunc'."""
        ...

    def div_(self, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
        """`div`, in place."""
        ...

    def divide(self, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
        """a / b; integers divide in the default dtype, float32. `rounding_mode` is None, 'floor' or 'trunc'."""
        ...

    def divide_(self, other: Tensor | float, *, rounding_mode: str | None = None) -> Tensor:
        """`divide`, in place."""
        ...

    def dot(self, tensor: Tensor) -> Tensor:
        """The sum of products of two vectors."""
        ...

    def dsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
        """Equal parts of the third axis, or parts cut before the given indices."""
        ...

    def eq(self, other: Tensor | float) -> Tensor:
        """a == b, bool; NaN equals nothing."""
        ...

    def eq_(self, other: Tensor | float) -> Tensor:
        """`eq`, in place."""
        ...

    def equal(self, other: Tensor) -> bool:
        """Whether two tensors have one shape and equal elements. It reads them: outside `weft.compile` only."""
        ...

    def erf(self) -> Tensor:
        """The error function."""
        ...

    def erf_(self) -> Tensor:
        """`erf`, in place."""
        ...

    def erfc(self) -> Tensor:
        """1 - erf(x), precise where it is small."""
        ...

    def erfc_(self) -> Tensor:
        """`erfc`, in place."""
        ...

    def erfinv(self) -> Tensor:
        """The number whose error function is x; infinite at 1, NaN beyond."""
        ...

    def erfinv_(self) -> Tensor:
        """`erfinv`, in place."""
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
    def expand(self, *size: int | Sequence[int]) -> Tensor:
        """Repeat axes of extent 1 and add leading axes; -1 keeps an extent."""
        ...
    @overload
    def expand(self, size: Sequence[int]) -> Tensor:
        """Repeat axes of extent 1 and add leading axes; -1 keeps an extent."""
        ...

    def expand_as(self, other: Tensor) -> Tensor:
        """`expand` to the shape of `other`."""
        ...

    def expm1(self) -> Tensor:
        """exp(x) - 1, precise near 0."""
        ...

    def expm1_(self) -> Tensor:
        """`expm1`, in place."""
        ...

    def exponential_(self, lambd: float = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Take exponential random numbers with mean 1 / lambd; none is 0."""
        ...

    def fill_(self, value: Any) -> Tensor:
        """Take one number everywhere."""
        ...

    def fix(self) -> Tensor:
        """The whole part of x, towards 0; the gradient is 0."""
        ...

    def fix_(self) -> Tensor:
        """`fix`, in place."""
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

    def float_power(self, exponent: Tensor | float) -> Tensor:
        """a to the power b, in float64."""
        ...

    def float_power_(self, exponent: Tensor | float) -> Tensor:
        """`float_power`, in place."""
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

    def fmax(self, other: Tensor | float) -> Tensor:
        """The larger of the two; of a number and NaN the number. On ties the first gets the gradient."""
        ...

    def fmin(self, other: Tensor | float) -> Tensor:
        """The smaller of the two; of a number and NaN the number. On ties the first gets the gradient."""
        ...

    def fmod(self, other: Tensor | float) -> Tensor:
        """The exact rest of a / b with the sign of the dividend, as C's fmod."""
        ...

    def fmod_(self, other: Tensor | float) -> Tensor:
        """`fmod`, in place."""
        ...

    def frac(self) -> Tensor:
        """The part after the point, with the sign of x; the gradient is that of x."""
        ...

    def frac_(self) -> Tensor:
        """`frac`, in place."""
        ...

    def frexp(self) -> Frexp:
        """Each number as mantissa * 2^exponent with 0.5 <= |mantissa| < 1; the exponent is int32, of 0, NaN and infinities
        it is 0."""
        ...

    def gather(self, dim: int, index: Tensor) -> Tensor:
        """Elements of `input` along `dim`: `out[i][j] = x[index[i][j]][j]` for `dim=0`. `index` has the rank of `input`."""
        ...

    def gcd(self, other: Tensor | float) -> Tensor:
        """The greatest common divisor of integers; 0 of two zeros."""
        ...

    def gcd_(self, other: Tensor | float) -> Tensor:
        """`gcd`, in place."""
        ...

    def ge(self, other: Tensor | float) -> Tensor:
        """a >= b, bool."""
        ...

    def ge_(self, other: Tensor | float) -> Tensor:
        """`ge`, in place."""
        ...

    def geometric_(self, p: float, *, generator: Generator | None = None) -> Tensor:
        """Take numbers of trials up to the first success, from 1 on, where each succeeds with probability `p`."""
        ...

    def ger(self, vec2: Tensor) -> Tensor:
        """[M] and [N] to the [M, N] products of each with each."""
        ...

    def greater(self, other: Tensor | float) -> Tensor:
        """a > b, bool."""
        ...

    def greater_(self, other: Tensor | float) -> Tensor:
        """`greater`, in place."""
        ...

    def greater_equal(self, other: Tensor | float) -> Tensor:
        """a >= b, bool."""
        ...

    def greater_equal_(self, other: Tensor | float) -> Tensor:
        """`greater_equal`, in place."""
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

    def heaviside(self, values: Tensor) -> Tensor:
        """0 below 0 and at NaN, 1 above, `values` at 0. No gradient."""
        ...

    def heaviside_(self, values: Tensor) -> Tensor:
        """`heaviside`, in place."""
        ...

    def histc(self, bins: int = 100, min: float = 0, max: float = 0) -> Tensor:
        """How many elements fall into each of `bins` equal parts of [min, max]; between the smallest and the largest
        element if both are 0. Elements outside and NaN are not counted."""
        ...

    def hsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
        """Equal parts of the second axis, or of a vector; or parts cut before the given indices."""
        ...

    def hypot(self, other: Tensor | float) -> Tensor:
        """sqrt(a^2 + b^2) without overflow on the way."""
        ...

    def hypot_(self, other: Tensor | float) -> Tensor:
        """`hypot`, in place."""
        ...

    def i0(self) -> Tensor:
        """The modified Bessel function of the first kind, of order 0."""
        ...

    def i0_(self) -> Tensor:
        """`i0`, in place."""
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
        """`input` with `values` written to (with `accumulate`, added at) tensors that index its first axes: of integers,
        or bool masks, of which `weft.compile` takes one alone."""
        ...

    def index_put_(self, indices: Sequence[Tensor], values: Tensor | float, accumulate: bool = False) -> Tensor:
        """`index_put`, in place."""
        ...

    def index_reduce(self, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
        """`input` with slices of `source` reduced into its slices `index` along `dim`. `reduce`: 'prod', 'mean', 'amax' or
        'amin'. Without `include_self` slices of `input` that something goes to do not count."""
        ...

    def index_reduce_(self, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True) -> Tensor:
        """`index_reduce`, in place."""
        ...

    def index_select(self, dim: int, index: Tensor) -> Tensor:
        """The slices of `input` along `dim` with the numbers in `index`, a vector of integers."""
        ...

    def inner(self, other: Tensor) -> Tensor:
        """Products summed over the last axis of both; with a scalar, plain products."""
        ...

    def inverse(self) -> Tensor:
        """`weft.linalg.inv`."""
        ...

    def isclose(self, other: Tensor, rtol: float = 1e-05, atol: float = 1e-08, equal_nan: bool = False) -> Tensor:
        """Where two tensors of one dtype are equal, or finite with |a - b| <= atol + rtol * |b|."""
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

    def isneginf(self) -> Tensor:
        """Where x is -infinity."""
        ...

    def isposinf(self) -> Tensor:
        """Where x is +infinity."""
        ...

    def isreal(self) -> Tensor:
        """True everywhere: there are no complex numbers."""
        ...

    def kron(self, other: Tensor) -> Tensor:
        """The Kronecker product: every element of `input` times all of `other`."""
        ...

    def kthvalue(self, k: int, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
        """The `k`-th smallest element along `dim`, k counted from 1, and its index."""
        ...

    def lcm(self, other: Tensor | float) -> Tensor:
        """The least common multiple of integers; 0 if one is 0."""
        ...

    def lcm_(self, other: Tensor | float) -> Tensor:
        """`lcm`, in place."""
        ...

    def ldexp(self, other: Tensor | float) -> Tensor:
        """a times 2 to the power b."""
        ...

    def ldexp_(self, other: Tensor | float) -> Tensor:
        """`ldexp`, in place."""
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

    def less(self, other: Tensor | float) -> Tensor:
        """a < b, bool."""
        ...

    def less_(self, other: Tensor | float) -> Tensor:
        """`less`, in place."""
        ...

    def less_equal(self, other: Tensor | float) -> Tensor:
        """a <= b, bool."""
        ...

    def less_equal_(self, other: Tensor | float) -> Tensor:
        """`less_equal`, in place."""
        ...

    def lgamma(self) -> Tensor:
        """The logarithm of |gamma(x)|; infinite at 0, -1, -2, ..."""
        ...

    def lgamma_(self) -> Tensor:
        """`lgamma`, in place."""
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

    def log_normal_(self, mean: float = 1.0, std: float = 2.0, *, generator: Generator | None = None) -> Tensor:
        """Take exp of normal random numbers with this mean and standard deviation."""
        ...

    def log_softmax(self, dim: int, dtype: DTypeLike | None = None) -> Tensor:
        """log(softmax(x)) without overflow."""
        ...

    def logaddexp(self, other: Tensor | float) -> Tensor:
        """log(e^a + e^b) without overflow."""
        ...

    def logaddexp2(self, other: Tensor | float) -> Tensor:
        """log2(2^a + 2^b) without overflow."""
        ...

    def logcumsumexp(self, dim: int) -> Tensor:
        """log(cumsum(exp(x))) without overflow."""
        ...

    def logdet(self) -> Tensor:
        """The logarithm of the determinant of square matrices; NaN where that is negative."""
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

    def logit(self, eps: float | None = None) -> Tensor:
        """log(x / (1 - x)), the inverse of `sigmoid`; NaN outside of [0, 1]. With `eps`, of x clamped to [eps, 1 - eps]."""
        ...

    def logit_(self, eps: float | None = None) -> Tensor:
        """`logit`, in place."""
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

    @property
    def mH(self) -> Tensor:
        """The last two axes exchanged, since numbers are real."""
        ...

    @property
    def mT(self) -> Tensor:
        """The last two axes exchanged."""
        ...

    def masked_fill(self, mask: Tensor, value: Tensor | float) -> Tensor:
        """`input` with `value`, a number or a tensor without axes, where the bool mask holds."""
        ...

    def masked_fill_(self, mask: Tensor, value: Tensor | float) -> Tensor:
        """`masked_fill`, in place."""
        ...

    def masked_scatter(self, mask: Tensor, source: Tensor) -> Tensor:
        """`input` with the elements of `source`, one after the other, where the bool mask holds; both broadcast."""
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

    def matrix_exp(self) -> Tensor:
        """The exponential of square matrices [..., n, n], by a Taylor polynomial of A / 2^s, squared s times."""
        ...

    def matrix_power(self, n: int) -> Tensor:
        """The product of `n` square matrices `input`; the identity for 0, and the inverses' product for negative `n`."""
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
        """The middle element in order (of two, the lower one) along `dim` and its index; without `dim`, of all
        elements, the value alone, whose gradient is shared among equal elements. A NaN anywhere is the median."""
        ...
    @overload
    def median(self, dim: int, keepdim: bool = False) -> ValuesIndices:
        """The middle element in order (of two, the lower one) along `dim` and its index; without `dim`, of all
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

    def mod(self, other: Tensor | float) -> Tensor:
        """The exact rest of a / b with the sign of the divisor, as Python's %. With an infinite divisor it is a, or b where
        the signs differ; by zero it is NaN, or 0 for integers."""
        ...

    def mod_(self, other: Tensor | float) -> Tensor:
        """`mod`, in place."""
        ...

    def mode(self, dim: int = -1, keepdim: bool = False) -> ValuesIndices:
        """The most frequent element along `dim`, of several the smallest, and its last index."""
        ...

    def moveaxis(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
        """Axes taken out and put in at other positions; the others keep their order."""
        ...

    def movedim(self, source: int | Sequence[int], destination: int | Sequence[int]) -> Tensor:
        """Axes taken out and put in at other positions; the others keep their order."""
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

    def multinomial(self, num_samples: int, replacement: bool = False, *, generator: Generator | None = None) -> Tensor:
        """Indices of `num_samples` categories for a row of weights [n], or for each row of [rows, n]: each drawn with a
        probability that is its part of the row's sum, again and again, or (without replacement) each at most once."""
        ...

    def multiply(self, other: Tensor | float) -> Tensor:
        """a * b. Two bool tensors: logical and."""
        ...

    def multiply_(self, other: Tensor | float) -> Tensor:
        """`multiply`, in place."""
        ...

    def mv(self, vec: Tensor) -> Tensor:
        """[M, K] @ [K]."""
        ...

    def mvlgamma(self, p: int) -> Tensor:
        """The logarithm of the multivariate gamma function of dimension `p`."""
        ...

    def mvlgamma_(self, p: int) -> Tensor:
        """`mvlgamma`, in place."""
        ...

    def nan_to_num(self, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
        """NaN replaced by `nan` (0), infinities by `posinf` and `neginf` (the largest and least finite numbers)."""
        ...

    def nan_to_num_(self, nan: float | None = None, posinf: float | None = None, neginf: float | None = None) -> Tensor:
        """`nan_to_num`, in place."""
        ...

    def nanmean(self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
        """The mean over `dim` of all elements that are not NaN; NaN where there are none."""
        ...

    @overload
    def nanmedian(self) -> Tensor:
        """`median` of the elements that are not NaN; NaN where there are none."""
        ...
    @overload
    def nanmedian(self, dim: int, keepdim: bool = False) -> ValuesIndices:
        """`median` of the elements that are not NaN; NaN where there are none."""
        ...

    def nanquantile(self, q: Tensor | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = 'linear') -> Tensor:
        """`quantile` of the elements that are not NaN; NaN where there are none."""
        ...

    def nansum(self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
        """The sum over `dim` of all elements that are not NaN."""
        ...

    def narrow(self, dim: int, start: int | Tensor, length: int) -> Tensor:
        """The part of `dim` from `start` on with `length` elements. Inside `weft.compile` a part whose start is a tensor
        can be read but not written."""
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

    def negative(self) -> Tensor:
        """-x."""
        ...

    def negative_(self) -> Tensor:
        """`negative`, in place."""
        ...

    def nextafter(self, other: Tensor) -> Tensor:
        """The next float after `input` in the direction of `other`: `other` itself where both are equal, NaN where one is
        NaN. The gradient is that of `input`, and 0 where both are equal."""
        ...

    def nextafter_(self, other: Tensor) -> Tensor:
        """`nextafter`, in place."""
        ...

    def nonzero(self, *, as_tuple: bool = False) -> Any:
        """The indices of the elements that are not zero: [count, rank] int64, in row-major order; with `as_tuple`, one
        vector for each axis."""
        ...

    def norm(self, p: float | str | None = 'fro', dim: int | Sequence[int] | None = None, keepdim: bool = False, out: None = None, dtype: DTypeLike | None = None) -> Tensor:
        """The vector norm of order `p` over `dim` ('fro' and None mean 2), or 'nuc', the sum of singular values.
        Other matrix norms are in `weft.linalg`."""
        ...

    def normal_(self, mean: float = 0.0, std: float = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Take normal random numbers."""
        ...

    def not_equal(self, other: Tensor | float) -> Tensor:
        """a != b, bool."""
        ...

    def not_equal_(self, other: Tensor | float) -> Tensor:
        """`not_equal`, in place."""
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

    def pinverse(self, rcond: float = 1e-15) -> Tensor:
        """`weft.linalg.pinv` with singular values up to `rcond` times the largest as 0."""
        ...

    def polygamma(self, n: int) -> Tensor:
        """The n-th derivative of `digamma`."""
        ...

    def polygamma_(self, n: int) -> Tensor:
        """`polygamma`, in place."""
        ...

    def positive(self) -> Tensor:
        """+x, which is x."""
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

    def quantile(self, q: Tensor | float, dim: int | None = None, keepdim: bool = False, *, interpolation: str = 'linear') -> Tensor:
        """Quantiles along `dim`, or of all elements; a vector `q` makes a first axis. Between two elements `interpolation`
        decides: 'linear', 'lower', 'higher', 'midpoint' or 'nearest'. A NaN in a row is its quantile."""
        ...

    def rad2deg(self) -> Tensor:
        """Radians as degrees."""
        ...

    def rad2deg_(self) -> Tensor:
        """`rad2deg`, in place."""
        ...

    @overload
    def random_(self, *, generator: Generator | None = None) -> Tensor:
        """Take random whole numbers: `random_(to)` in [0, to), `random_(from_, to)` in [from_, to). Without `to`, up to the
        largest number of the dtype, or in floats up to where all whole numbers are exact."""
        ...
    @overload
    def random_(self, to: int, *, generator: Generator | None = None) -> Tensor:
        """Take random whole numbers: `random_(to)` in [0, to), `random_(from_, to)` in [from_, to). Without `to`, up to the
        largest number of the dtype, or in floats up to where all whole numbers are exact."""
        ...
    @overload
    def random_(self, from_: int, to: int | None, *, generator: Generator | None = None) -> Tensor:
        """Take random whole numbers: `random_(to)` in [0, to), `random_(from_, to)` in [from_, to). Without `to`, up to the
        largest number of the dtype, or in floats up to where all whole numbers are exact."""
        ...

    def ravel(self) -> Tensor:
        """All elements in one axis."""
        ...

    def recip(self) -> Tensor:
        """1 / x."""
        ...

    def recip_(self) -> Tensor:
        """`recip`, in place."""
        ...

    def reciprocal(self) -> Tensor:
        """1 / x."""
        ...

    def reciprocal_(self) -> Tensor:
        """`reciprocal`, in place."""
        ...

    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> Any:
        """Call `hook(gradient)` whenever `backward()` or `grad` has the gradient of this tensor. What it returns,
        unless that is None, is the gradient from there on. The handle that is returned has `remove()`."""
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

    def renorm(self, p: float, dim: int, maxnorm: float) -> Tensor:
        """Slices along `dim` scaled down to the norm `maxnorm` of order `p` where theirs is larger."""
        ...

    def renorm_(self, p: float, dim: int, maxnorm: float) -> Tensor:
        """`renorm`, in place."""
        ...

    @overload
    def repeat(self, *repeats: int | Sequence[int]) -> Tensor:
        """The whole tensor `repeats[i]` times along axis i; more numbers than axes add leading ones."""
        ...
    @overload
    def repeat(self, repeats: Sequence[int]) -> Tensor:
        """The whole tensor `repeats[i]` times along axis i; more numbers than axes add leading ones."""
        ...

    @overload
    def repeat_interleave(self, repeats: int | Tensor, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
        """Every element `repeats` times in a row along `dim`; a tensor says how often for each one (inside `weft.compile`
        only with `output_size`, the extent of the result). With repeats alone, the indices of elements."""
        ...
    @overload
    def repeat_interleave(self, *, output_size: int | None = None) -> Tensor:
        """Every element `repeats` times in a row along `dim`; a tensor says how often for each one (inside `weft.compile`
        only with `output_size`, the extent of the result). With repeats alone, the indices of elements."""
        ...

    @overload
    def reshape(self, *shape: int | Sequence[int]) -> Tensor:
        """The elements in row-major order under another shape; one extent may be -1."""
        ...
    @overload
    def reshape(self, shape: Sequence[int]) -> Tensor:
        """The elements in row-major order under another shape; one extent may be -1."""
        ...

    def reshape_as(self, other: Tensor) -> Tensor:
        """`reshape` to the shape of `other`."""
        ...

    def retain_grad(self) -> None:
        """Let `backward()` set `.grad` of this tensor, though it is the result of an operation."""
        ...

    def roll(self, shifts: int | Sequence[int], dims: int | Sequence[int] | None = None) -> Tensor:
        """Elements moved by `shifts` along `dims`, those pushed out coming in at the other end; without `dims`, of the
        flattened tensor."""
        ...

    def rot90(self, k: int = 1, dims: Sequence[int] = (0, 1)) -> Tensor:
        """Rotated k times by 90 degrees from the first of `dims` towards the second."""
        ...

    def round(self, *, decimals: int = 0) -> Tensor:
        """The nearest whole number, ties to even; the gradient is 0. With `decimals`, the nearest with so many digits after
        the point, or with so many zeros before it if negative."""
        ...

    def round_(self, *, decimals: int = 0) -> Tensor:
        """`round`, in place."""
        ...

    def rsqrt(self) -> Tensor:
        """1 / sqrt(x)."""
        ...

    def rsqrt_(self) -> Tensor:
        """`rsqrt`, in place."""
        ...

    @overload
    def scatter(self, dim: int, index: Tensor, src: Tensor | float, *, reduce: str | None = None) -> Tensor:
        """`input` with `src` written to `index` along `dim`: `out[index[i][j]][j] = src[i][j]` for `dim=0`. Of several
        entries for one place the last stays. `reduce` is None, 'add' or 'multiply'; `src` may be a number,
        which may be given as `value`."""
        ...
    @overload
    def scatter(self, dim: int, index: Tensor, *, value: float, reduce: str | None = None) -> Tensor:
        """`input` with `src` written to `index` along `dim`: `out[index[i][j]][j] = src[i][j]` for `dim=0`. Of several
        entries for one place the last stays. `reduce` is None, 'add' or 'multiply'; `src` may be a number,
        which may be given as `value`."""
        ...

    @overload
    def scatter_(self, dim: int, index: Tensor, src: Tensor | float, *, reduce: str | None = None) -> Tensor:
        """`scatter`, in place."""
        ...
    @overload
    def scatter_(self, dim: int, index: Tensor, *, value: float, reduce: str | None = None) -> Tensor:
        """`scatter`, in place."""
        ...

    def scatter_add(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """`input` with `src` added at `index` along `dim`, in order."""
        ...

    def scatter_add_(self, dim: int, index: Tensor, src: Tensor) -> Tensor:
        """`scatter_add`, in place."""
        ...

    def scatter_reduce(self, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True) -> Tensor:
        """`input` reduced with `src` at `index` along `dim`. `reduce`: 'sum', 'prod', 'mean', 'amax' or 'amin'. Without
        `include_self` the elements of `input` that something goes to do not count; the others stay."""
        ...

    def scatter_reduce_(self, dim: int, index: Tensor, src: Tensor, reduce: str, include_self: bool = True) -> Tensor:
        """`scatter_reduce`, in place."""
        ...

    def select(self, dim: int, index: int) -> Tensor:
        """One slice along `dim`, without that axis."""
        ...

    def select_scatter(self, src: Tensor, dim: int, index: int) -> Tensor:
        """`input` with `src` as its slice number `index` along `dim`."""
        ...

    def sgn(self) -> Tensor:
        """-1, 0 or 1: `sign`, as there are no complex numbers."""
        ...

    def sgn_(self) -> Tensor:
        """`sgn`, in place."""
        ...

    def shrink(self, *bounds: Sequence[int] | None) -> Tensor:
        """The part from `start` to before `end` of every axis, given as a pair for each; None keeps an axis. The gradient
        is padded with zeros."""
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

    def signbit(self) -> Tensor:
        """Where the sign is minus, also of -0.0."""
        ...

    def sin(self) -> Tensor:
        """The sine of x in radians."""
        ...

    def sin_(self) -> Tensor:
        """`sin`, in place."""
        ...

    def sinc(self) -> Tensor:
        """sin(pi x) / (pi x), and 1 at 0."""
        ...

    def sinc_(self) -> Tensor:
        """`sinc`, in place."""
        ...

    def sinh(self) -> Tensor:
        """The hyperbolic sine, (e^x - e^-x) / 2."""
        ...

    def sinh_(self) -> Tensor:
        """`sinh`, in place."""
        ...

    def slice_scatter(self, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
        """`input` with `src` in place of the slice start:end:step of `dim`."""
        ...

    def slogdet(self) -> SignLog:
        """`weft.linalg.slogdet`."""
        ...

    def softmax(self, dim: int, dtype: DTypeLike | None = None) -> Tensor:
        """e^x over its sum along `dim`, shifted by the maximum. Multiplies by 1/sum: one division a row."""
        ...

    def sort(self, dim: int = -1, descending: bool = False, stable: bool = False) -> ValuesIndices:
        """(values, indices) in order along `dim`."""
        ...

    def split(self, split_size_or_sections: int | Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Pieces along `dim`: of one size (the last may be smaller), or of the sizes listed."""
        ...

    def split_with_sizes(self, split_sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
        """Pieces of the sizes listed along `dim`: `split` with a list."""
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

    @overload
    def subsample(self, *strides: int | Sequence[int]) -> Tensor:
        """Every s-th element of every axis, from the first on: an extent n becomes n / s, rounded up. The gradient is 0
        between them."""
        ...
    @overload
    def subsample(self, strides: Sequence[int]) -> Tensor:
        """Every s-th element of every axis, from the first on: an extent n becomes n / s, rounded up. The gradient is 0
        between them."""
        ...

    def subtract(self, other: Tensor | float, *, alpha: float = 1) -> Tensor:
        """a - alpha * b."""
        ...

    def subtract_(self, other: Tensor | float, *, alpha: float = 1) -> Tensor:
        """`subtract`, in place."""
        ...

    def sum(self, dim: int | Sequence[int] | None = None, keepdim: bool = False, *, dtype: DTypeLike | None = None) -> Tensor:
        """The sum over `dim`."""
        ...

    def swapaxes(self, axis0: int, axis1: int) -> Tensor:
        """Two axes exchanged: `transpose`."""
        ...

    def swapdims(self, dim0: int, dim1: int) -> Tensor:
        """Two axes exchanged."""
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

    def tensor_split(self, indices_or_sections: int | Sequence[int] | Tensor, dim: int = 0) -> tuple[Tensor, ...]:
        """A number of parts, the first ones larger by one where the extent is not divisible by it; or parts cut before the
        given indices. These may be a tensor, whose values are read."""
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
        """The `k` largest (or smallest) elements along `dim`, in order, and their indices. Of equal elements the first
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

    def true_divide(self, other: Tensor | float) -> Tensor:
        """`div` without rounding."""
        ...

    def true_divide_(self, other: Tensor | float) -> Tensor:
        """`true_divide`, in place."""
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
        """Windows of `size` elements, `step` apart, along an axis; the positions in a window are a new last axis."""
        ...

    def uniform_(self, from_: float = 0.0, to: float = 1.0, *, generator: Generator | None = None) -> Tensor:
        """Take random numbers, uniform in [from_, to)."""
        ...

    def unique(self, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
        """The different elements in ascending order (slices along `dim`, if given); on request also, for each element, the
        position of its equal, and how often each occurs. Every NaN is different."""
        ...

    def unique_consecutive(self, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None) -> Any:
        """The elements of the flattened tensor, or slices along `dim`, that differ from the one before; `unique`'s extras."""
        ...

    def unsqueeze(self, dim: int) -> Tensor:
        """A new axis of extent 1 at `dim`."""
        ...

    def var(self, dim: int | Sequence[int] | None = None, unbiased: bool = True, keepdim: bool = False, *, correction: float | None = None) -> Tensor:
        """The variance over `dim`: the sum of squared differences from the mean, divided by `count - correction`, which
        is 1, or 0 where it is not `unbiased`. A bool in the place of `dim` is `unbiased`."""
        ...

    def vdot(self, other: Tensor) -> Tensor:
        """The sum of products of two vectors: `dot`, since numbers are real."""
        ...

    @overload
    def view(self, *size: int | Sequence[int]) -> Tensor:
        """`reshape`; what is written to the result is written to `input`."""
        ...
    @overload
    def view(self, size: Sequence[int]) -> Tensor:
        """`reshape`; what is written to the result is written to `input`."""
        ...

    def view_as(self, other: Tensor) -> Tensor:
        """`view` with the shape of `other`."""
        ...

    def vsplit(self, indices_or_sections: int | Sequence[int]) -> tuple[Tensor, ...]:
        """Equal parts of the first of at least two axes, or parts cut before the given indices."""
        ...

    def where(self, condition: Tensor, other: Tensor | float) -> Tensor:
        """`input` where the bool condition holds, else `other`; all three broadcast."""
        ...

    def xlogy(self, other: Tensor | float) -> Tensor:
        """x log(y), and 0 where x is 0 and y is not NaN."""
        ...

    def xlogy_(self, other: Tensor | float) -> Tensor:
        """`xlogy`, in place."""
        ...

    def zero_(self) -> Tensor:
        """Become zeros."""
        ...
