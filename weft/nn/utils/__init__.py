"""Tools around modules under PyTorch's names: clipping, flat vectors of parameters, parametrizations, fusion.

`CONTENTS` is the table of contents: file by file. A file is loaded when one of its names is first used.
"""

from __future__ import annotations

from weft.base.lazy_modules import load_lazily as _load_lazily

CONTENTS: dict[str, tuple[str, ...]] = {
    "weft.optim.clip": ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"),
    "weft.nn.utils.vectors": ("parameters_to_vector", "vector_to_parameters"),
    "weft.nn.utils.fusion": (
        "fuse_conv_bn_eval",
        "fuse_conv_bn_weights",
        "fuse_linear_bn_eval",
        "fuse_linear_bn_weights",
    ),
    "weft.nn.utils.norms": ("remove_spectral_norm", "remove_weight_norm", "spectral_norm", "weight_norm"),
    "weft.nn.utils.init": ("skip_init",),
    "weft.nn.utils.checkpointing": ("checkpoint",),
}
_SUBMODULES = ("parametrizations", "parametrize", "rnn", "stateless")
__getattr__, __dir__, __all__ = _load_lazily(__name__, CONTENTS, _SUBMODULES)
