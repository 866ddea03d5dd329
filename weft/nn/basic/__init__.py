"""Layers for values of any shape: activations, softmax, dropout, dense layers, normalization, embeddings, experts.

They are made of tensor operations and know nothing of images, sequences or graphs.
"""
