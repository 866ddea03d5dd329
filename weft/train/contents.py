"""The files of weft.train and the names that they export. Written by `make stubs`; not to be edited."""

CONTENTS: dict[str, tuple[str, ...]] = {
    "callbacks": (
        "Callback",
        "EMA",
        "EarlyStopping",
        "LearningRateMonitor",
        "ModelCheckpoint",
        "ReduceLROnPlateau",
    ),
    "class_metrics": (
        "AUC",
        "Accuracy",
        "ConfusionMatrix",
        "F1",
        "IoU",
        "Precision",
        "Recall",
        "TopK",
    ),
    "faults": (
        "Interrupted",
        "NotFiniteError",
    ),
    "history": ("History",),
    "loggers": (
        "CSVLogger",
        "RunFolder",
        "TensorBoard",
    ),
    "metric": (
        "Mean",
        "Metric",
    ),
    "metrics": (
        "MAE",
        "MSE",
        "Perplexity",
        "R2",
    ),
    "progress": ("ProgressBar",),
    "tensorboard": ("EventWriter",),
    "trainer": ("Trainer",),
}
