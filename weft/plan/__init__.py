"""What the compiler and the backends share: plans as pure data, devices, buffers, and the protocols of backends. It
knows neither the compiler's passes nor any backend.
"""
