"""Optimizers: updates as flat tensor expressions over all parameters of a group, one kernel however many there are."""

from weft.optim.adam import Adam, AdamW
from weft.optim.clip import clip_grad_norm_, clip_grad_value_
from weft.optim.optimizer import Optimizer
from weft.optim.sgd import SGD

__all__ = ["SGD", "Adam", "AdamW", "Optimizer", "clip_grad_norm_", "clip_grad_value_"]
