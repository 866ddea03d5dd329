"""Training: the Trainer, its metrics and callbacks, and what it takes to stop a run and go on with it.

The path of one step: `Batches` (batches.py) says which batch is next, on the device where it can; `Step` (step.py) is
the compiled function of forward, loss, backward, clipping, update and metrics; `Trainer.fit` calls it and asks
callbacks. Sums of losses and metrics stay in device buffers (`Metric`), and are read as one vector when somebody looks.
"""

from weft.contents import load_lazily as _load_lazily

# Files of this package and the names that they export; a file is loaded when one of its names is first used.
CONTENTS: dict[str, tuple[str, ...]] = {
    "trainer": ("Trainer",),
    "history": ("History",),
    "metrics": (
        "AUC", "IoU", "MAE", "MSE", "R2", "Accuracy", "ConfusionMatrix", "F1", "Mean", "Metric", "Perplexity",
        "Precision", "Recall", "TopK",
    ),
    "callbacks": ("Callback", "EMA", "EarlyStopping", "LearningRateMonitor", "ModelCheckpoint", "ReduceLROnPlateau"),
    "loggers": ("CSVLogger", "RunFolder", "TensorBoard"),
    "progress": ("ProgressBar",),
    "tensorboard": ("EventWriter",),
    "faults": ("Interrupted", "NotFiniteError"),
}  # fmt: skip
__getattr__, __dir__, __all__ = _load_lazily(__name__, CONTENTS)
