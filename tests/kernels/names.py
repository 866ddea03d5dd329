"""The 145 kernels of the specification's list (A15), in its order, and what Weft has for each.

A kernel names the operation that it is, or whose gradient it is, and what covers it: records of operations
(tests/records: on the CPU, and on a GPU by tests/gpu/test_records.py), tests, or records of layers (tests/layers).
test_catalogue.py looks whether all of it exists and does what it is named for.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """One kernel. `operation` is a path under `weft`; with `gradient`, the kernel is its gradient."""

    name: str
    operation: str
    gradient: bool = False
    records: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    layers: tuple[str, ...] = ()
    remark: str = ""


F = "nn.functional."
FUSED = "tests/backend/test_kernels.py::test_fused_kernels"
DROPOUT = "tests/backend/test_kernels.py::test_dropout"
RECURRENT = "tests/backend/test_loop.py::test_recurrent_layers_and_their_gradients_are_torchs"


STEPS = "tests/backend/test_optim.py::test_ten_steps"
STEPS_OF_TORCH = "tests/backend/test_optim_kinds.py::test_steps_are_torchs"
STEPS_OF_NUMPY = "tests/backend/test_optim_kinds.py::test_steps_are_numpys"


def of(name: str, operation: str, *records: str, **rest: object) -> Kernel:
    return Kernel(name, operation, records=records, **rest)  # type: ignore[arg-type]


def grad(name: str, operation: str, *records: str, **rest: object) -> Kernel:
    return Kernel(name, operation, True, records, **rest)  # type: ignore[arg-type]


def fused(name: str, operation: str, remark: str) -> Kernel:
    return Kernel(name, operation, tests=(f"{FUSED}[{name}]",), remark=remark)


def update(name: str, operation: str, test: str, *cases: str) -> Kernel:
    return Kernel(name, operation, tests=tuple(f"{test}[{case}]" for case in cases))


CATALOGUE: dict[str, tuple[Kernel, ...]] = {
    "A1 activation forward": (
        of("relu", F + "relu", "relu", "relu at kinks"),
        of("leaky_relu", F + "leaky_relu", "leaky_relu", "leaky_relu at kinks"),
        of("sigmoid", "sigmoid", "sigmoid", "sigmoid_special"),
        of("tanh", "tanh", "tanh", "tanh_special"),
        of("gelu", F + "gelu", "gelu"),
        of("swish/silu", F + "silu", "silu"),
        of("softmax", "softmax", "softmax"),
        of("elu", F + "elu", "elu", "elu at kinks"),
        of("mish", F + "mish", "mish"),
        of("softplus", F + "softplus", "softplus"),
        of("hardswish", F + "hardswish", "hardswish", "hardswish at kinks"),
    ),
    "A2 activation backward": (
        grad("relu_backward", F + "relu", "relu", "relu at kinks"),
        grad("leaky_relu_backward", F + "leaky_relu", "leaky_relu", "leaky_relu at kinks"),
        grad("sigmoid_backward", "sigmoid", "sigmoid", "sigmoid_at_zero"),
        grad("tanh_backward", "tanh", "tanh"),
        grad("gelu_backward", F + "gelu", "gelu"),
        grad("softmax_backward", "softmax", "softmax"),
        grad("elu_backward", F + "elu", "elu", "elu at kinks"),
        grad("swish_backward", F + "silu", "silu", "silu at kinks"),
        grad("mish_backward", F + "mish", "mish"),
        grad("softplus_backward", F + "softplus", "softplus", "softplus at kinks"),
        grad("hardswish_backward", F + "hardswish", "hardswish"),
    ),
    "A3 convolution": (
        of("im2col", F + "unfold", "unfold"),
        of("conv2d_direct", F + "conv2d", "conv2d"),
        of("depthwise_conv2d", F + "conv2d", "depthwise_conv2d"),
        of("conv_transpose2d", F + "conv_transpose2d", "conv_transpose2d"),
        of("conv3d_direct", F + "conv3d", "conv3d"),
        of("col2im", F + "fold", "fold"),
        grad("conv2d_backward_input", F + "conv2d", "conv2d"),
        grad("conv2d_backward_weights", F + "conv2d", "conv2d"),
        grad("conv3d_backward_input", F + "conv3d", "conv3d"),
        grad("conv3d_backward_weights", F + "conv3d", "conv3d"),
        grad("deconv_backward_input", F + "conv_transpose2d", "conv_transpose2d"),
        grad("deconv_backward_weights", F + "conv_transpose2d", "conv_transpose2d"),
        grad("depthwise_conv2d_backward", F + "conv2d", "depthwise_conv2d"),
        grad("dilated_conv2d_backward", F + "conv2d", "dilated_conv2d"),
    ),
    "A4 normalization": (
        of("batchnorm_forward", F + "batch_norm", "batch_norm_training", "batch_norm_inference"),
        of("layernorm_forward", F + "layer_norm", "layer_norm"),
        of("groupnorm_forward", F + "group_norm", "group_norm"),
        of("instancenorm_forward", F + "instance_norm", "instance_norm", "instance_norm_training"),
        of("rmsnorm_forward", F + "rms_norm", "rms_norm"),
        grad("batchnorm_backward", F + "batch_norm", "batch_norm_training", "batch_norm_of_rows"),
        grad("layernorm_backward", F + "layer_norm", "layer_norm"),
        grad("layernorm_grad_params", F + "layer_norm", "layer_norm"),
        grad("groupnorm_backward", F + "group_norm", "group_norm"),
        grad("instancenorm_backward", F + "instance_norm", "instance_norm"),
        grad("rmsnorm_backward", F + "rms_norm", "rms_norm"),
        grad("rmsnorm_grad_gamma", F + "rms_norm", "rms_norm"),
    ),
    "A5 pooling": (
        of("maxpool2d", F + "max_pool2d", "max_pool2d", "max_pool2d_with_indices"),
        of("avgpool2d", F + "avg_pool2d", "avg_pool2d"),
        of("global_avgpool2d", F + "adaptive_avg_pool2d", "global_avgpool2d"),
        of("global_maxpool2d", F + "adaptive_max_pool2d", "global_maxpool2d"),
        of("adaptive_avgpool2d", F + "adaptive_avg_pool2d", "adaptive_avg_pool2d"),
        grad("maxpool2d_backward", F + "max_pool2d", "max_pool2d"),
        grad("avgpool2d_backward", F + "avg_pool2d", "avg_pool2d"),
        grad("global_avgpool2d_backward", F + "adaptive_avg_pool2d", "global_avgpool2d"),
        grad("global_maxpool2d_backward", F + "adaptive_max_pool2d", "global_maxpool2d"),
        grad("adaptive_avgpool2d_backward", F + "adaptive_avg_pool2d", "adaptive_avg_pool2d"),
        grad("maxpool3d_backward", F + "max_pool3d", "max_pool3d"),
        grad("avgpool3d_backward", F + "avg_pool3d", "avg_pool3d"),
    ),
    "A6 attention": (
        of(
            "scaled_dot_product_attention",
            F + "scaled_dot_product_attention",
            "scaled_dot_product_attention",
            "attention_over_no_keys",
        ),
        of(
            "flash_attention_v2",
            F + "scaled_dot_product_attention",
            "scaled_dot_product_attention",
            tests=(
                "tests/backend/test_attention.py::test_memory_is_linear_in_the_length",
                "tests/backend/test_attention.py::test_forward_and_backward_are_one_kernel_each",
            ),
        ),
        of("grouped_query_attention", F + "scaled_dot_product_attention", "grouped_query_attention"),
        grad(
            "flash_attention_backward",
            F + "scaled_dot_product_attention",
            "scaled_dot_product_attention",
            tests=("tests/backend/test_attention.py::test_forward_and_backward_are_one_kernel_each",),
        ),
        grad("grouped_query_attention_backward", F + "scaled_dot_product_attention", "grouped_query_attention"),
        grad("cross_attention_backward", F + "scaled_dot_product_attention", "cross_attention"),
        grad(
            "multi_head_attention_backward",
            F + "multi_head_attention_forward",
            "multi_head_attention",
            "multi_head_attention_separate",
        ),
    ),
    "A7 loss": (
        of("mse_loss", F + "mse_loss", "mse_loss"),
        of("cross_entropy_loss", F + "cross_entropy", "cross_entropy"),
        of("bce_loss", F + "binary_cross_entropy", "binary_cross_entropy"),
        of("smooth_l1_loss", F + "smooth_l1_loss", "smooth_l1_loss"),
        grad("mse_backward", F + "mse_loss", "mse_loss"),
        grad("cross_entropy_backward", F + "cross_entropy", "cross_entropy"),
        grad("bce_backward", F + "binary_cross_entropy", "binary_cross_entropy"),
        grad("smooth_l1_backward", F + "smooth_l1_loss", "smooth_l1_loss"),
        of("focal_loss", F + "sigmoid_focal_loss", "sigmoid_focal_loss"),
        grad("focal_loss_backward", F + "sigmoid_focal_loss", "sigmoid_focal_loss"),
        of("triplet_loss", F + "triplet_margin_loss", "triplet_margin_loss"),
        grad("triplet_loss_backward", F + "triplet_margin_loss", "triplet_margin_loss"),
        of("contrastive_loss", F + "contrastive_loss", "contrastive_loss"),
        grad("contrastive_loss_backward", F + "contrastive_loss", "contrastive_loss"),
    ),
    "A8 optimizer": (
        update("sgd_step", "optim.SGD", STEPS, "sgd", "sgd_decay"),
        update("sgd_momentum_update", "optim.SGD", STEPS, "momentum", "dampening"),
        update("adam_step", "optim.Adam", STEPS, "adam", "adam_decay", "adam_amsgrad"),
        update("adamw_step", "optim.AdamW", STEPS, "adamw", "adamw_decay", "adamw_amsgrad"),
        update("rmsprop_step", "optim.RMSprop", STEPS_OF_TORCH, "rmsprop", "rmsprop_all"),
        update("adagrad_step", "optim.Adagrad", STEPS_OF_TORCH, "adagrad", "adagrad_all"),
        update("nag_step", "optim.NAG", STEPS_OF_NUMPY, "nag"),
        update("lars_step", "optim.LARS", STEPS_OF_NUMPY, "lars"),
        update("lamb_step", "optim.LAMB", STEPS_OF_NUMPY, "lamb"),
        of(
            "gradient_clip_norm",
            "optim.clip_grad_norm_",
            tests=("tests/backend/test_optim.py::test_clipping_by_norm",),
        ),
        of(
            "gradient_clip_value",
            "optim.clip_grad_value_",
            tests=("tests/backend/test_optim.py::test_clipping_by_value",),
        ),
    ),
    "A9 embedding": (
        of("embedding_forward", F + "embedding", "embedding", "embedding_padding"),
        grad("embedding_backward", F + "embedding", "embedding", "embedding_padding"),
        of("gather", "gather", "gather", "take_along_dim"),
        of("scatter_add", "scatter_add", "scatter_add"),
    ),
    "A10 recurrent": (
        of("lstm_forward", "loop", tests=(f"{RECURRENT}[lstm]",), layers=("LSTM",)),
        grad("lstm_backward", "loop", tests=(f"{RECURRENT}[lstm]",), layers=("LSTM",)),
        of("lstm_cell_forward", "nn.LSTMCell", layers=("LSTMCell",)),
        grad("lstm_cell_backward", "nn.LSTMCell", layers=("LSTMCell",)),
        of("gru_forward", "loop", tests=(f"{RECURRENT}[gru]",), layers=("GRU",)),
        grad("gru_backward", "loop", tests=(f"{RECURRENT}[gru]",), layers=("GRU",)),
        of("gru_cell_forward", "nn.GRUCell", layers=("GRUCell",)),
        grad("gru_cell_backward", "nn.GRUCell", layers=("GRUCell",)),
        of("convlstm_forward", "nn.ConvLSTM2d", layers=("ConvLSTM2d",)),
        grad("convlstm_backward", "nn.ConvLSTM2d", layers=("ConvLSTM2d",)),
    ),
    "A11 utility": (
        of("transpose_2d", "t", "t"),
        of("batched_transpose", "adjoint", "batched_transpose", "mT"),
        of("permute_general", "permute", "permute"),
        of("copy_buffer", "clone", "clone"),
        of("fill_buffer", "fill", "fill", "full"),
        of("dropout_forward", F + "dropout", tests=(DROPOUT,)),
        grad("dropout_backward", F + "dropout", tests=(DROPOUT,)),
        of("clamp", "clamp", "clamp", "clamp_nan"),
        of("where_cond", "where", "where"),
        of("argmax_axis", "argmax", "argmax"),
        of("argmin_axis", "argmin", "argmin"),
        of("reduce_sum", "sum", "sum"),
        of("reduce_max", "max", "max", "amax"),
    ),
    "A12 fused": (
        fused("gemm_bias_relu", F + "linear", "relu(linear(x, w, b)): one kernel"),
        fused("gemm_bias_gelu", F + "linear", "gelu(linear(x, w, b)): one kernel"),
        fused("gemm_bias_sigmoid", F + "linear", "sigmoid(linear(x, w, b)): one kernel"),
        fused("gemm_bias_tanh", F + "linear", "tanh(linear(x, w, b)): one kernel"),
        fused("gemm_bias", F + "linear", "linear(x, w, b): one kernel"),
        fused("gemm_bias_swish", F + "linear", "silu(linear(x, w, b)): one kernel"),
        fused("layernorm_relu", F + "layer_norm", "relu(layer_norm(x)): one kernel"),
        fused("layernorm_gelu", F + "layer_norm", "gelu(layer_norm(x)): one kernel"),
        fused("residual_layernorm", F + "layer_norm", "s = x + r; (layer_norm(s), s): one kernel"),
        fused("bias_dropout", F + "dropout", "dropout(x + b): one kernel"),
    ),
    "A13 graph": (
        of("sparse_mm_forward", "spmm", "spmm"),
        grad("sparse_mm_backward", "spmm", "spmm"),
        of("message_passing_forward", "aggregate", *(f"aggregate_{way}" for way in ("sum", "mean", "max", "min"))),
        grad("message_passing_backward", "aggregate", *(f"aggregate_{way}" for way in ("sum", "mean", "max", "min"))),
        of("scatter_add(graph)", "scatter_sum", "scatter_sum"),
        of("scatter_max", "scatter_max", "scatter_max"),
        of("scatter_mean", "scatter_mean", "scatter_mean"),
        of("edge_softmax", "edge_softmax", "edge_softmax"),
        of("diffusion_conv_forward", "nn.DiffusionConv", layers=("DiffusionConv",)),
        grad("diffusion_conv_backward", "nn.DiffusionConv", layers=("DiffusionConv",)),
    ),
    "A14 3-D/mesh": (
        of("upsample3d_nearest", F + "interpolate", "interpolate_nearest_3d"),
        grad("upsample3d_nearest_backward", F + "interpolate", "interpolate_nearest_3d"),
        of("mesh_conv_forward", "nn.MeshEdgeConv", layers=("MeshEdgeConv",)),
        grad("mesh_conv_backward", "nn.MeshEdgeConv", layers=("MeshEdgeConv",)),
        of("spiral_conv_forward", "nn.SpiralConv", layers=("SpiralConv",)),
        grad("spiral_conv_backward", "nn.SpiralConv", layers=("SpiralConv",)),
    ),
    # Named beside the list.
    "Also named": (
        of(
            "lstm_gates_precompute",
            F + "linear",
            "linear",
            tests=("tests/backend/test_loop_plans.py::test_kernels_of_an_lstm_step",),
            remark="one product for all steps, before the loop",
        ),
        of("scatter_add_batched", "scatter_add", "scatter_add_batched"),
        grad("gemm_backward", "matmul", "matmul", "linear"),
        of("reduce_mean", "mean", "mean"),
        of("broadcast", "broadcast_to", "broadcast_to", "expand"),
        of("maxpool3d", F + "max_pool3d", "max_pool3d"),
        of("avgpool3d", F + "avg_pool3d", "avg_pool3d"),
        of("upsample2d_nearest", F + "interpolate", "interpolate_nearest_2d"),
        of("atomic_float_add", "scatter_add", "scatter_add", remark="none: sums are in a fixed order"),
    ),
}
COUNTS = (11, 11, 14, 12, 12, 7, 14, 11, 4, 10, 13, 10, 10, 6)
KERNELS = [kernel for group in CATALOGUE.values() for kernel in group]
