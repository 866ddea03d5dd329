"""Layers over images and other grids: convolutions, pooling, padding, resampling, and blocks made of them.

They are made of tensor operations and of the layers for any shape; they know nothing of sequences or graphs.
"""
