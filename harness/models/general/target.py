"""A target, or a draft model, whose network is transformers' own.

Shapes: B rows, T tokens of a row, H hidden size, V vocabulary.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from transformers import PreTrainedConfig

from harness.models.cost import ModelCost
from harness.models.decoder_layer import View
from harness.models.fused.checks import written
from harness.models.general.alike_layers import one_of_each_kind
from harness.models.general.cache import ATTENDED, GeneralCache
from harness.models.general.compiled import MIN_PARAMETERS, CompiledLayers, layers_of_cache, reason_of
from harness.models.general.in_place import DEVICES, obstacle_in_place
from harness.models.general.network import Network
from harness.models.general.rope import hold_to_original_length
from harness.models.general.states import READ_AT_ONCE
from harness.models.general.view import GeneralView
from harness.models.target import TargetModel, TargetOutput

ENDLESS = 1 << 30
"""Positions of a model whose configuration bounds none."""
COPIES = "attention reads a copy of the slots' keys and values (layers of transformers)"


@dataclass(frozen=True, kw_only=True)
class GeneralCost(ModelCost):
    """The cost of a model by what its layers keep of a token."""

    cache: GeneralCache
    """Of one slot that holds one token."""

    @property
    def _token_bytes(self) -> int:
        return self.cache.num_bytes

    @property
    def _of_key(self) -> int:
        widths = [tensor.shape[-1] for kept, tensor in self.cache.tensors.items() if kept.kind in ATTENDED]
        return 2 * self.config.num_attention_heads * sum(widths)


def has_alibi(config: PreTrainedConfig) -> bool:
    """Whether a model's attention is biased by the distance of places."""
    nested = getattr(config, "attn_config", None)
    asked = getattr(config, "alibi", False) or getattr(nested, "alibi", False)
    return bool(asked) or config.model_type == "bloom"


def _told_of_states(cache: GeneralCache) -> str:
    """What states by position take; cache: of one slot of one place."""
    state_bytes = sum(state.nbytes for state in cache.states.values()) // cache.ring
    token_bytes = sum(tensor.nbytes for tensor in cache.tensors.values())
    told = f"recurrent states take {state_bytes / 2**20:.3g} MiB for each of K + 3 tokens of a request"
    return f"{told}, as keys and values of {state_bytes // token_bytes} tokens do" if token_bytes else told


class GeneralTarget(TargetModel):
    """A causal language model of transformers over slots."""

    CACHE: ClassVar[type[GeneralCache]] = GeneralCache
    runs_code_of_transformers = True
    network: Network

    def __init__(self, causal_lm: Any, tokenizer: Any, **given: Any) -> None:
        """As a TargetModel; causal_lm: any of transformers that `probe` finds right."""
        self._compiled: CompiledLayers | None = None
        self._compile_failure: str | None = None
        self._must_compile = False
        self._in_place_obstacle: str | None = "not looked at yet"
        self._first_cache: GeneralCache | None = None
        """Of one slot of one place."""
        super().__init__(causal_lm, tokenizer, **given)
        self.num_layers = len(self.network.layers)
        self._right_positions = hold_to_original_length(causal_lm)
        if self._right_positions is not None:
            self.assumptions += (
                f"sequences end at {self._right_positions} positions, beyond which RoPE would follow the longest "
                "sequence of a batch",
            )
        cache = self.new_cache(1, 1)
        self.is_recurrent = bool(cache.states)
        if self.device.type in DEVICES:
            self._in_place_obstacle = obstacle_in_place(self.network, cache)
        if not self.is_uncounted and self._num_dimensions(cache) != TargetModel.NUM_DIMENSIONS:
            self.head_obstacle = "the states between its layers are several side by side"
        if self.is_recurrent:
            self.tree_obstacle = "its recurrent states follow one sequence"
            self.assumptions += (_told_of_states(cache),)
        elif has_alibi(self.config):
            self.tree_obstacle = "its attention weighs keys by where they lie (ALiBi), not by their depth in a tree"

    def be_split(self, num_ranks: int) -> None:
        """Let a model on the meta device, which is whole, stand for one rank's part of it where memory is counted.

        Raises:
            ValueError: see `split_of`; or its layers keep recurrent states.
        """
        if self.is_recurrent:
            raise ValueError(
                f"backend.tensor_parallel: expected layers that keep keys and values alone, found {self.name}, which "
                "keeps recurrent states; use backend.tensor_parallel=1"
            )
        # torch.distributed is imported for several ranks alone
        from harness.models.general.split import split_of

        self.split = split_of(self.causal_lm, num_ranks)

    def _num_dimensions(self, cache: GeneralCache) -> int:
        """Those of the states between its layers."""
        (states,) = self.read_token(cache, (self.num_layers - 1,))
        return states.dim()

    def _attend_through_slots(self) -> None:
        self.network = Network(self.causal_lm)

    @property
    def num_positions(self) -> int:
        stated = int(getattr(self.config, "max_position_embeddings", None) or ENDLESS)
        return stated if self._right_positions is None else min(stated, self._right_positions)

    @property
    def dtype(self) -> torch.dtype:
        return self.embed_weight.dtype

    @property
    def device(self) -> torch.device:
        return self.embed_weight.device

    @property
    def has_latent_attention(self) -> bool:
        return False

    @property
    def widens_fp8(self) -> bool:
        return False

    @property
    def fallbacks(self) -> tuple[str, ...]:
        of_compiling = None if self._compiled is None else self._compiled.note
        of_split = None if self.split is None else self.split.note
        notes = (of_split, self.network.experts_note, self._attention_note, of_compiling, self._compile_failure)
        return tuple(note for note in notes if note is not None)

    @property
    def _attention_note(self) -> str | None:
        """How attention reads keys and values on a GPU."""
        if self.device.type != "cuda":
            return None
        if self._in_place_obstacle is not None:
            return f"{COPIES}: {self._in_place_obstacle}"
        return "attention reads slots where they lie, by a kernel of our own (layers of transformers)"

    def round_fallbacks(self, num_tokens: int) -> tuple[str, ...]:
        return ()

    @property
    def embed_weight(self) -> Tensor:
        return self.causal_lm.get_input_embeddings().weight

    @property
    def output_matrix(self) -> Tensor:
        return self.causal_lm.get_output_embeddings().weight

    @property
    def cost(self) -> ModelCost:
        parameters = tuple(self.causal_lm.named_parameters())
        weights = self.embed_weight, self.output_matrix
        cache = self.new_cache(1, 1)
        return GeneralCost(parameters, *weights, self.config, self.num_layers, self.dtype.itemsize, cache=cache)

    def fuse(self) -> str | None:
        self.fusion_obstacle = "its layers are transformers' own (target.layers)"
        return self.fusion_obstacle

    def rehearsed(self) -> AbstractContextManager[None]:
        return one_of_each_kind(self.network)

    @property
    def is_compiled(self) -> bool:
        return self._compiled is not None

    @property
    def compile_s(self) -> float:
        return 0.0 if self._compiled is None else self._compiled.seconds

    def compile(self, *, is_asked: bool) -> str | None:
        if not is_asked and self.num_parameters < MIN_PARAMETERS:
            return f"it has fewer than {MIN_PARAMETERS} parameters"
        if self.device.type == "meta":
            return None
        found = layers_of_cache(self.network, self.new_cache(1, 1))
        hindered = [layer for layer in found.values() if isinstance(layer, str)]
        if len(hindered) == len(found):
            return f"its layers {' or '.join(dict.fromkeys(hindered))}"
        self._compiled, self._must_compile = CompiledLayers(self.network, found), is_asked
        return None

    def new_cache(self, num_slots: int, capacity: int, rewind: int = 0) -> GeneralCache:
        if self.is_recurrent and rewind >= READ_AT_ONCE:
            raise ValueError(
                f"drafting.num_speculative_tokens: expected fewer than {READ_AT_ONCE - 1} with {self.name}, whose "
                f"recurrent states are kept of the tokens of a round, found {rewind - 1}"
            )
        if self._first_cache is None:
            self._first_cache = self._cache_of(1, 1)
            try:
                self.read_token(self._first_cache)
            except (RuntimeError, NotImplementedError):
                if self.device.type != "meta":
                    raise
                # its code reads values, of which there are none here
                self.is_uncounted = True
        cache = self._cache_of(num_slots, capacity, rewind)
        cache.make_like(self._first_cache)
        if self.split is not None and self.split.splits_keys and self.device.type == "meta":
            cache.num_shards = self.split.num_ranks
        return cache

    def _cache_of(self, num_slots: int, capacity: int, rewind: int = 0) -> GeneralCache:
        cache = self.CACHE(self.config.num_hidden_layers, num_slots, capacity, self.dtype, self.device, rewind)
        cache.is_in_place = self._in_place_obstacle is None
        return cache

    def read_token(self, cache: GeneralCache, asked: tuple[int, ...] = ()) -> tuple[Tensor, ...]:
        """Read one token at the start of a cache's first slot; returns the states that enter the asked layers."""
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        return self.network.run(zero, zero, cache.view(slice(0, 1), zero, 1), asked)[1]

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        states = hidden.reshape(1, -1, hidden.shape[-1])
        found = self.network.logits(states)[..., : self.vocab_size].reshape(*hidden.shape[:-1], -1)
        return found if out is None else written(found, out)

    def forward(
        self, token_ids: Tensor, positions: Tensor, view: View | None, aux_layers: tuple[int, ...] = ()
    ) -> TargetOutput:
        assert view is None or isinstance(view, GeneralView), "views are of the target's own caches"
        if self.reads_unknown_ids:
            token_ids = token_ids.clamp_max(self.vocab_size - 1)
        is_round = positions.shape[1] < READ_AT_ONCE
        if self._compiled is not None and view is not None and view.is_whole and is_round:
            try:
                with self._compiled.running(view):
                    return TargetOutput(*self.network.run(token_ids, positions, view, aux_layers))
            except Exception as error:
                reason = reason_of(error)
                if reason is None:
                    raise
                self._leave_out_what_failed(self._compiled, reason, error)
            # what was written is written again
            return self.forward(token_ids, positions, view, aux_layers)
        return TargetOutput(*self.network.run(token_ids, positions, view, aux_layers))

    def _leave_out_what_failed(self, compiled: CompiledLayers, reason: str, error: Exception) -> None:
        """Run layers as they are from now on, those with states alone where there are any.

        Raises:
            ValueError: compiling was asked for.
        """
        why = f"torch could not compile the layers of {self.name}: {reason}"
        if self._must_compile:
            raise ValueError(f"backend.compile: {why}; use backend.compile=false") from error
        self._compiled = compiled.without_states(f"have states, and torch failed: {reason}")
        if self._compiled is None:
            self._compile_failure = why
