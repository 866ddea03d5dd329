"""Augmentation of batches on the device: tensor code that traces into the plan of a step.

Images are [samples, channels, height, width]. A random transform has two parts: `draw(x)` draws its parameters, one for
each sample, from the generator of the loader (`seeds.current_generator`), and `apply(x, *parameters)` computes the
result from them, so that it can be compared with any other implementation. Called with more than one tensor, a
transform changes the first and passes on the others (`Mixup` and `CutMix` change the labels, too).
"""

from weft.data.transforms.base import Compose, Normalize, ToFloat, Transform
from weft.data.transforms.geometry import (
    CenterCrop,
    RandomAffine,
    RandomCrop,
    RandomHorizontalFlip,
    RandomRotation,
    RandomScale,
    RandomVerticalFlip,
    affine_matrices,
)
from weft.data.transforms.mixtures import CutMix, Mixup, draw_beta
from weft.data.transforms.values import (
    Cutout,
    GaussianNoise,
    RandomBrightness,
    RandomContrast,
    RandomHue,
    RandomSaturation,
)

__all__ = [
    "CenterCrop", "Compose", "CutMix", "Cutout", "GaussianNoise", "Mixup", "Normalize", "RandomAffine",
    "RandomBrightness", "RandomContrast", "RandomCrop", "RandomHorizontalFlip", "RandomHue", "RandomRotation",
    "RandomSaturation", "RandomScale", "RandomVerticalFlip", "ToFloat", "Transform", "affine_matrices", "draw_beta",
]  # fmt: skip
