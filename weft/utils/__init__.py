"""`torch.utils` by name."""

from weft.contents import load_lazily

__getattr__, __dir__, __all__ = load_lazily(__name__, {}, ["data"])
