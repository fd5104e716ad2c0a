"""The target whose next-token law is known here: its logits behind a prompt, exact and as rounding makes them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Protocol

import torch
from torch import Tensor

from harness.backends.server.held_tokens import byte_vocabulary
from harness.backends.server.prompts import same_text
from harness.config.workload import WorkloadConfig
from harness.models.accounting import Accepted
from harness.models.slot_cache import TargetCache
from harness.models.target import TargetModel, load_target
from harness.models.tree_places import TreePlaces, ancestors
from harness.workload.chat import decode_answer, encode_prompt
from harness.workload.conversations import load_prompts

Tokens = tuple[int, ...]
MANY_WAYS_NATS = 1.5
"""Entropy of the first token that prompts are chosen by: less shows little, more leaves few requests to each answer."""
PROMPTS_LOOKED_AT = 40


class KnownModel(Protocol):
    """A target whose law can be asked for."""

    @property
    def fingerprint(self) -> str:
        """Which model it is."""

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What its files do not say and was taken, or what the user vouched for; one sentence each."""

    def prompts(self, number: int) -> list[Tokens]:
        """So many prompts that can be answered in many ways."""

    def logits(self, prompt: Tokens, nodes: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        """Logits of the token behind the prompt and each of some beginnings of an answer.

        Args:
            prompt: token ids.
            nodes: beginnings, () among them; the parent of each stands before it.

        Returns:
            (exact, rounded), [n, V] float64 each: exact, and as computed in the dtype of the server.
        """

    def gives_text(self, token_ids: Sequence[int], text: str) -> bool:
        """Whether its tokenizer makes this text of an answer's token ids."""

    def vocabulary(self) -> Mapping[bytes, int]:
        """Its tokens by their bytes."""


class LocalModel:
    """A target's folder or Hugging Face id, loaded on the CPU."""

    def __init__(self, path: str, dtype: str, accept_unknown: tuple[str, ...] = ()) -> None:
        """path: empty is the built-in target. dtype: of the server, a name of torch's. accept_unknown: fields and
        tensors of its files that the user vouches for."""
        accepted = Accepted(names=accept_unknown, option="--accept-unknown")
        self._exact = load_target(path or None, dtype=torch.float64, accepted=accepted)
        self._rounded = load_target(path or None, dtype=getattr(torch, dtype), accepted=accepted)
        self._tokenizer: Any = self._exact.tokenizer

    @property
    def fingerprint(self) -> str:
        from harness.models.fingerprint import fingerprint

        assert self._exact.path is not None
        return fingerprint(self._exact.path)

    @property
    def assumptions(self) -> tuple[str, ...]:
        return self._exact.assumptions

    def prompts(self, number: int) -> list[Tokens]:
        """Raises ValueError if there are not so many."""
        workload = WorkloadConfig()
        found = load_prompts(workload, seed=0)[: max(number, PROMPTS_LOOKED_AT)]
        if number > len(found):
            raise ValueError(f"--prompts: expected at most {len(found)}, found {number}")
        encoded = [
            tuple(encode_prompt(self._tokenizer, prompt, []).token_ids)
            for prompt in found
        ]  # fmt: skip
        distance = {ids: abs(self._entropy(ids) - MANY_WAYS_NATS) for ids in encoded}
        return sorted(encoded, key=distance.__getitem__)[:number]

    def logits(self, prompt: Tokens, nodes: Sequence[Tokens]) -> tuple[Tensor, Tensor]:
        return _logits(self._exact, prompt, nodes), _logits(self._rounded, prompt, nodes)

    def gives_text(self, token_ids: Sequence[int], text: str) -> bool:
        return same_text(decode_answer(self._tokenizer, token_ids), text)

    def vocabulary(self) -> Mapping[bytes, int]:
        return self._vocabulary

    @cached_property
    def _vocabulary(self) -> dict[bytes, int]:
        return byte_vocabulary(self._tokenizer)

    def _entropy(self, prompt: Tokens) -> float:
        """Nats of the first token at temperature 1."""
        return float(torch.distributions.Categorical(logits=_logits(self._rounded, prompt, [()])[0]).entropy())


@torch.inference_mode()
def _logits(model: TargetModel, prompt: Tokens, nodes: Sequence[Tokens]) -> Tensor:
    """[n, V] float64; the prompt as a chain, then the beginnings as one tree."""
    tree = [node for node in nodes if node]
    cache: TargetCache = model.new_cache(1, len(prompt) + len(tree))
    positions = torch.arange(len(prompt))[None]
    view = cache.view(slice(0, 1), positions, len(prompt))
    found: dict[Tokens, Tensor] = {(): model.forward(torch.tensor([prompt]), positions, view).hidden[0, -1]}
    if tree:
        place = {node: index for index, node in enumerate(tree)}
        parents = torch.tensor([[place.get(node[:-1], -1) for node in tree]])
        positions = torch.tensor([[len(prompt) + len(node) - 1 for node in tree]])
        places = TreePlaces(torch.tensor([len(prompt)]), torch.arange(len(tree)), ancestors(parents))
        view = cache.view(slice(0, 1), positions, len(prompt) + len(tree), places)
        hidden = model.forward(torch.tensor([[node[-1] for node in tree]]), positions, view).hidden[0]
        found |= dict(zip(tree, hidden, strict=True))
    return model.logits(torch.stack([found[node] for node in nodes])).double()
