"""`torch.utils` by name."""

from weft.contents import load_lazily as _load_lazily

__getattr__, __dir__, __all__ = _load_lazily(__name__, {}, ["checkpoint", "data"])
