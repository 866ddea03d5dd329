"""Written by `make stubs` from the table of contents; not to be edited."""

from weft.optim import lr_scheduler as lr_scheduler
from weft.optim import swa_utils as swa_utils
from weft.optim.adafactor import Adafactor as Adafactor
from weft.optim.adam import Adam as Adam
from weft.optim.adam import AdamW as AdamW
from weft.optim.adam import Adamax as Adamax
from weft.optim.adam import Lion as Lion
from weft.optim.adam import NAdam as NAdam
from weft.optim.adam import RAdam as RAdam
from weft.optim.adaptive import Adadelta as Adadelta
from weft.optim.adaptive import Adagrad as Adagrad
from weft.optim.adaptive import RMSprop as RMSprop
from weft.optim.adaptive import Rprop as Rprop
from weft.optim.averaging import ExponentialMovingAverage as ExponentialMovingAverage
from weft.optim.averaging import StochasticWeightAverage as StochasticWeightAverage
from weft.optim.clip import clip_grad_norm_ as clip_grad_norm_
from weft.optim.clip import clip_grad_value_ as clip_grad_value_
from weft.optim.clip import clip_grads_with_norm_ as clip_grads_with_norm_
from weft.optim.clip import get_total_norm as get_total_norm
from weft.optim.large_batch import LAMB as LAMB
from weft.optim.large_batch import LARS as LARS
from weft.optim.lbfgs import LBFGS as LBFGS
from weft.optim.muon import Muon as Muon
from weft.optim.optimizer import Optimizer as Optimizer
from weft.optim.penalties import elastic_penalty as elastic_penalty
from weft.optim.penalties import l1_penalty as l1_penalty
from weft.optim.penalties import l2_penalty as l2_penalty
from weft.optim.penalties import split_decay as split_decay
from weft.optim.sgd import ASGD as ASGD
from weft.optim.sgd import NAG as NAG
from weft.optim.sgd import SGD as SGD

CONTENTS: dict[str, tuple[str, ...]]
