"""Numerical building blocks of kernels: transcendental functions, 16-bit floats, random bits and compensated sums.

They are expressions of the kernel language, so that every backend computes the same bits. Nothing here knows a schedule
or a device.
"""
