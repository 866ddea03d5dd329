"""Layers over graphs and meshes: message passing, graph convolutions, attention over edges, diffusion.

`message_passing` says how edges may be given. They are made of scatter and gather operations and know no kernel.
"""
