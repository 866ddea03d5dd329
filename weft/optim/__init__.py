"""Optimizers: updates as flat tensor expressions over all parameters of a group, one kernel however many there are."""

from weft.contents import load_lazily as _load_lazily

# Files of this package and the names that they export; a file is loaded when one of its names is first used.
CONTENTS: dict[str, tuple[str, ...]] = {
    "optimizer": ("Optimizer",),
    "sgd": ("ASGD", "NAG", "SGD"),
    "adam": ("Adam", "AdamW", "Adamax", "Lion", "NAdam", "RAdam"),
    "adaptive": ("Adadelta", "Adagrad", "RMSprop", "Rprop"),
    "large_batch": ("LAMB", "LARS"),
    "muon": ("Muon",),
    "adafactor": ("Adafactor",),
    "lbfgs": ("LBFGS",),
    "clip": ("clip_grad_norm_", "clip_grad_value_", "clip_grads_with_norm_", "get_total_norm"),
    "penalties": ("elastic_penalty", "l1_penalty", "l2_penalty", "split_decay"),
    "averaging": ("ExponentialMovingAverage", "StochasticWeightAverage"),
}
_SUBMODULES = ("lr_scheduler", "swa_utils")
__getattr__, __dir__, __all__ = _load_lazily(__name__, CONTENTS, _SUBMODULES)
