"""Layers and functions for networks, made of tensor operations only."""

from weft.nn import functional, init

__all__ = ["functional", "init"]
