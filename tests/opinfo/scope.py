"""Which operators of torch's table Weft does not mean to have, by group, and why."""

from __future__ import annotations

import fnmatch

# Patterns of names: the reason. An operator that Weft has is supported whatever stands here.
NOT_PLANNED = {
    "fft.*": "Fourier transforms need complex numbers, which Weft does not have",
    "stft istft": "Fourier transforms need complex numbers, which Weft does not have",
    "complex polar view_as_complex view_as_real real imag conj conj_physical resolve_conj angle isreal H mH "
    "cdouble cfloat chalf nn.functional.silu/complex linalg.eig linalg.eigvals vdot sgn": "complex numbers",
    "resolve_neg": "about a bit of the tensors of torch",
    "sparse.* to_sparse": "sparse layouts; weft.spmm and weft.Adjacency are the sparse operations of graphs",
    "_* torch.ops.* torch._* native_* constant_pad_nd grid_sampler_2d grid_sampler_3d "
    "max_pool2d_with_indices_backward slice": "internal to torch; the public function is there",
    "jiterator_*": "CUDA kernels from source; see weft.kernel",
    "*_copy": "the copying form of a view, used by the compiler of torch; clone the view",
    "as_strided as_strided/* as_strided_* new_empty_strided empty_strided empty_permuted resize_ resize_as_":
        "strides and memory layouts are not visible in Weft",
    "unsafe_*": "differs from the safe form only in torch's bookkeeping of views",
    "masked.*": "a prototype of torch; use where() and the plain reductions",
    "signal.windows.*": "signal processing is out of scope",
    "special.airy_ai special.*bessel* special.*polynomial* special.zeta special.erfcx special.i0e special.i1 "
    "special.i1e special.ndtri special.log_ndtr special.spherical_* i0 igamma igammac polygamma/* special.polygamma/* "
    "mvlgamma/*": "rare special functions",
    "cauchy geometric log_normal": "rare distributions",
    "histogram histogramdd": "histc is there; density and edges are NumPy's on the host",
    "geqrf ormqr householder_product linalg.householder_product lu_unpack lu lu_solve linalg.ldl_* triangular_solve "
    "svd qr cholesky cholesky_inverse cholesky_solve linalg.lu_factor_ex linalg.lu_factor linalg.lu linalg.lu_solve "
    "linalg.cholesky_ex linalg.inv_ex linalg.solve_ex svd_lowrank pca_lowrank":
        "factored forms and torch's older names of them; weft.linalg has the functions themselves",
    "hash_tensor nonzero_static sum_to_size": "made for the tools of torch",
    "bmm/triton_optimized nn.functional.batch_norm/without_cudnn": "the same function on a GPU of torch's",
}  # fmt: skip


def reason_not_planned(key: str) -> str:
    """Why an operator is not planned, '' if it is."""
    for patterns, reason in NOT_PLANNED.items():
        if any(fnmatch.fnmatchcase(key, pattern) for pattern in patterns.split()):
            return reason
    return ""
