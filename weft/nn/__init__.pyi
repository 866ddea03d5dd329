"""Written by `make stubs` from the table of contents; not to be edited."""

from weft.nn import functional as functional
from weft.nn import init as init
from weft.nn import utils as utils
from weft.nn.activation import Tanh as Tanh
from weft.nn.containers import ModuleDict as ModuleDict
from weft.nn.containers import ModuleList as ModuleList
from weft.nn.containers import ParameterDict as ParameterDict
from weft.nn.containers import ParameterList as ParameterList
from weft.nn.containers import Sequential as Sequential
from weft.nn.graph_model import Input as Input
from weft.nn.graph_model import Lambda as Lambda
from weft.nn.graph_model import Model as Model
from weft.nn.linear import Linear as Linear
from weft.nn.module import Module as Module
from weft.nn.parameter import Buffer as Buffer
from weft.nn.parameter import Parameter as Parameter
from weft.nn.registry import get as get
from weft.nn.registry import layers as layers
from weft.nn.summarize import summary as summary
from weft.nn.support import supports as supports

CONTENTS: dict[str, tuple[str, ...]]
