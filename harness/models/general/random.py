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
from harness.models.meta import META
from harness.models.random_weights import RandomWeights, made_on, seed_of


def random_general(
    config: PreTrainedConfig,
    role: str,
    tokenizer: Any,
    device: torch.device | str,
    dtype: torch.dtype,
    num_ranks: int = 1,
    **given: Any,
) -> GeneralTarget:
    """A frozen model, the same at every call on one kind of device.

    num_ranks: of which this process is one, with its part of each tensor; matrices are those of a single rank.
    given: see TargetModel.
    """
    place = torch.device(device)
    text = config.get_text_config(decoder=True)
    if num_ranks > 1 and place.type != "meta":
        # torch.distributed is imported for several ranks alone
        from harness.models.general.sharded_target import ShardedTarget

        split = _split(config, role, place, dtype, num_ranks)
        return ShardedTarget(split.eval().requires_grad_(False), tokenizer, **given)
    with quietly(), made_on(place, dtype), torch.random.fork_rng():
        torch.manual_seed(seed_of(role))
        causal_lm: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=OWN_IMPLEMENTATION)
    weights = _weights(text, role, place, dtype)
    for name, parameter in causal_lm.named_parameters():
        if parameter.ndim >= 2:
            weights.put(name, parameter.data)
    target = GeneralTarget(causal_lm.eval().requires_grad_(False), tokenizer, **given)
    if num_ranks > 1:
        target.be_split(num_ranks)
    return target


def _weights(text: PreTrainedConfig, role: str, device: torch.device, dtype: torch.dtype) -> RandomWeights:
    tied = bool(text.tie_word_embeddings)
    return RandomWeights(role, text.num_hidden_layers, device=device, dtype=dtype, tied=tied)


def _split(config: PreTrainedConfig, role: str, device: torch.device, dtype: torch.dtype, num_ranks: int) -> Any:
    """This rank's part of the model: one tensor after the other is drawn whole, and the part is kept.

    What has one dimension and is drawn, such as sinks, is the same on all ranks, and another than on a single one.
    """
    from torch.distributed.tensor import DTensor, distribute_tensor

    from harness.models.general.split import distributed

    with quietly(), made_on(META, dtype):
        causal_lm: Any = AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=OWN_IMPLEMENTATION)
    with quietly(), torch.random.fork_rng(), torch.device(device):
        torch.manual_seed(seed_of(role))
        for module in causal_lm.modules():
            for name, parameter in module.named_parameters(recurse=False):
                if parameter.ndim >= 2:
                    parameter._is_hf_initialized = True
                else:
                    place = torch.empty_like(parameter, device=device)
                    module._parameters[name] = torch.nn.Parameter(place, requires_grad=False)
            for name, buffer in module.named_buffers(recurse=False):
                module._buffers[name] = torch.empty_like(buffer, device=device)
        causal_lm.initialize_weights()
    causal_lm = distributed(causal_lm, num_ranks)
    weights = _weights(config.get_text_config(decoder=True), role, device, dtype)
    tied: dict[int, torch.nn.Parameter] = {}
    for prefix, module in causal_lm.named_modules():
        for name, parameter in list(module.named_parameters(recurse=False)):
            if not parameter.is_meta:
                continue
            if id(parameter) not in tied:
                drawn = torch.empty(parameter.shape, dtype=dtype, device=device)
                weights.put(f"{prefix}.{name}", drawn)
                if isinstance(parameter, DTensor):
                    whole = distribute_tensor(drawn, parameter.device_mesh, parameter.placements, src_data_rank=None)
                    # its part alone, not a view of all
                    drawn = DTensor.from_local(
                        whole.to_local().clone(),
                        parameter.device_mesh,
                        parameter.placements,
                        run_check=False,
                        shape=parameter.shape,
                        stride=parameter.stride(),
                    )
                tied[id(parameter)] = torch.nn.Parameter(drawn, requires_grad=False)
            module._parameters[name] = tied[id(parameter)]
    return causal_lm
