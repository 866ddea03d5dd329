"""Text as numbers: tokenizers by bytes, by characters and by byte-pair encoding, and rows of tokens for models that
predict the next one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from weft.base import files
from weft.base.errors import RangeError, problem
from weft.core.boundary import entry_point
from weft.data.dataset import ArrayDataset
from weft.data.faults import DataError, Source, find_file, need_package, read_bytes

__all__ = ["BPETokenizer", "ByteTokenizer", "CharTokenizer", "pack_tokens"]


@entry_point
class ByteTokenizer:
    """The bytes of text in UTF-8: 256 tokens, no vocabulary to learn.

    >>> weft.data.ByteTokenizer().encode("hé").tolist()
    [104, 195, 169]
    """

    vocab_size = 256

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text, int64 [length]."""
        return np.frombuffer(text.encode(), np.uint8).astype(np.int64)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens; bytes that are no UTF-8 become a replacement character."""
        return bytes(_check_tokens("ByteTokenizer", tokens, 256)).decode(errors="replace")


@entry_point
class CharTokenizer:
    """The characters of a text, or of several, numbered in the order of their code points.

    >>> tokenizer = weft.data.CharTokenizer("hello")
    >>> tokenizer.decode(tokenizer.encode("hole"))
    'hole'
    """

    def __init__(self, text: Iterable[str]):
        self.characters = sorted({*itertools.chain.from_iterable(text)})
        self.vocab_size = len(self.characters)
        self._number_of = {one: number for number, one in enumerate(self.characters)}

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text, int64 [length]; a character that is not in the vocabulary is an error."""
        try:
            return np.array([self._number_of[one] for one in text], np.int64)
        except KeyError as error:
            position = text.index(error.args[0])
            given = f"{error.args[0]!r} at character {position}"
            raise problem(DataError, "CharTokenizer", given, "characters of the vocabulary") from None

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens."""
        return "".join(self.characters[one] for one in _check_tokens("CharTokenizer", tokens, self.vocab_size))

    def save(self, path: Source) -> None:
        """Write the vocabulary as JSON."""
        files.write("CharTokenizer.save", path, json.dumps({"characters": "".join(self.characters)}))

    @classmethod
    def load(cls, path: Source) -> CharTokenizer:
        """The tokenizer that `save` wrote."""
        try:
            characters = json.loads(read_bytes("CharTokenizer.load", path))["characters"]
            if not isinstance(characters, str):
                raise TypeError("no text")
            return cls(characters)
        except (ValueError, KeyError, TypeError) as error:
            who = f"CharTokenizer.load({str(path)!r})"
            raise problem(DataError, who, f"a damaged or foreign file ({error})", "what save wrote") from None


@entry_point
class BPETokenizer:
    """Byte-pair encoding of bytes, by the package `tokenizers`. Any text can be encoded, and decoded again exactly."""

    def __init__(self, tokenizer: Any):
        self.tokenizer = tokenizer
        self.vocab_size: int = tokenizer.get_vocab_size()

    @classmethod
    def train(cls, texts: str | Iterable[str], vocab_size: int = 1024, special: Sequence[str] = ()) -> BPETokenizer:
        """Learn a vocabulary from texts."""
        package = need_package("BPETokenizer", "tokenizers", "tokenizers")
        if vocab_size < 256 + len(special):
            raise problem(RangeError, "BPETokenizer", f"vocab_size={vocab_size}", f"at least {256 + len(special)}")
        tokenizer = package.Tokenizer(package.models.BPE())
        tokenizer.pre_tokenizer = package.pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = package.decoders.ByteLevel()
        trainer = package.trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=list(special), show_progress=False,
            initial_alphabet=package.pre_tokenizers.ByteLevel.alphabet(),
        )  # fmt: skip
        tokenizer.train_from_iterator([texts] if isinstance(texts, str) else texts, trainer)
        return cls(tokenizer)

    @classmethod
    def load(cls, path: Source) -> BPETokenizer:
        """A tokenizer of a `tokenizer.json`, this one's or Hugging Face's."""
        package = need_package("BPETokenizer", "tokenizers", "tokenizers")
        found = find_file("BPETokenizer.load", path)
        try:
            return cls(package.Tokenizer.from_file(str(found)))
        except Exception as error:  # the package raises plain exceptions
            who = f"BPETokenizer.load({str(path)!r})"
            raise problem(DataError, who, f"a damaged or foreign file ({error})", "a tokenizer.json") from None

    def save(self, path: Source) -> None:
        """Write the tokenizer as `tokenizer.json`."""
        self.tokenizer.save(str(path))

    def encode(self, text: str) -> np.ndarray:
        """The tokens of a text, int64 [length]."""
        return np.array(self.tokenizer.encode(text).ids, np.int64)

    def decode(self, tokens: Iterable[int]) -> str:
        """The text of tokens."""
        return self.tokenizer.decode(_check_tokens("BPETokenizer", tokens, self.vocab_size))


def _check_tokens(who: str, tokens: Iterable[int], limit: int) -> list[int]:
    found = [int(one) for one in (tokens.tolist() if hasattr(tokens, "tolist") else tokens)]
    wrong = next((one for one in found if not 0 <= one < limit), None)
    if wrong is not None:
        raise problem(RangeError, who, f"token {wrong}", f"tokens from 0 to {limit - 1}")
    return found


@entry_point
def pack_tokens(tokens: Any, length: int, stride: int | None = None) -> ArrayDataset:
    """Rows (inputs [length], targets [length]) of a long sequence of tokens: targets are the inputs one position on.
    Rows begin `stride` positions apart (`length` unless given); what is left at the end is dropped. The rows are views
    of `tokens`, which may be memory-mapped.

    >>> [one.tolist() for one in weft.data.pack_tokens(np.arange(8), 3)[1]]
    [[3, 4, 5], [4, 5, 6]]
    """
    array = np.asanyarray(tokens)
    step = length if stride is None else stride
    if array.ndim != 1 or array.dtype.kind not in "iu" or length < 1 or step < 1 or len(array) <= length:
        given = f"tokens {array.dtype}{list(array.shape)}, length={length}, stride={stride}"
        raise problem(RangeError, "pack_tokens", given, "whole numbers [n] with n above length, and positive numbers")
    if step == length:
        rows = (len(array) - 1) // length
        inputs, targets = (array[start : start + rows * length].reshape(rows, length) for start in (0, 1))
        return ArrayDataset(inputs, targets)
    windows = np.lib.stride_tricks.sliding_window_view(array, length)
    last = len(array) - length
    return ArrayDataset(windows[:last:step], windows[1 : last + 1 : step])
