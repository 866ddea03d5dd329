"""Folders of images, one folder for each class, read by Pillow when they are used."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.data.dataset import Dataset
from weft.data.faults import DataError, MissingDataError, Source, find_file, find_folder, need_package

__all__ = ["ImageFolder", "read_image"]

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
FORMATS_OF_16_BITS = ("PNG", "PPM")  # at most
MODES = {"RGB": 3, "L": 1, "RGBA": 4}


@entry_point
def read_image(path: Source, size: tuple[int, int] | int | None = None, mode: str = "RGB") -> np.ndarray:
    """An image as uint8 [channels, height, width], resized to `size` (height, width) if it is given. Of 16 bits the
    upper 8 are taken."""
    pillow = need_package("read_image", "PIL.Image", "Pillow")
    find_file("read_image", path)
    if mode not in MODES:
        raise problem(RangeError, "read_image", f"mode={mode!r}", f"one of {sorted(MODES)}")
    try:
        with pillow.open(path) as image:
            image = _with_eight_bits(pillow, image).convert(mode)
            if size is not None:
                height, width = (size, size) if isinstance(size, int) else size
                image = image.resize((width, height), pillow.Resampling.BILINEAR)
            array = np.asarray(image)
    except (OSError, SyntaxError, ValueError, EOFError, pillow.DecompressionBombError) as error:
        text = f"{str(path)!r}, an image that cannot be read ({error})"
        raise problem(DataError, "read_image", text, "an image file", "remove it, or use skip=True") from None
    return array[None] if array.ndim == 2 else array.transpose(2, 0, 1).copy()


def _with_eight_bits(pillow: Any, image: Any) -> Any:
    """An image with 8 bits for each channel: Pillow's own conversion of wider numbers cuts them off at 255."""
    is_wide = image.mode == "I" and image.format in FORMATS_OF_16_BITS  # which Pillow widens to 32 bits
    if is_wide or image.mode.startswith("I;16"):
        return pillow.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of 32 bits, mode {image.mode!r}, whose range is not known")
    return image


@entry_point
class ImageFolder(Dataset):
    """Images of a folder with one folder for each class: items (uint8 [channels, height, width], class number). Hidden
    files and folders, whose names begin with a dot, are left out; a class without an image is an error.

    An image that cannot be read is an error with its path. With `skip=True` all images are looked at once, when the
    dataset is made, and those are left out; `skipped` has their paths. `transform` changes an image's array.
    """

    def __init__(
        self,
        folder: Source,
        size: tuple[int, int] | int | None = None,
        *,
        mode: str = "RGB",
        skip: bool = False,
        transform: Callable[[np.ndarray], Any] | None = None,
    ):
        root = find_folder("ImageFolder", folder)
        self.size, self.mode, self.transform = size, mode, transform
        self.classes = sorted(one.name for one in root.iterdir() if one.is_dir() and not one.name.startswith("."))
        self.samples = [
            (path, number)
            for number, name in enumerate(self.classes)
            for path in sorted((root / name).rglob("*"))
            if path.suffix.lower() in SUFFIXES and path.is_file() and not _is_hidden(path.relative_to(root))
        ]
        numbers = {number for _, number in self.samples}
        empty = [name for number, name in enumerate(self.classes) if number not in numbers]
        if empty and self.samples:
            expected = f"images ({', '.join(SUFFIXES)}) in each folder of a class"
            fix = "remove the folders, or fill them: each is a class and has a number"
            raise problem(MissingDataError, "ImageFolder", f"{str(root)!r} with nothing in {empty}", expected, fix)
        self.skipped: list[Path] = []
        if skip:
            self._leave_out_unreadable()
        if not self.samples:
            given = f"{str(root)!r} without images"
            raise problem(MissingDataError, "ImageFolder", given, f"folders of classes with {', '.join(SUFFIXES)}")

    def _leave_out_unreadable(self) -> None:
        readable = []
        for path, number in self.samples:
            try:
                read_image(path, self.size, self.mode)
                readable.append((path, number))
            except DataError:
                self.skipped.append(path)
        self.samples = readable

    def __getitem__(self, index: int) -> tuple[Any, int]:
        path, number = self.samples[index]
        image = read_image(path, self.size, self.mode)
        return (image if self.transform is None else self.transform(image)), number

    def __len__(self) -> int:
        return len(self.samples)


def _is_hidden(path: Path) -> bool:
    return any(part.startswith(".") for part in path.parts)
