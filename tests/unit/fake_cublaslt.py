"""cuBLASLt as its manual describes it, in NumPy over host memory: columns first, operations, epilogues, batches."""

from __future__ import annotations

import ctypes
import enum
import itertools

import ml_dtypes
import numpy as np

NUMPY = {0: np.float32, 1: np.float64, 2: np.float16, 14: ml_dtypes.bfloat16}
ALGORITHM = bytes(range(64))


def _names(name: str, *members: str) -> enum.IntEnum:
    return enum.IntEnum(name, members)


class Bindings:
    """The functions of `nvmath.bindings.cublasLt` that Weft calls; `calls` counts products."""

    MatmulDescAttribute = _names(
        "D", "TRANSA", "TRANSB", "EPILOGUE", "BIAS_POINTER", "BIAS_DATA_TYPE", "EPILOGUE_AUX_LD",
        "EPILOGUE_AUX_BATCH_STRIDE", "EPILOGUE_AUX_POINTER",
    )  # fmt: skip
    MatrixLayoutAttribute = _names("L", "BATCH_COUNT", "STRIDED_BATCH_OFFSET")
    MatmulPreferenceAttribute = _names(
        "P", "MAX_WORKSPACE_BYTES", "REDUCTION_SCHEME_MASK",
        *[f"MIN_ALIGNMENT_{matrix}_BYTES" for matrix in "ABCD"],
    )  # fmt: skip
    Epilogue = _names("E", "DEFAULT", "RELU", "BIAS", "RELU_BIAS", "GELU", "GELU_BIAS", "GELU_AUX", "GELU_AUX_BIAS")
    matmul_heuristic_result_dtype = np.dtype([("algo", "<u8", 8), ("workspace_size", "<u8"), ("rest", "<i4", 6)])

    class cuBLASLtError(Exception):
        pass

    def __init__(self):
        self.calls = 0
        self.objects: dict[int, dict] = {}
        self.numbers = itertools.count(1)

    def create(self) -> int:
        return 1

    def get_version(self) -> int:
        return 130100

    def _new(self, **fields) -> int:
        number = next(self.numbers)
        self.objects[number] = fields
        return number

    def _set(self, number: int, attribute: int, address: int, nbytes: int) -> None:
        self.objects[number][int(attribute)] = int(self._at(address, {4: np.int32, 8: np.int64}[nbytes], 1)[0])

    @staticmethod
    def _at(address: int, dtype, count: int) -> np.ndarray:
        raw = (ctypes.c_uint8 * (count * np.dtype(dtype).itemsize)).from_address(address)
        return np.frombuffer(raw, np.uint8).view(dtype)

    def matmul_desc_create(self, compute: int, scale: int) -> int:
        return self._new(compute=compute, scale=scale)

    def matrix_layout_create(self, kind: int, rows: int, cols: int, leading: int) -> int:
        return self._new(kind=kind, rows=rows, cols=cols, leading=leading)

    def matmul_preference_create(self) -> int:
        return self._new()

    matmul_desc_set_attribute = matrix_layout_set_attribute = matmul_preference_set_attribute = _set

    def _destroy(self, number: int) -> None:
        del self.objects[number]

    matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def get_matmul_desc_attribute_dtype(self, attribute: int):
        return np.int64 if "POINTER" in attribute.name or "AUX" in attribute.name else np.int32

    def get_matrix_layout_attribute_dtype(self, attribute: int):
        return np.int32 if attribute == self.MatrixLayoutAttribute.BATCH_COUNT else np.int64

    def get_matmul_preference_attribute_dtype(self, attribute: int):
        return np.uint64 if attribute == self.MatmulPreferenceAttribute.MAX_WORKSPACE_BYTES else np.uint32

    def matmul_algo_get_heuristic(self, handle, desc, a, b, c, d, preference, wanted, results, count) -> None:
        found = self._at(results, self.matmul_heuristic_result_dtype, wanted)
        found[0]["algo"] = np.frombuffer(ALGORITHM, np.uint64)
        found[0]["workspace_size"] = 4096
        self._at(count, np.int32, 1)[0] = 1

    def _matrices(self, number: int, address: int) -> np.ndarray:
        layout = self.objects[number]
        dtype = np.dtype(NUMPY[layout["kind"]])
        count = layout.get(int(self.MatrixLayoutAttribute.BATCH_COUNT), 1)
        stride = layout.get(int(self.MatrixLayoutAttribute.STRIDED_BATCH_OFFSET), 0)
        rows, cols, leading = layout["rows"], layout["cols"], layout["leading"]
        assert leading >= rows
        flat = self._at(address, dtype, stride * (count - 1) + leading * (cols - 1) + rows)
        strides = [step * dtype.itemsize for step in (stride, 1, leading)]
        return np.lib.stride_tricks.as_strided(flat, (count, rows, cols), strides)

    def matmul(self, handle, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, algo, scratch, nbytes, stream) -> None:
        self.calls += 1
        assert self._at(algo, np.uint8, 64).tobytes() == ALGORITHM and (not nbytes or (scratch and scratch % 256 == 0))
        operation = self.objects[desc]
        scale = NUMPY[operation["scale"]]
        left, right = self._matrices(la, a).astype(np.float64), self._matrices(lb, b).astype(np.float64)
        attributes = self.MatmulDescAttribute
        left = left.swapaxes(1, 2) if operation.get(int(attributes.TRANSA)) else left
        right = right.swapaxes(1, 2) if operation.get(int(attributes.TRANSB)) else right
        value = self._at(alpha, scale, 1)[0] * (left @ right)
        factor = self._at(beta, scale, 1)[0]
        if factor:
            value = value + factor * self._matrices(lc, c).astype(np.float64)
        epilogue = self.Epilogue(operation.get(int(attributes.EPILOGUE), int(self.Epilogue.DEFAULT))).name
        vector, kind = operation.get(int(attributes.BIAS_POINTER), 0), operation.get(int(attributes.BIAS_DATA_TYPE), 0)
        if "BIAS" in epilogue:
            value = value + self._at(vector, NUMPY[kind], value.shape[1]).astype(np.float64)[:, None]
        if "AUX" in epilogue:
            assert operation[int(attributes.EPILOGUE_AUX_LD)] % 8 == 0
            assert operation[int(attributes.EPILOGUE_AUX_LD)] == self.objects[ld]["leading"]
            assert operation[int(attributes.EPILOGUE_AUX_BATCH_STRIDE)] == value[0].size
            self._matrices(ld, operation[int(attributes.EPILOGUE_AUX_POINTER)])[:] = value
        if "RELU" in epilogue:
            value = np.maximum(value, 0)
        if "GELU" in epilogue:
            value = value / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (value + 0.044715 * value**3)))
        self._matrices(ld, d)[:] = value
