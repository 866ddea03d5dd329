"""Helpers around modules: packed and padded sequences (`rnn`)."""

from weft.nn.utils import rnn

__all__ = ["rnn"]
