"""weft.signal: windows for signal processing, under PyTorch's names (`torch.signal`).

They are computed on the host in float64 and rounded once; nothing here is differentiated or compiled.
"""

from weft.signal import windows

__all__ = ["windows"]
