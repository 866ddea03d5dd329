"""Optimizers: updates as flat tensor expressions over all parameters of a group, one kernel however many there are."""

from weft.optim import lr_scheduler, swa_utils
from weft.optim.adafactor import Adafactor
from weft.optim.adam import Adam, Adamax, AdamW, Lion, NAdam, RAdam
from weft.optim.adaptive import Adadelta, Adagrad, RMSprop, Rprop
from weft.optim.averaging import ExponentialMovingAverage, StochasticWeightAverage
from weft.optim.clip import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm
from weft.optim.large_batch import LAMB, LARS
from weft.optim.lbfgs import LBFGS
from weft.optim.muon import Muon
from weft.optim.optimizer import Optimizer
from weft.optim.penalties import elastic_penalty, l1_penalty, l2_penalty, split_decay
from weft.optim.sgd import ASGD, NAG, SGD

__all__ = [
    "ASGD",
    "LAMB",
    "LARS",
    "LBFGS",
    "NAG",
    "SGD",
    "Adadelta",
    "Adafactor",
    "Adagrad",
    "Adam",
    "AdamW",
    "Adamax",
    "ExponentialMovingAverage",
    "Lion",
    "Muon",
    "NAdam",
    "Optimizer",
    "RAdam",
    "RMSprop",
    "Rprop",
    "StochasticWeightAverage",
    "clip_grad_norm_",
    "clip_grad_value_",
    "clip_grads_with_norm_",
    "elastic_penalty",
    "get_total_norm",
    "l1_penalty",
    "l2_penalty",
    "lr_scheduler",
    "split_decay",
    "swa_utils",
]
