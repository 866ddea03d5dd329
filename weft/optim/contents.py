"""The files of weft.optim and the names that they export. Written by `make stubs`; not to be edited."""

CONTENTS: dict[str, tuple[str, ...]] = {
    "adafactor": ("Adafactor",),
    "adam": (
        "Adam",
        "AdamW",
        "Adamax",
        "Lion",
        "NAdam",
        "RAdam",
    ),
    "adaptive": (
        "Adadelta",
        "Adagrad",
        "RMSprop",
        "Rprop",
    ),
    "averaging": (
        "ExponentialMovingAverage",
        "StochasticWeightAverage",
    ),
    "clip": (
        "clip_grad_norm_",
        "clip_grad_value_",
        "clip_grads_with_norm_",
        "get_total_norm",
    ),
    "large_batch": (
        "LAMB",
        "LARS",
    ),
    "lbfgs": ("LBFGS",),
    "muon": ("Muon",),
    "optimizer": ("Optimizer",),
    "penalties": (
        "elastic_penalty",
        "l1_penalty",
        "l2_penalty",
        "split_decay",
    ),
    "sgd": (
        "ASGD",
        "NAG",
        "SGD",
    ),
}
