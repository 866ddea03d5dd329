"""Data sets, readers, loaders and augmentation. `CONTENTS` is the table of contents: file by file.

All of it is loaded when it is used; the data of `digits` ships with the package.
"""

from weft.contents import load_lazily as _load_lazily

CONTENTS: dict[str, tuple[str, ...]] = {
    "dataset": (
        "ArrayDataset", "ChainDataset", "ConcatDataset", "Dataset", "IterableDataset", "Subset", "TensorDataset",
        "random_split",
    ),
    "loader": ("DataLoader",),
    "collate": ("default_collate",),
    "resident": ("ResidentData",),
    "sampler": (
        "BatchSampler", "RandomSampler", "Sampler", "SequentialSampler", "SubsetRandomSampler",
        "WeightedRandomSampler",
    ),
    "workers": ("WorkerError",),
}  # fmt: skip
__getattr__, __dir__, __all__ = _load_lazily(__name__, CONTENTS, ["digits"])
