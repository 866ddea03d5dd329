"""The WebGPU backend: GPUs through wgpu, over Vulkan, Metal or Direct3D 12. Nothing of wgpu is imported before a device
of it is requested.
"""
