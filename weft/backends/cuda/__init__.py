"""The CUDA backend: NVIDIA's driver, compiler and libraries behind the protocols of `weft.backends.gpu`. The only
package, with CUDA's dialect table, that knows NVIDIA's numbers; nothing of CUDA is imported before a GPU is used.
"""
