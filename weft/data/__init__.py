"""Data sets, readers, loaders and augmentation.

All of it is loaded when it is used; the data of `digits` ships with the package. It makes batches of tensors and knows
neither models nor training. `contents.CONTENTS`, which `make stubs` writes from the `__all__` of the files, says which
file has which names.
"""

from weft.base.lazy_modules import load_lazily as _load_lazily
from weft.data.contents import CONTENTS

__getattr__, __dir__, __all__ = _load_lazily(__name__, CONTENTS, ["digits", "transforms"])
