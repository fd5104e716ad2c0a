"""Rejection Lab's own sampling core as a subject: the core of the device, or the reference on any device."""

from __future__ import annotations

import torch

from harness.certification.subject import Features, Functions
from kernels.core import Core, core_for, reference_core


def _as_subject(core: Core) -> Functions:
    return Functions(core.name, core.verify, core.draw, core.coupled_draw, Features(row_stats=True, masks=True))


def project_core(device: torch.device) -> Functions:
    """What the engine runs on this device: Triton on CUDA, the reference elsewhere."""
    return _as_subject(core_for(device))


def reference(device: torch.device) -> Functions:
    """The executable specification, whatever the device."""
    return _as_subject(reference_core())
