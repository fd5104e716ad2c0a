"""Loading a checkpoint by transformers, and what it says of tensors that are missing, misshapen or unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import AutoModelForCausalLM, PreTrainedConfig

from harness.models.accounting import CONFIG, Accepted, Settled, means
from harness.models.checkpoint import CheckpointError, configured_by, first_names, read_fields
from harness.models.general.known_types import quietly
from harness.models.general.network import OWN_IMPLEMENTATION
from harness.models.general.probe import check_over_slots, failing_code_told
from harness.models.general.target import GeneralTarget
from harness.models.mtp_layouts import is_mtp_tensor
from harness.models.ranks_fit import rounded_misfit
from harness.models.rounded_weights import rounded_weights


class GeneralFolder(NamedTuple):
    """A folder whose model transformers runs."""

    folder: Path
    config: PreTrainedConfig
    settled: Settled
    accepted: Accepted
    tokenizer: Any
    name: str
    """What tables call the model."""
    most_ids: int | None = None
    """Token ids that are kept; None keeps all."""


def load_general(
    given: GeneralFolder,
    device: torch.device | str,
    dtype: torch.dtype | None,
    in_fp8: bool = False,
    num_ranks: int = 1,
) -> GeneralTarget:
    """Load a model with frozen weights, and compare it over slots with its plain forward, unless it is on meta.

    dtype: None is the one that its configuration states, else that of its weights.
    num_ranks: of which this process is one; all load at the same time, on the devices of their process group.

    Raises:
        CheckpointError: tensors are missing, misshapen or unknown, or the probe finds a difference.
        ValueError: weights of 8 bits are asked for.
    """
    check_fp8(in_fp8, given.name)
    rounded = rounded_weights(read_fields(given.folder / CONFIG))
    misfit = rounded_misfit(rounded, num_ranks)
    if misfit is not None:
        raise ValueError(misfit)
    place = torch.device(device)
    is_split = num_ranks > 1 and place.type != "meta"
    causal_lm, assumed = _read(given, place, dtype, num_ranks if is_split else 1)
    kind = _split_kind() if is_split else GeneralTarget
    with failing_code_told(type(causal_lm).__name__, given.folder):
        target = kind(causal_lm, given.tokenizer, name=given.name, path=given.folder)
    if num_ranks > 1 and not is_split:
        target.be_split(num_ranks)
    target.assumptions = (*given.settled.assumptions, *assumed, *target.assumptions)
    target.rounded_weights = rounded
    if given.most_ids is not None:
        target.vocab_size = min(target.vocab_size, given.most_ids)
    if target.device.type != "meta":
        check_over_slots(target)
    return target


def check_fp8(in_fp8: bool, name: str) -> None:
    """Raise ValueError where weights of 8 bits are asked for: only layers of our own round them."""
    if in_fp8:
        raise ValueError(
            f"backend.weight_dtype=fp8: expected a target with layers of this project's own, found {name}, whose "
            "layers are transformers' (target.layers); use backend.weight_dtype=auto"
        )


def _split_kind() -> type[GeneralTarget]:
    # torch.distributed is imported for several ranks alone
    from harness.models.general.sharded_target import ShardedTarget

    return ShardedTarget


def _placed(device: torch.device, num_ranks: int) -> dict[str, Any]:
    """What tells transformers where weights go."""
    if num_ranks == 1:
        return {"device_map": {"": device}}
    from harness.models.general.split import config_for

    return {"distributed_config": config_for(num_ranks)}


def _read(
    given: GeneralFolder, device: torch.device, dtype: torch.dtype | None, num_ranks: int
) -> tuple[Any, Sequence[str]]:
    """The model of transformers, and what is assumed of its tensors."""
    with configured_by(given.folder), quietly():
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            given.folder,
            config=given.config,
            dtype=dtype or "auto",
            **_placed(device, num_ranks),
            attn_implementation=OWN_IMPLEMENTATION,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    causal_lm, found = loaded
    for name, what in (("missing_keys", "every tensor"), ("mismatched_keys", "tensors of the shapes")):
        if found[name]:
            raise CheckpointError(
                f"{given.folder}: expected {what} of a {type(causal_lm).__name__}, found {name.replace('_', ' ')}: "
                f"{first_names(sorted(map(str, found[name])))}; config.json and weights do not belong together"
            )
    fields, told = read_fields(given.folder / CONFIG), []
    of_mtp = {
        name for name in found["unexpected_keys"] if _is_of_mtp(name, given.config) or is_mtp_tensor(name, fields)
    }
    unknown = sorted(found["unexpected_keys"] - of_mtp)
    if _has_other_senses(given.config):
        others = [name for name in unknown if _OTHER_SENSES.search(name)]
        unknown = [name for name in unknown if name not in others]
        told += [f"{len(others)} tensors for images or sound are left out"] if others else []
    left = [name for name in unknown if not any(means(pattern, name) for pattern in given.accepted.names)]
    if left:
        raise CheckpointError(
            f"{given.folder}: expected tensors that {type(causal_lm).__name__} reads, found {len(left)} that it does "
            f"not: {first_names(left)}; choose another checkpoint or, if you know that nothing here depends on them, "
            f"{given.accepted.given(f'{left[0]},...')}"
        )
    if unknown:
        told.append(f"{first_names(unknown)}: left out, because {given.accepted.setting} vouches for it")
    return causal_lm.requires_grad_(False), told


def _is_of_mtp(name: str, config: PreTrainedConfig) -> bool:
    """Whether a tensor is of the MTP layers that a configuration announces, behind its own layers."""
    text = config.get_text_config(decoder=True)
    number = re.match(r"model\.layers\.(\d+)\.", name)
    first, count = text.num_hidden_layers, getattr(text, "num_nextn_predict_layers", None) or 0
    return number is not None and first <= int(number[1]) < first + count


_OTHER_SENSES = re.compile(r"(^|\.)(vision|visual|audio|multi_modal|image|speech|embed_vision|embed_audio)\w*\.")
"""Tensors of a multi-modal model that text does not go through."""


def _has_other_senses(config: PreTrainedConfig) -> bool:
    return any(getattr(config, name, None) is not None for name in ("vision_config", "audio_config"))
