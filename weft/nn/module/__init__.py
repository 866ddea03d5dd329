"""Module, the base class of layers and models: attributes, calls, hooks, state_dict and how a module is described.

One subject a file; `Module` puts them together. Nothing here knows a layer.
"""

from weft.nn.module.module import Module as Module
