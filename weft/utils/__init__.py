"""What PyTorch has in `torch.utils`, by its names: data loading and checkpointing.

Everything here is defined elsewhere (`weft.data`, `weft.autograd`) and only named again.
"""

from weft.base.lazy_modules import load_lazily as _load_lazily

__getattr__, __dir__, __all__ = _load_lazily(__name__, {}, ["checkpoint", "data"])
