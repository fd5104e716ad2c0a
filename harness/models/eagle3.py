"""The EAGLE-3 head: one decoder layer over the token's embedding joined with a mixture of the target's states.

    features_t = fc([states entering three layers of the target, for x_t])
    hidden_t   = layer([input_layernorm(embed(x_{t+1})); hidden_norm(features_t)])     queries, keys, values see both
    logits     = lm_head(norm(hidden_t)) over the head's own vocabulary; hidden_t is the next step's features

Two layouts are read: the original one (`midlayer.`) and that of speculators (`layers.0.`), which is also written.
Source: Li et al., EAGLE-3: Scaling up Inference Acceleration of LLMs via Training-Time Test (2025).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig

from harness.config.models import AS_FILED, HeadChoices
from harness.models.accounting import CONFIG, OF_DRAFTER, Accepted, head_account
from harness.models.checkpoint import Checkpoint, CheckpointError, checkpoint_folder, read_fields
from harness.models.decoder_layer import (
    View,
    layer_types,
    with_slots,
)
from harness.models.direct_layer import only
from harness.models.draft_vocabulary import DraftVocabulary, is_in_order, read_vocabulary, register_vocabulary
from harness.models.eagle3_config import Eagle3Config, check_kind
from harness.models.head import Head, HeadOutput, stored_embedding
from harness.models.layer_forward import (
    add_feed_forward,
    add_feed_forward_and_norm,
    attend,
    join_embedded,
    linear,
    run_layers,
)
from harness.models.meta import on_meta
from harness.models.target import TargetModel, TargetOutput
from harness.models.token_ids import missing_ids
from harness.models.vocabulary import check_head_vocabulary
from harness.models.zoo import zoo_path

EMBEDDING = "embed_tokens.weight"
OUTPUT = "lm_head.weight"
LOGIT_FIELDS = (
    *("logits_scaling", "logit_scale", "lm_head_multiplier", "output_multiplier"),
    *("final_logit_softcapping", "logit_softcapping"),
)
"""What a target's configuration calls scales and caps of its logits."""
OUTPUT_ROWS = "output_rows"
LAYER_PREFIX = "layers.0."
ORIGINAL_LAYER_PREFIX = "midlayer."


class Eagle3Head(Head):
    """An EAGLE-3 head.

    draft_token_ids: [V_draft] int64, the target ids it can propose, ascending; None takes all, or the first ones.
    own_embedding: whether it has an embedding of its own (it normally shares the target's).
    own_output: whether it has an output matrix of its own; without one it takes the target's rows of its draft tokens.
    """

    multiplied_buffers = (OUTPUT_ROWS,)
    """As weight_layout has them."""

    def __init__(
        self,
        config: Eagle3Config,
        target: TargetModel,
        *,
        draft_token_ids: Tensor | None = None,
        own_embedding: bool = False,
        own_output: bool = True,
    ) -> None:
        super().__init__(config.layer, target)
        config.check_target(target)
        self.config = config
        self.aux_layers = config.aux_layers
        self.assumptions = config.assumptions
        layer, hidden_size = config.layer, config.layer.hidden_size
        types = layer_types(layer, "EAGLE-3 head")
        joined_size = len(config.aux_layers) * config.target_hidden_size
        others = (types.layer(with_slots(layer), index) for index in range(1, layer.num_hidden_layers))
        self.layers = nn.ModuleList([eagle3_layer(layer), *others])
        self.fc = nn.Linear(joined_size, hidden_size, bias=False)
        self.norm = types.norm(hidden_size, eps=layer.rms_norm_eps)
        if own_output:
            self.lm_head = nn.Linear(hidden_size, config.draft_vocab_size, bias=False)
        if config.norm_before_fc:
            self.input_norm = types.norm(joined_size, eps=layer.rms_norm_eps)
        if config.fc_norm:
            self.fc_norm = nn.ModuleList(
                types.norm(config.target_hidden_size, eps=layer.rms_norm_eps) for _ in config.aux_layers
            )
        if own_embedding:
            self.embed_tokens = nn.Embedding(target.vocab_size, hidden_size)
        elif hidden_size != target.hidden_size:
            raise ValueError(
                f"EAGLE-3 head: expected embed_tokens of its own, because its hidden_size {hidden_size} is not that "
                f"of target {target.name} ({target.hidden_size}), found none"
            )
        self.to(device=target.device, dtype=target.dtype)
        self.rotary = types.rotary(layer).to(target.device)
        if draft_token_ids is None:
            draft_token_ids = torch.arange(config.draft_vocab_size, device="cpu")
        register_vocabulary(self, "EAGLE-3", config.draft_vocab_size, draft_token_ids)
        if not own_output and self.draft_to_target is not None:
            _check_plain_logits(target)
            # a copy in one piece, beside the weights: a product with rows here and there would gather them each time
            self.register_buffer(OUTPUT_ROWS, target.output_matrix[self.draft_to_target].detach(), persistent=False)

    @property
    def features_are_hidden(self) -> bool:
        return self.config.norm_output

    @property
    def vocab_size(self) -> int:
        return self.config.draft_vocab_size

    @property
    def has_own_output(self) -> bool:
        return "lm_head" in self._modules

    @property
    def output_matrix(self) -> Tensor:
        if self.has_own_output:
            return self.lm_head.weight
        rows: Tensor | None = self._buffers.get(OUTPUT_ROWS)
        return self.target.output_matrix if rows is None else rows

    @property
    def joining(self) -> list[nn.Parameter]:
        parts = [getattr(self, name, None) for name in ("fc", "fc_norm", "input_norm")]
        return [parameter for part in parts if part is not None for parameter in part.parameters()]

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        if self.draft_to_target is None:
            return super().logits(hidden, out)
        return linear(hidden, self.output_matrix, None, self.is_fused, out)

    def features(self, output: TargetOutput) -> Tensor:
        states = output.aux
        if self.config.fc_norm:
            states = tuple(norm(state) for norm, state in zip(self.fc_norm, states, strict=True))
        joined = torch.cat(states, dim=-1)
        if self.config.norm_before_fc:
            joined = self.input_norm(joined)
        return linear(joined, self.fc.weight, self.fc.bias, self.is_fused)

    def forward(
        self, token_ids: Tensor, features: Tensor, positions: Tensor, view: View | None, wanted: Tensor | None = None
    ) -> HeadOutput:
        layer: Any = self.layers[0]
        norms = layer.input_layernorm, layer.hidden_norm
        joined, normed = join_embedded(token_ids, self.embed_weight, features, view, norms)
        residual = normed if self.config.norm_before_residual else features
        attended = attend(layer, self.rotary, joined, positions, view, wanted)
        others, residual = self.decoder_layers[1:], only(residual, wanted)
        if others:
            states = add_feed_forward(layer, attended, residual, view)
            states, hidden, _ = run_layers(others, self.norm, self.rotary, states, positions, view, first=1)
        else:
            states, hidden = add_feed_forward_and_norm(layer, self.norm, attended, residual, view)
        return HeadOutput(hidden if self.config.norm_output else states, hidden)


def _check_plain_logits(target: TargetModel) -> None:
    """Raise ValueError where the target's logits are more than products with its output matrix."""
    fields = target.config.get_text_config(decoder=True)
    more = [name for name in LOGIT_FIELDS if getattr(fields, name, None) not in (None, 0, 1)]
    if more:
        found = ", ".join(f"{name}={getattr(fields, name)}" for name in more)
        raise ValueError(
            "EAGLE-3 head: expected lm_head.weight, or a target whose logits are products with its output matrix, "
            f"found target {target.name} with {found}; train the head with an output matrix of its own (train-head "
            "output=own)"
        )


def eagle3_layer(config: PreTrainedConfig) -> nn.Module:
    """A decoder layer whose queries, keys and values see embedding and features side by side."""
    types = layer_types(config, "EAGLE-3 head")
    layer = types.layer(with_slots(config), 0)
    for name in ("q_proj", "k_proj", "v_proj"):
        projection = getattr(layer.self_attn, name)
        wide = nn.Linear(2 * config.hidden_size, projection.out_features, bias=projection.bias is not None)
        setattr(layer.self_attn, name, wide)
    layer.hidden_norm = types.norm(config.hidden_size, eps=config.rms_norm_eps)
    return layer


AnyEagle3Head = TypeVar("AnyEagle3Head", bound=Eagle3Head)


def load_eagle3(
    path: str | Path | None,
    target: TargetModel,
    *,
    revision: str | None = None,
    accepted: Accepted = OF_DRAFTER,
    choices: HeadChoices = AS_FILED,
) -> Eagle3Head:
    """Load a frozen EAGLE-3 head for a target; path None is the built-in one. Raises ValueError as load_target does."""
    folder = zoo_path("eagle3") if path is None else checkpoint_folder(path, revision)
    return read_head(Eagle3Head, Eagle3Config, folder, target, accepted, choices)


def read_head(
    kind: type[AnyEagle3Head],
    config_kind: type[Eagle3Config],
    folder: Path,
    target: TargetModel,
    accepted: Accepted,
    choices: HeadChoices,
) -> AnyEagle3Head:
    """A frozen head with the weights of a folder, in either layout. Raises ValueError as load_target does."""
    source = folder / CONFIG
    fields = read_fields(source)
    with Checkpoint(folder) as checkpoint:
        check_kind(fields, config_kind.kind, source)
        account = head_account(config_kind.kind, folder, fields, accepted, checkpoint.names)
        config = config_kind.from_dict(account.fields, target, source, choices)
        settled, num_rows = account.settled(), config.layer.vocab_size
        assumed = check_head_vocabulary(num_rows, folder, target, source)
        embedding = stored_embedding(checkpoint, EMBEDDING, target, config.layer.hidden_size, num_rows)
        vocabulary = read_vocabulary(checkpoint, config.draft_vocab_size, num_rows, target)
        own_output = OUTPUT in checkpoint
        if own_output:
            checkpoint.read_rows(OUTPUT, vocabulary.rows)
        else:
            vocabulary = _without_output(vocabulary, config, folder, target)
            taken = "output matrix is" if vocabulary.token_ids is None else "rows of its draft tokens are"
            assumed = (*assumed, f"the head has no lm_head of its own: the target's {taken} taken")
        with on_meta(target.device):
            head = kind(
                config.of_vocabulary(target.vocab_size, vocabulary.size),
                target,
                draft_token_ids=vocabulary.token_ids,
                own_embedding=embedding is not None,
                own_output=own_output,
            )
        original = any(name.startswith(ORIGINAL_LAYER_PREFIX) for name in checkpoint.names)
        head.fill(checkpoint, {LAYER_PREFIX: ORIGINAL_LAYER_PREFIX} if original else None)
        checkpoint.check_used(settled.left_alone)
    if config.draft_vocab_size == num_rows:
        given = {"are_drafted": not own_output and vocabulary.token_ids is None, "are_read": embedding is not None}
        assumed = (*assumed, *missing_ids(num_rows, target.vocab_size, **given))
    head.path, head.assumptions = folder, (*settled.assumptions, *head.assumptions, *assumed)
    return head.eval().requires_grad_(False)


def _without_output(
    vocabulary: DraftVocabulary, config: Eagle3Config, folder: Path, target: TargetModel
) -> DraftVocabulary:
    """The draft tokens of a file without an output matrix, for which the target's stands in.

    Raises CheckpointError where the head cannot be run with that matrix.
    """
    if config.layer.hidden_size != target.hidden_size:
        raise CheckpointError(
            f"{folder}: expected {OUTPUT}, or hidden_size {target.hidden_size} of target {target.name}, whose output "
            f"matrix a head without one takes; found none, and hidden_size {config.layer.hidden_size}"
        )
    if config.draft_vocab_size == config.layer.vocab_size and is_in_order(vocabulary.token_ids):
        return DraftVocabulary(target.vocab_size, None, vocabulary.rows)
    return vocabulary
