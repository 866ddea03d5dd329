"""The HIP backend: AMD's runtime and compiler behind the protocols of `weft.backends.gpu`. Nothing of HIP is imported
before a GPU is used. It has been compiled and run against a fake runtime, never on an AMD GPU.
"""
