"""Optimizers: updates as flat tensor expressions over all parameters of a group, one kernel however many there are.

`Optimizer` keeps groups, state and hyper-parameters on the device; a subclass writes `update`. Schedulers, averages and
clipping are beside it. Nothing here knows a layer or the compiler. `contents.CONTENTS`, which `make stubs` writes from
the `__all__` of the files, says which file has which names.
"""

from weft.base.lazy_modules import load_lazily as _load_lazily
from weft.optim.contents import CONTENTS

_SUBMODULES = ("lr_scheduler", "swa_utils")
__getattr__, __dir__, __all__ = _load_lazily(__name__, CONTENTS, _SUBMODULES)
