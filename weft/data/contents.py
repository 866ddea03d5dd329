"""The files of weft.data and the names that they export. Written by `make stubs`; not to be edited."""

CONTENTS: dict[str, tuple[str, ...]] = {
    "arrays": (
        "load_arrays",
        "open_arrays",
    ),
    "arrow": (
        "ParquetStream",
        "read_arrow",
        "read_parquet",
    ),
    "bucketing": (
        "LengthBucketSampler",
        "PadCollate",
        "find_boundaries",
    ),
    "cifar": (
        "CIFAR10",
        "CIFAR100",
        "read_cifar",
    ),
    "collate": ("default_collate",),
    "csv_files": ("read_csv",),
    "dataset": (
        "ArrayDataset",
        "ChainDataset",
        "ConcatDataset",
        "Dataset",
        "IterableDataset",
        "Subset",
        "TensorDataset",
        "k_fold",
        "random_split",
    ),
    "faults": (
        "DataError",
        "MissingDataError",
        "MissingPackageError",
    ),
    "foreign": (
        "from_huggingface",
        "from_torch",
    ),
    "idx": (
        "MNIST",
        "read_idx",
    ),
    "images": (
        "ImageFolder",
        "read_image",
    ),
    "loader": ("DataLoader",),
    "resident": ("ResidentData",),
    "sampler": (
        "BatchSampler",
        "RandomSampler",
        "Sampler",
        "SequentialSampler",
        "SubsetRandomSampler",
        "WeightedRandomSampler",
    ),
    "table": ("Table",),
    "text": (
        "BPETokenizer",
        "ByteTokenizer",
        "CharTokenizer",
        "pack_tokens",
    ),
    "workers": ("WorkerError",),
}
