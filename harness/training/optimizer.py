"""AdamW as all networks here are trained with it, and the arithmetic of a step."""

from __future__ import annotations

import torch
from torch import nn

LOG_EVERY = 50


def autocast(device: str | torch.device) -> torch.autocast:
    """bfloat16 arithmetic on a GPU, none on a CPU."""
    kind = torch.device(device).type
    return torch.autocast(kind, dtype=torch.bfloat16, enabled=kind == "cuda")


def adamw(model: nn.Module, learning_rate: float, weight_decay: float, device: str | torch.device) -> torch.optim.AdamW:
    """AdamW that decays matrices, but neither embeddings nor norms."""
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    decayed = [parameter for name, parameter in named if parameter.ndim == 2 and "embed" not in name]
    rest = [parameter for name, parameter in named if parameter.ndim != 2 or "embed" in name]
    groups = [{"params": decayed, "weight_decay": weight_decay}, {"params": rest, "weight_decay": 0.0}]
    return torch.optim.AdamW(
        [group for group in groups if group["params"]],
        lr=learning_rate,
        betas=(0.9, 0.95),
        fused=torch.device(device).type == "cuda",
    )


def step(optimizer: torch.optim.Optimizer, model: nn.Module, learning_rate: float) -> None:
    """One clipped optimizer step at a learning rate."""
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
