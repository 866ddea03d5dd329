"""Training: the Trainer, its metrics and callbacks, and what it takes to stop a run and go on with it.

The path of one step: `Batches` (batches.py) says which batch is next, on the device where it can; `Step` (step.py) is
the compiled function of forward, loss, backward, clipping, update and metrics; `Trainer.fit` calls it and asks
callbacks. Sums of losses and metrics stay in device buffers (`Metric`), and are read as one vector.
`contents.CONTENTS`, which `make stubs` writes from the `__all__` of the files, says which file has which names.
"""

from weft.base.lazy_modules import load_lazily as _load_lazily
from weft.train.contents import CONTENTS

__getattr__, __dir__, __all__ = _load_lazily(__name__, CONTENTS)
