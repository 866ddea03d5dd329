"""Matrix products by NVIDIA's cuBLASLt, through the bindings of nvmath-python.

`CublasLt` is the library on one GPU. A product is planned once: `configure_product` asks cuBLASLt's heuristic for an
algorithm and puts its bytes into the config, so that a stored plan repeats it (`Library.version` is part of a plan's
key, as such bytes mean nothing to another version). Only algorithms that add up in one fixed order are taken: those
that split the sum over k write the parts to the workspace in float32, never to the result.

cuBLASLt is column-major. A row-major D = A @ B is its D^T = B^T @ A^T: the operands change places, their memory
stays. Importing this module loads nothing of CUDA.
"""

from __future__ import annotations

import functools
import importlib
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from weft.base.dtypes import DType
from weft.base.errors import GraphError, problem
from weft.kernels.numerics import MAX_UNSPLIT_TERMS, is_small_gpu_product
from weft.plan.plan import Config, Product

MAX_WORKSPACE_BYTES = 32 << 20  # bytes: what NVIDIA recommends for Hopper, and enough for all before it
USUAL_ALIGNMENT = (16, 16, 16)  # bytes, of A, B and results; others take an algorithm of their own
WORKSPACE_ALIGNMENT = 256
MAX_CANDIDATES = 8  # algorithms that the heuristic may propose
# cudaDataType_t, cublasComputeType_t, cublasOperation_t and cublasLtReductionScheme_t, which are fixed for good
DATA_TYPES = {"float32": 0, "float64": 1, "float16": 2, "bfloat16": 14}
COMPUTE_32F, COMPUTE_32F_FAST_TF32, COMPUTE_64F = 68, 77, 70
TRANSPOSED = 1
NO_PARTS, PARTS_IN_FLOAT32 = 0, 2
EPILOGUES = {  # by whether there is a bias, the activation, and whether what that is given is kept
    (False, "", False): "DEFAULT",
    (True, "", False): "BIAS",
    (False, "relu", False): "RELU",
    (True, "relu", False): "RELU_BIAS",
    (False, "gelu", False): "GELU",
    (True, "gelu", False): "GELU_BIAS",
    (False, "gelu", True): "GELU_AUX",
    (True, "gelu", True): "GELU_AUX_BIAS",
}


@dataclass(frozen=True, slots=True)
class Found:
    """The bindings, and where they come from."""

    bindings: Any
    path: str


@functools.cache
def find() -> Found | None:
    """nvmath's bindings of cuBLASLt, where they and the library can be loaded."""
    try:
        bindings = importlib.import_module("nvmath.bindings.cublasLt")
        return Found(bindings, f"cuBLASLt {bindings.get_version()}")
    except Exception:  # nvmath raises errors of its own where the library is missing
        return None


def reason() -> str:
    """Why `find` returned None, for `weft doctor`."""
    return (
        "nvmath-python or cuBLASLt is not there, so matrix products on CUDA run on Weft's own kernels. "
        "Fix: pip install 'weft[cuda]'."
    )


def load(backend: Any) -> CublasLt:
    """The library on the GPU of a `CudaBackend`, which is current."""
    return CublasLt(int(backend.driver.stream), backend.driver.activate)


class CublasLt:
    """cuBLASLt on the GPU that is current when it is made. Calls go to `stream` (an address); `activate` makes the GPU
    current again, in whatever thread a plan is made."""

    name = "cublaslt"

    def __init__(self, stream: int, activate: Callable[[], None] = lambda: None):
        found = find()
        assert found is not None, reason()
        self.lt = found.bindings
        self.failures = (self.lt.cuBLASLtError,)
        self.stream, self.activate = stream, activate
        self.handle = self.lt.create()
        self.version = str(self.lt.get_version())
        self.arranged: dict[Product, tuple[Config, int]] = {}  # the heuristic takes half a millisecond

    def offer(self, node: Any, srcs: Any) -> None:
        """Products come by `configure_product`; no other node is computed here."""

    def can_multiply(self, dtype: DType, batch: int, m: int, n: int, k: int) -> bool:
        """Whether a product is computed here, and not by a kernel of our own."""
        return dtype.name != "float32" or not is_small_gpu_product(batch, m, n, k)

    def epilogues(self, dtype: DType) -> frozenset[str]:
        """What a product of `dtype` can do beside multiplying."""
        return frozenset({"add"}) if dtype.name == "float64" else frozenset({"add", "bias", "relu", "gelu"})

    def configure_product(self, product: Product) -> tuple[Config, int]:
        """(config, bytes of workspace): `product` with the algorithm of the heuristic's first choice."""
        if product not in self.arranged:
            self.activate()
            algorithm, workspace = _Call(self, product).choose(USUAL_ALIGNMENT)[0]
            room = workspace + WORKSPACE_ALIGNMENT if workspace else 0
            self.arranged[product] = (*product.config, algorithm.hex(), workspace), room
        return self.arranged[product]

    def prepare(self, config: Config) -> Callable[[Sequence[int]], None]:
        *fields, algorithm, workspace = config
        assert isinstance(algorithm, str) and isinstance(workspace, int)
        call = _Call(self, Product(*fields))  # type: ignore[arg-type]
        call.take(bytes.fromhex(algorithm), workspace)
        return call


class _Call:
    """A product's descriptors, and the call itself. What cuBLASLt made for it goes with it."""

    def __init__(self, library: CublasLt, product: Product):
        self.library, self.product = library, product
        self.lt = lt = library.lt
        double = product.operand.name == "float64"
        self.numbers = np.array([product.alpha, float(product.add)], np.float64 if double else np.float32)
        compute = COMPUTE_64F if double else COMPUTE_32F
        if product.precision != "highest" and product.operand.name == "float32":
            compute = COMPUTE_32F_FAST_TF32
        self.operation = lt.matmul_desc_create(compute, DATA_TYPES["float64" if double else "float32"])
        attributes = lt.MatmulDescAttribute
        if product.transpose_b:
            self._describe(attributes.TRANSA, TRANSPOSED)
        if product.transpose_a:
            self._describe(attributes.TRANSB, TRANSPOSED)
        epilogue = EPILOGUES[product.bias, product.activation, product.keep]
        if epilogue != "DEFAULT":
            self._describe(attributes.EPILOGUE, int(lt.Epilogue[epilogue]))
        if product.bias:
            self._describe(attributes.BIAS_DATA_TYPE, DATA_TYPES[product.result.name])
        if product.keep:
            self._describe(attributes.EPILOGUE_AUX_LD, product.n)
            self._describe(attributes.EPILOGUE_AUX_BATCH_STRIDE, product.m * product.n)
        m, n, k, p = product.m, product.n, product.k, product
        # As columns: the rows of a row-major matrix, so (extent of a row, number of rows)
        self.layout_b = self._layout(p.operand, (k, n) if p.transpose_b else (n, k), p.leading_b, p.strides_b[1])
        self.layout_a = self._layout(p.operand, (m, k) if p.transpose_a else (k, m), p.leading_a, p.strides_a[1])
        self.layout_d = self._layout(p.result, (n, m), n, m * n)
        self.algorithms: dict[tuple[int, int, int], tuple[np.ndarray, int]] = {}  # by the operands' alignment
        size = p.operand.itemsize  # bytes from one element of the outer batch to the next
        steps = (p.strides_a[0] * size, p.strides_b[0] * size, p.inner * m * n * p.result.itemsize)
        self.steps = steps if p.outer > 1 else (0, 0, 0)
        self.alpha = self.numbers.ctypes.data
        self.beta = self.alpha + self.numbers.itemsize
        layouts = (self.layout_a, self.layout_b, self.layout_d)
        weakref.finalize(self, _destroy, lt, self.operation, layouts).atexit = False

    def _describe(self, attribute: int, value: int) -> None:
        word = np.array([value], self.lt.get_matmul_desc_attribute_dtype(attribute))
        self.lt.matmul_desc_set_attribute(self.operation, attribute, word.ctypes.data, word.nbytes)

    def _layout(self, dtype: DType, extents: tuple[int, int], leading: int, stride: int) -> int:
        lt = self.lt
        layout = lt.matrix_layout_create(DATA_TYPES[dtype.name], *extents, leading)
        if self.product.inner > 1:
            attributes = lt.MatrixLayoutAttribute
            values = {attributes.BATCH_COUNT: self.product.inner, attributes.STRIDED_BATCH_OFFSET: stride}
            for attribute, value in values.items():
                word = np.array([value], lt.get_matrix_layout_attribute_dtype(attribute))
                lt.matrix_layout_set_attribute(layout, attribute, word.ctypes.data, word.nbytes)
        return layout

    def choose(self, alignment: tuple[int, int, int], most: int = MAX_WORKSPACE_BYTES) -> list[tuple[bytes, int]]:
        """(algorithm, bytes of workspace) that the heuristic proposes for this alignment of operands, best first,
        with at most so much workspace."""
        lt = self.lt
        attributes = lt.MatmulPreferenceAttribute
        preference = lt.matmul_preference_create()
        wanted = {
            attributes.MAX_WORKSPACE_BYTES: most,
            attributes.REDUCTION_SCHEME_MASK: PARTS_IN_FLOAT32 if self.product.k > MAX_UNSPLIT_TERMS else NO_PARTS,
            attributes.MIN_ALIGNMENT_A_BYTES: alignment[1],  # our B is its A
            attributes.MIN_ALIGNMENT_B_BYTES: alignment[0],
            attributes.MIN_ALIGNMENT_C_BYTES: alignment[2],
            attributes.MIN_ALIGNMENT_D_BYTES: alignment[2],  # which stands for the bias too
        }
        for attribute, value in wanted.items():
            word = np.array([value], lt.get_matmul_preference_attribute_dtype(attribute))
            lt.matmul_preference_set_attribute(preference, attribute, word.ctypes.data, word.nbytes)
        results = np.zeros(MAX_CANDIDATES, lt.matmul_heuristic_result_dtype)
        count = np.zeros(1, np.int32)
        try:
            lt.matmul_algo_get_heuristic(
                self.library.handle, self.operation, self.layout_b, self.layout_a, self.layout_d, self.layout_d,
                preference, MAX_CANDIDATES, results.ctypes.data, count.ctypes.data,
            )  # fmt: skip
        except lt.cuBLASLtError:  # it says so where it has none
            count[0] = 0
        finally:
            lt.matmul_preference_destroy(preference)
        if not count[0]:
            raise problem(GraphError, "cuBLASLt", f"{self.product}", "a product that it has an algorithm for")
        return [(result["algo"].tobytes(), int(result["workspace_size"])) for result in results[: int(count[0])]]

    def take(self, algorithm: bytes, workspace: int) -> None:
        """Use this algorithm where operands have the usual alignment."""
        self.algorithms[USUAL_ALIGNMENT] = (np.frombuffer(algorithm, np.uint8).copy(), workspace)

    def _algorithm(self, a: int, b: int, results: int) -> tuple[np.ndarray, int]:
        """What fits operands and results whose addresses, and all that is added to them, have these bits. Where they
        are less aligned than the plan assumed, the planned workspace must do."""
        if (a | b | results) % 16 == 0:
            return self.algorithms[USUAL_ALIGNMENT]
        alignment = (math.gcd(a, 16), math.gcd(b, 16), math.gcd(results, 16))
        if alignment not in self.algorithms:
            algorithm, workspace = self.choose(alignment, self.algorithms[USUAL_ALIGNMENT][1])[0]
            self.algorithms[alignment] = (np.frombuffer(algorithm, np.uint8).copy(), workspace)
        return self.algorithms[alignment]

    def __call__(self, addresses: Sequence[int]) -> None:
        lt, p = self.lt, self.product
        left = iter(addresses)
        a, b = next(left), next(left)
        bias = next(left) if p.bias else 0
        if bias:
            self._describe(lt.MatmulDescAttribute.BIAS_POINTER, bias)
        c = next(left) if p.add else 0
        d = next(left)
        kept = next(left) if p.keep else 0
        scratch = -(-next(left, 0) // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
        step_a, step_b, step_d = self.steps
        algorithm, workspace = self._algorithm(a | step_a, b | step_b, c | d | kept | bias | step_d)
        for number in range(p.outer):
            target = d + number * step_d
            if p.keep:
                self._describe(lt.MatmulDescAttribute.EPILOGUE_AUX_POINTER, kept + number * step_d)
            lt.matmul(
                self.library.handle, self.operation, self.alpha,
                b + number * step_b, self.layout_b, a + number * step_a, self.layout_a, self.beta,
                c + number * step_d if p.add else target, self.layout_d, target, self.layout_d,
                algorithm.ctypes.data, scratch, workspace, self.library.stream,
            )  # fmt: skip


def _destroy(lt: Any, operation: int, layouts: Sequence[int]) -> None:
    for layout in layouts:
        lt.matrix_layout_destroy(layout)
    lt.matmul_desc_destroy(operation)
