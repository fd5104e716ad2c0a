"""The kernels of cells whose steps are captured on an NVIDIA GPU, compiled before their first step."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from harness.backends.local.engine_of_cell import EngineOfCell
from harness.engine.engine import Engine

if TYPE_CHECKING:
    from harness.engine.compile_ahead.compilation import Compilation


class KernelsAhead:
    """The kernels of cells that take turns, while they are compiled and until the steps of all cells are captured."""

    def __init__(self, compilation: Compilation) -> None:
        self._compilation = compilation
        self._is_told = False

    def capture(self, engine: Engine, steps: str) -> str | None:
        """Wait for the kernels, and capture the steps of an engine that are missing.

        Args:
            engine: of a cell.
            steps: `EngineOfCell.steps` of that cell.

        Returns:
            What is to be told of it; None where nothing is.
        """
        self._compilation.wait()
        began, layers_s = time.perf_counter(), engine.target.compile_s
        with self._compilation.launching(steps) as compiled_s:
            engine.prepare()
        parts = [] if self._is_told else [self._compilation.summary or "no kernels that are new to this process"]
        if compiled_s:
            parts.append(f"{len(compiled_s)} kernels compiled one after another in {sum(compiled_s):.1f} s")
        layers_s = engine.target.compile_s - layers_s
        if layers_s:
            # torch tells of none of the kernels in them
            parts.append(f"layers of transformers compiled or found on disk in {layers_s:.1f} s")
        self._is_told = True
        return "; ".join([*parts, f"steps captured in {time.perf_counter() - began:.1f} s"]) if parts else None


def kernels_ahead_of(engines: Sequence[EngineOfCell], device: torch.device) -> KernelsAhead | None:
    """The kernels that cells launch, under way from here on; None where no step is captured, or none is compiled.

    Objects of the user's own are not run ahead of time: the kernels of such a cell are compiled where it launches them.

    Args:
        engines: of the cells, their limits known; those that share one are named once.
        device: that they run on.
    """
    captured = [engine for engine in engines if engine.uses_graphs and not engine.runs_own_objects]
    if device.type != "cuda" or torch.version.hip is not None or not captured:
        return None
    # a machine without a GPU need not have triton
    from triton import knobs

    from harness.engine.compile_ahead.compilation import Compilation

    if knobs.runtime.interpret:
        return None
    major, minor = torch.cuda.get_device_capability(device)
    calls = {engine.steps: engine.rehearse_on_meta for engine in captured}
    return KernelsAhead(Compilation(calls, 10 * major + minor))
