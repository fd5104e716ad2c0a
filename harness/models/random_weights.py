"""Random weights that stand where a checkpoint's would: drawn on the device they are for, in the dtype they are for.

The rule, for a matrix with n inputs in a model of L layers; all draws are normal with mean 0:

    norms                       1
    biases                      0
    embedding                   standard deviation 1, or that of the output matrix where the two are tied
    output matrix               2 / sqrt(n): over normalized states the logits have a standard deviation of about 2
    what is added to the
    residual (o_proj, down_proj)  1 / sqrt(2 L n): all layers together add about as much as one would
    everything else             1 / sqrt(n): states keep their size

So states neither vanish nor explode however many layers there are, and a softmax over the logits is neither flat nor
one-hot. The damping of the residual by 1 / sqrt(2 L) is that of GPT-2 (Radford et al. 2019, section 2.3). A router's
logits have a standard deviation of 1 and no bias, so that tokens spread over the experts; those of a layer are drawn in
one tensor.
A tensor depends on the seed, its name and its shape alone, on one kind of device; a CPU and a GPU draw other numbers.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from harness.models.meta import META, made_on_meta

RULE_VERSION = 1
"""Part of the fingerprint; a change of the rule makes other models."""
LOGIT_DEVIATION = 2.0
OUTPUT_PARTS = ("lm_head", "head")
RESIDUAL_PARTS = ("o_proj", "down_proj")


class RandomWeights:
    """Draws every tensor that is asked for; asked for the same way as a `Checkpoint`.

    seed: text that names the model among others, such as its role. num_layers: L. tied: the embedding is the output
    matrix.
    """

    def __init__(
        self, seed: str, num_layers: int, *, device: torch.device | str, dtype: torch.dtype, tied: bool = False
    ) -> None:
        self._seed = seed
        self._num_layers = num_layers
        self._device = torch.device(device)
        self._dtype = dtype
        self._tied = tied

    def holds(self, name: str) -> bool:
        """All: thousands of small draws of experts would take longer than a few large ones."""
        return True

    def take(self, name: str, shape: Iterable[int]) -> Tensor:
        """The tensor of that name and shape."""
        weight = torch.empty(tuple(shape), dtype=self._dtype, device=self._device)
        self.put(name, weight)
        return weight

    def put(self, name: str, place: Tensor) -> None:
        """Draw the tensor of that name in its place; one on the meta device has nothing to hold it."""
        if place.is_meta:
            return
        if is_norm(name):
            place.fill_(1)
        elif is_bias(name):
            place.zero_()
        else:
            generator = torch.Generator(place.device).manual_seed(seed_of(self._seed, name))
            place.normal_(0, deviation(name, place.shape, self._num_layers, self._tied), generator=generator)


def is_norm(name: str) -> bool:
    """Whether a parameter is the scale of a norm."""
    return "norm" in name and not is_bias(name)


def is_bias(name: str) -> bool:
    return name.endswith("bias")


def deviation(name: str, shape: tuple[int, ...], num_layers: int, tied: bool) -> float:
    """The standard deviation of a matrix [.., outputs, inputs], an embedding [V, H] included."""
    parts, num_inputs = name.split("."), shape[-1]
    is_embedding = "embed_tokens" in parts
    if any(part in OUTPUT_PARTS for part in parts) or (is_embedding and tied):
        return LOGIT_DEVIATION / math.sqrt(num_inputs)
    if is_embedding:
        return 1.0
    if any(part in RESIDUAL_PARTS for part in parts):
        return 1 / math.sqrt(2 * num_layers * num_inputs)
    return 1 / math.sqrt(num_inputs)


def random_fingerprint(seed: str, architecture: Mapping[str, Any]) -> str:
    """What identifies random weights as a digest of files does a checkpoint's: `random:` and 16 hex digits."""
    content = json.dumps([RULE_VERSION, seed, architecture], sort_keys=True, default=str)
    return f"random:{hashlib.sha256(content.encode()).hexdigest()[:16]}"


@contextmanager
def made_on(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Modules made inside have their parameters on this device and in this dtype from the start, without copies."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with made_on_meta() if device == META else torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def seed_of(*parts: str) -> int:
    """63 bits that depend on every part."""
    return int.from_bytes(hashlib.sha256("\n".join(parts).encode()).digest()[:8], "big") >> 1
