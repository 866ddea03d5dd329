"""The ways in which PyTorch runs a step: eagerly, through `torch.compile`, and either of them in a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Mode:
    """`compile` is torch.compile's mode, None for eager; `graph`: the step is captured once and replayed."""

    compile: str | None = None
    graph: bool = False

    def compiled(self, function: Callable) -> Callable:
        return function if self.compile is None else torch.compile(function, mode=self.compile)

    def captured(self, step: Callable[[], Any], restore: Callable[[], None] = lambda: None) -> Callable[[], Any]:
        """`step`, or the replay of a CUDA graph of it; `restore` undoes what the steps before the capture changed."""
        if not self.graph:
            return step
        if not torch.cuda.is_available():
            raise RuntimeError("CUDA graphs need a GPU")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = step()
        restore()

        def replay() -> Any:
            graph.replay()
            return result

        return replay


MODES = {
    "torch": Mode(),
    "torch.compile": Mode("default"),
    "torch graph": Mode(graph=True),
    "torch.compile graph": Mode("default", graph=True),
    "torch autotuned": Mode("max-autotune-no-cudagraphs"),
}
