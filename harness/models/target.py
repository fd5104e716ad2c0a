"""The target model: loading, and a forward over slots that also hands out the states drafters feed on.

The forward is our own loop over the decoder layers of transformers. It does not know sampling, drafters or requests.

Shapes: B rows, T tokens of a row, H hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoConfig, PreTrainedConfig

from harness.config.models import Layers
from harness.models.accounting import CONFIG, OF_TARGET, Accepted, Settled, model_account
from harness.models.checkpoint import (
    Checkpoint,
    CheckpointError,
    StoredRows,
    checkpoint_folder,
    configured_by,
    read_json,
)
from harness.models.cost import ModelCost
from harness.models.decoder_layer import (
    View,
    cache_shape,
    config_class,
    infer_dense_layers,
    layer_types,
    resized,
    use_slots,
    with_slots,
)
from harness.models.experts import EVERY_EXPERT_NOTE, runs_grouped
from harness.models.fill import fill
from harness.models.fp8_linear import Fp8Linear
from harness.models.fused.fuse import fuse_layers
from harness.models.fused.rope_table import rope_table
from harness.models.fused.routing import MAX_TOKENS
from harness.models.fused.tilings import FP8_MAX_TOKENS
from harness.models.latent_attention import LatentAttention
from harness.models.layer_forward import embedded, linear, run_layers
from harness.models.meta import made_on_meta
from harness.models.model_types import takes_general_path
from harness.models.rounded_weights import RANDOM, rounded_weights
from harness.models.shared_tokens import SharedTokens
from harness.models.slot_cache import SlotCache, TargetCache
from harness.models.tokenizer import eos_token_ids, load_tokenizer
from harness.models.zoo import zoo_path

if TYPE_CHECKING:
    from harness.models.general.split import Split

OUTPUT = "lm_head.weight"
WIDENED_NOTE = (
    "weights of 8 bits are widened before products, which takes longer than wider weights: before all where layers run "
    "unfused, else before those of sizes that have no kernel on this device"
)


class TargetOutput(NamedTuple):
    """States of one forward."""

    hidden: Tensor
    """[B, T, H] after the final norm."""
    aux: tuple[Tensor, ...]
    """[B, T, H] each: the state entering each asked layer, in the order asked."""


class TargetModel:
    """A causal language model whose layers attend through slots; also serves as draft model."""

    NUM_DIMENSIONS = 3
    """Of states, [B, T, H]."""
    runs_code_of_transformers = False
    """Whether its layers are run as transformers has them, each module by itself."""

    def __init__(
        self,
        causal_lm: Any,
        tokenizer: Any,
        *,
        name: str = "target",
        path: str | Path | None = None,
        tokenizer_stands_in: bool = False,
        random_fingerprint: str | None = None,
    ) -> None:
        """causal_lm: a Llama, Qwen3 or Glm4MoeLite of transformers, whose layers attend through slots from here on;
        harness.models.general.target takes any.

        tokenizer_stands_in: the tokenizer was made for another model, so that its tokens mean and end nothing here.
        random_fingerprint: identifies random weights; None for those of a checkpoint.
        """
        self.causal_lm = causal_lm
        self.is_fused = False
        """See `fuse`."""
        self.fusion_obstacle: str | None = None
        """Why `fuse` left its layers as they are."""
        self.tree_obstacle: str | None = None
        """Why drafts for it cannot be trees."""
        self.head_obstacle: str | None = None
        """Why heads cannot read the states between its layers."""
        self.is_recurrent = False
        """Whether its states follow one sequence: a forward reads one row of a slot, and no padding before its last."""
        self.is_uncounted = False
        """Whether it lies on the meta device and cannot tell there what its caches will take."""
        self.config: PreTrainedConfig = causal_lm.config.get_text_config(decoder=True)
        self.tokenizer = tokenizer
        self.name = name
        self.path = None if path is None else Path(path)
        self.assumptions: tuple[str, ...] = ()
        """What its files do not say and was taken, or what the user vouched for; one sentence each."""
        self.rounded_weights = ""
        """How its checkpoint was rounded to fewer bits, as a label; empty where it was not."""
        self.reads_unknown_ids = False
        """Whether ids beyond its vocabulary, which another model has, are read as its last one."""
        self.shared_tokens: SharedTokens | None = None
        """Of a draft model with another tokenizer than its target: what the two share. It takes and gives its own
        ids."""
        self.split: Split | None = None
        """What each rank has of it; None where one has all."""
        self._attend_through_slots()
        self.num_layers: int = self.config.num_hidden_layers
        self.vocab_size: int = self.config.vocab_size
        self.hidden_size: int = self.config.hidden_size
        self.tokenizer_stands_in = tokenizer_stands_in
        self.random_fingerprint = random_fingerprint
        self.cache_dtype: torch.dtype | None = None
        """Of keys and values in caches made from here on, the drafter's too; None for the type of the states."""
        configured = getattr(self.config, "eos_token_id", None)
        own = None if tokenizer_stands_in else tokenizer
        self.eos_token_ids = eos_token_ids(configured, own, self.path, self.vocab_size)

    def _attend_through_slots(self) -> None:
        """Let its layers keep keys and values in slots from here on."""
        slots_config = with_slots(self.config)
        for layer in self.causal_lm.model.layers:
            use_slots(layer, slots_config)

    @property
    def weights_label(self) -> str:
        """What its weights are beside the published ones, as a label: random, or rounded; empty where they are
        neither."""
        return self.rounded_weights if self.random_fingerprint is None else RANDOM

    @property
    def num_positions(self) -> int:
        """Tokens that a sequence may have."""
        return int(self.config.max_position_embeddings)

    @property
    def dtype(self) -> torch.dtype:
        return self.causal_lm.lm_head.weight.dtype

    @property
    def device(self) -> torch.device:
        return self.causal_lm.lm_head.weight.device

    @property
    def has_latent_attention(self) -> bool:
        return isinstance(self.causal_lm.model.layers[0].self_attn, LatentAttention)

    @property
    def num_parameters(self) -> int:
        """Parameters, tied ones counted once."""
        return sum(parameter.numel() for parameter in self.causal_lm.parameters())

    @property
    def fallbacks(self) -> tuple[str, ...]:
        """What changes its speed without being asked for."""
        grouped = all(runs_grouped(each.gate_up_proj, each.down_proj) for each in self._experts)
        notes = [] if grouped else [EVERY_EXPERT_NOTE]
        if self.widens_fp8:
            notes.append(WIDENED_NOTE)
        if self.cache_dtype is not None and not self.is_fused:
            notes.append("caches of 8 bits are widened before attention reads them, because layers run unfused")
        if self.fusion_obstacle is not None:
            notes.append(f"the layers of {self.name} run unfused, because {self.fusion_obstacle}")
        return tuple(notes)

    @property
    def widens_fp8(self) -> bool:
        """Whether some weights of 8 bits are widened before each product, of few tokens too."""
        if not self._has_fp8_weights:
            return False
        if not self.is_fused or self.device.type == "cpu":
            return True
        from harness.models.fused.layer import reads_fp8

        return not reads_fp8(self.causal_lm.model.layers[0], self.dtype)

    @property
    def _has_fp8_weights(self) -> bool:
        return isinstance(self.causal_lm.model.layers[0].self_attn.o_proj, Fp8Linear)

    def round_fallbacks(self, num_tokens: int) -> tuple[str, ...]:
        """The same of rounds of up to so many tokens."""
        here, notes = f"(here up to {num_tokens})", []
        if self._experts and self.is_fused and num_tokens > MAX_TOKENS:
            notes.append(f"rounds of more than {MAX_TOKENS} tokens {here} run experts unfused")
        if self._has_fp8_weights and not self.widens_fp8 and num_tokens > FP8_MAX_TOKENS:
            notes.append(
                f"rounds of more than {FP8_MAX_TOKENS} tokens {here} widen weights of 8 bits before each product"
            )
        return tuple(notes)

    @property
    def _experts(self) -> list[Any]:
        return [layer.mlp.experts for layer in self.causal_lm.model.layers if hasattr(layer.mlp, "experts")]

    @property
    def embed_weight(self) -> Tensor:
        """[V, H] the embedding."""
        return self.causal_lm.model.embed_tokens.weight

    @property
    def output_matrix(self) -> Tensor:
        """[V, H] what gives the logits."""
        return self.causal_lm.lm_head.weight

    @property
    def cost(self) -> ModelCost:
        """What its forwards cost."""
        parameters = tuple(self.causal_lm.named_parameters())
        itemsize = (self.cache_dtype or self.dtype).itemsize
        return ModelCost(parameters, self.embed_weight, self.output_matrix, self.config, self.num_layers, itemsize)

    def embed(self, token_ids: Tensor) -> Tensor:
        """[...] int64 -> [..., H]."""
        if self.reads_unknown_ids:
            token_ids = token_ids.clamp_max(self.vocab_size - 1)
        return embedded(token_ids, self.embed_weight)

    def logits(self, hidden: Tensor, out: Tensor | None = None) -> Tensor:
        """[..., H] after the final norm -> [..., V], written to `out` if there is one (see `linear`)."""
        return linear(hidden, self.output_matrix, None, self.is_fused, out)

    def new_cache(self, num_slots: int, capacity: int, rewind: int = 0) -> TargetCache:
        """An empty key-value cache of so many slots, each holding so many positions.

        rewind: tokens by which a forward may begin before the end of the last one, for networks whose states are not
        kept of all positions.
        """
        table = rope_table(self.causal_lm.model.rotary_emb, capacity, self.device) if self.is_fused else None
        return new_cache(
            self.config, self.num_layers, num_slots, capacity, self.dtype, self.device, table, self.cache_dtype
        )

    def fuse(self) -> str | None:
        """Let its layers run through the fused operations, in caches made from here on; returns why not, if not."""
        self.fusion_obstacle = fuse_layers(self.causal_lm.model.layers, self.causal_lm.model.rotary_emb)
        self.is_fused = self.fusion_obstacle is None
        return self.fusion_obstacle

    @property
    def capture_error_mode(self) -> str:
        """Of torch.cuda.graph: which calls of other threads end a capture of its steps."""
        return "global"

    def check_others(self) -> None:
        """Raise RankDiedError where another process that computes it has ended."""

    @contextmanager
    def captured_elsewhere(self) -> Iterator[Callable[[], None]]:
        """Let other processes that compute it capture what they do meanwhile, as a CUDA graph captures it here.

        Yields:
            What lets them replay it; to be called before each replay here.
        """
        yield lambda: None

    def rehearsed(self) -> AbstractContextManager[None]:
        """Inside, forwards on the meta device need launch no kernel twice."""
        return nullcontext()

    @property
    def is_compiled(self) -> bool:
        """Whether steps run layers that torch compiled."""
        return False

    @property
    def compile_s(self) -> float:
        """Seconds that compiling them took, so far."""
        return 0.0

    def compile(self, *, is_asked: bool) -> str | None:
        """Let layers that are transformers' own be compiled by torch where a step first runs them; returns why not, if
        not.

        is_asked: compile small models too, and raise ValueError there if torch cannot.
        """
        return "its layers are our own (target.layers), which are fused and not compiled"

    def forward(
        self,
        # [B, T] int64
        token_ids: Tensor,
        # [B, T] int64
        positions: Tensor,
        view: View | None,
        aux_layers: tuple[int, ...] = (),
    ) -> TargetOutput:
        """Run the layers.

        view: where keys and values go and what each query sees; None attends causally over the given tokens alone.
        aux_layers: layers, 0-based, whose entering state is returned; num_layers is the state before the final norm.
        """
        body = self.causal_lm.model
        output = run_layers(body.layers, body.norm, body.rotary_emb, self.embed(token_ids), positions, view, aux_layers)
        entering = output.entering | {self.num_layers: output.last}
        return TargetOutput(output.normed, tuple(entering[index] for index in aux_layers))


def new_cache(
    config: PreTrainedConfig,
    num_layers: int,
    num_slots: int,
    capacity: int,
    dtype: torch.dtype,
    device: torch.device,
    table: Tensor | None = None,
    stored_dtype: torch.dtype | None = None,
) -> SlotCache:
    """A slot cache for layers of a configuration; with a table of rotations, for fused ones."""
    num_heads, key_dim, value_dim = cache_shape(config)
    return SlotCache(num_layers, num_slots, capacity, num_heads, key_dim, dtype, device, value_dim, table, stored_dtype)


class ReadConfig(NamedTuple):
    """The config.json of a folder."""

    config: PreTrainedConfig
    fields: dict[str, Any]
    """As the file has them, without those that the user vouches for."""
    settled: Settled
    """What all fields and tensors of the folder are."""


def read_config(
    folder: Path,
    trust_remote_code: bool,
    accepted: Accepted,
    names: Collection[str] | None = (),
    layers: Layers = Layers.auto,
) -> ReadConfig:
    """Read the config.json of a folder, and account for its files.

    accepted: what the user vouches for. names: of the tensors, where they are read; None leaves them out of account.
    layers: whose code computes them.
    Raises ValueError when there is none, a field or tensor is not computed, or transformers makes no configuration of
    it.
    """
    source = folder / CONFIG
    fields = read_json(source)
    if trust_remote_code and "auto_map" in fields:
        with configured_by(source):
            config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        stated = config.to_dict() | {"auto_map": fields["auto_map"]}
        account = model_account(folder, stated, accepted, runs_code=True, names=names, layers=layers)
        if takes_general_path(account.fields, layers):
            # transformers' own code takes a configuration of its own class
            config = _general_config(account.fields, source)
    else:
        account = model_account(folder, fields, accepted, runs_code=trust_remote_code, names=names, layers=layers)
        if takes_general_path(account.fields, layers):
            config = _general_config(account.fields, source)
        else:
            with configured_by(source):
                config = config_class(fields["model_type"]).from_dict(dict(account.fields))
    infer_dense_layers(config, account.fields)
    return ReadConfig(config, account.fields, account.settled())


def _general_config(fields: dict[str, Any], source: Path) -> PreTrainedConfig:
    from harness.models.general.known_types import general_config

    with configured_by(source):
        return general_config(fields)


def load_target(
    path: str | Path | None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    name: str = "zoo",
    in_fp8: bool = False,
    tokenizer: Any = None,
    most_ids: int | None = None,
    accepted: Accepted = OF_TARGET,
    layers: Layers = Layers.auto,
    num_ranks: int = 1,
) -> TargetModel:
    """Load a target, or a draft model, with frozen weights and its tokenizer.

    path: local folder or Hugging Face id; None is the built-in target. dtype: None is that of the stored embedding.
    in_fp8: round the projections of the layers to 8 bits (harness.models.fp8_linear).
    tokenizer: None is the folder's own. most_ids: token ids that are kept; None keeps all.
    accepted: fields and tensors of its files that the user vouches for. layers: whose code computes them.
    num_ranks: of which this process is one (harness.models.general.sharded_target); layers are transformers' then.
    Raises ValueError when the model type is not supported, or not in 8 bits; when weights are missing, misshapen or
    pickled; when a field or tensor is not accounted for (harness.models.accounting); or when there is no tokenizer.
    """
    folder = zoo_path("target") if path is None else checkpoint_folder(path, revision, with_code=trust_remote_code)
    source = folder / CONFIG
    with Checkpoint(folder) as checkpoint:
        config, fields, settled = read_config(folder, trust_remote_code, accepted, checkpoint.names, layers)
        if takes_general_path(fields, layers):
            # it imports the modeling code of transformers
            from harness.models.general.load import GeneralFolder, load_general

            if tokenizer is None:
                tokenizer = load_tokenizer(folder, trust_remote_code)
            given = GeneralFolder(folder, config, settled, accepted, tokenizer, name, most_ids)
            return load_general(given, device, dtype, in_fp8, num_ranks)
        num_stored = config.vocab_size
        if most_ids is not None and most_ids < num_stored:
            config = resized(config, most_ids)
        types = layer_types(config, source)
        if tokenizer is None:
            tokenizer = load_tokenizer(folder, trust_remote_code)
        with configured_by(source), made_on_meta():
            causal_lm = types.causal_lm(config)
        if config.vocab_size < num_stored:
            for matrix in ("model.embed_tokens.weight", OUTPUT):
                checkpoint.read_rows(matrix, StoredRows.of_ids(num_stored, config.vocab_size))
        fill(causal_lm, checkpoint, device, dtype, in_fp8)
        if config.tie_word_embeddings:
            check_copy(checkpoint, OUTPUT, causal_lm.model.embed_tokens.weight, "its embedding, with which it is tied")
        checkpoint.check_used(settled.left_alone)
    causal_lm.model.rotary_emb = types.rotary(config).to(device)
    target = TargetModel(causal_lm.eval().requires_grad_(False), tokenizer, name=name, path=folder)
    target.assumptions, target.rounded_weights = settled.assumptions, rounded_weights(fields)
    return target


def check_copy(checkpoint: Checkpoint, name: str, weight: Tensor, what: str, num_rows: int | None = None) -> None:
    """Raise CheckpointError where a tensor that is stored although it need not be is another one than `weight`.

    num_rows: of the file, if it is padded otherwise; rows that both have are compared.
    """
    if name not in checkpoint:
        return
    num_stored = weight.shape[0] if num_rows is None else num_rows
    stored = checkpoint.take(name, (num_stored, *weight.shape[1:])).to(weight.device, weight.dtype)
    num_shared = min(num_stored, weight.shape[0])
    if not weight.is_meta and not torch.equal(stored[:num_shared], weight[:num_shared]):
        raise CheckpointError(f"{checkpoint.folder}: expected {name} to be {what}, found another one")
