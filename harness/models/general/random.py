"""A network of transformers with random weights, for speed and memory at real shapes.

Matrices are drawn as harness.models.random_weights says. What has one dimension keeps what transformers begins with:
norms whose scale is 1 or 0, decays of recurrent states, biases, sinks.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from harness.models.general.known_types import quietly
from harness.models.general.network import OWN_IMPLEMENTATION
from harness.models.general.target import GeneralTarget
from harness.models.random_weights import RandomWeights, made_on, seed_of


def random_general(
    config: PreTrainedConfig, role: str, tokenizer: Any, device: torch.device | str, dtype: torch.dtype, **given: Any
) -> GeneralTarget:
    """A frozen model, the same at every call on one kind of device.

    given: see TargetModel.
    """
    place = torch.device(device)
    text = config.get_text_config(decoder=True)
    with quietly(), made_on(place, dtype), torch.random.fork_rng():
        torch.manual_seed(seed_of(role))
        causal_lm: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=OWN_IMPLEMENTATION)
    tied = bool(text.tie_word_embeddings)
    weights = RandomWeights(role, text.num_hidden_layers, device=place, dtype=dtype, tied=tied)
    for name, parameter in causal_lm.named_parameters():
        if parameter.ndim >= 2:
            weights.put(name, parameter.data)
    return GeneralTarget(causal_lm.eval().requires_grad_(False), tokenizer, **given)
