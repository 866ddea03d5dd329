"""The HIP backend: AMD's runtime and compiler behind the protocols of `weft.backends.gpu`. Nothing of HIP is imported
before a GPU is used. Its kernels have been compiled, and executed on a CPU with stand-ins for AMD's builtins; its
driver has run against a fake runtime. Nothing of it ever ran on an AMD GPU.
"""
