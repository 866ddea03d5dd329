"""The UCI 8 x 8 handwritten digits, shipped with the package (source and licence: `DIGITS.md` beside this file).

Arrays are NumPy: a data set belongs to no device until the user says which, and one `weft.tensor(images)` uploads all
of it. This module reads a file; it knows nothing of tensors.
"""

from __future__ import annotations

from importlib import resources

import numpy as np

CLASSES = 10
PIXELS = 64
TEST_EVERY = 5  # every fifth sample of a class goes to the test part


def load(split: str = "train") -> tuple[np.ndarray, np.ndarray]:
    """The `"train"` or `"test"` part: images float32 (N, 64) in [0, 1] and labels int64 (N,), in the file's order.

    The split is fixed and stratified: of each class, samples number 4, 9, 14, ... (counted from 0) are the test part.

    >>> images, labels = load("test")
    >>> images.shape, labels.shape, images.dtype, labels.dtype
    ((355, 64), (355,), dtype('float32'), dtype('int64'))
    """
    if split not in ("train", "test"):
        raise ValueError(f"digits.load: given split {split!r}; expected 'train' or 'test'.")
    with resources.files("weft.data").joinpath("digits.npz").open("rb") as file, np.load(file) as archive:
        images, labels = archive["images"], archive["labels"]
    chosen = _is_test(labels) == (split == "test")
    return images[chosen].astype(np.float32) / np.float32(16), labels[chosen].astype(np.int64)


def _is_test(labels: np.ndarray) -> np.ndarray:
    """Which samples are in the test part: the number of a sample within its class decides."""
    number = np.zeros(len(labels), dtype=np.int64)
    for label in range(CLASSES):
        members = labels == label
        number[members] = np.arange(members.sum())
    return number % TEST_EVERY == TEST_EVERY - 1
