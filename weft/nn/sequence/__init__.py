"""Layers over sequences: recurrent cells and layers, attention, transformers, memories, and structured outputs.

They are made of tensor operations and other layers; how a loop over time is compiled is not their business.
"""
