"""Layers with other learning rules or other state: spiking, plastic, reservoir, HTM, Boltzmann, quantum, variational.

Each file is one model of the literature, made of tensor operations; no other layer depends on them.
"""
