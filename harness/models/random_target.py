"""A target, or a draft model, of given sizes with random weights: for speed and memory at real shapes.

The sizes are those of a named shape or of a folder's config.json; no weight file is read or fetched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import PreTrainedConfig

from harness.config.models import Layers
from harness.models.accounting import CONFIG, OF_TARGET, Accepted
from harness.models.checkpoint import WITHOUT_WEIGHTS, checkpoint_folder, configured_by
from harness.models.decoder_layer import config_class, infer_dense_layers, layer_types
from harness.models.fill import fill
from harness.models.fingerprint import TEXT_SUFFIXES, fingerprint
from harness.models.meta import made_on_meta
from harness.models.model_types import takes_general_path
from harness.models.random_weights import RandomWeights, random_fingerprint
from harness.models.shape import SHAPES, read_shape, told_of_shape
from harness.models.target import TargetModel, read_config
from harness.models.token_ids import has_tokenizer
from harness.models.tokenizer import load_tokenizer
from harness.models.zoo import zoo_path


class Architecture(NamedTuple):
    """Sizes that weights can be drawn for."""

    config: PreTrainedConfig
    fields: dict[str, Any]
    """As the file has them."""
    source: Path
    folder: Path | None
    """Where the file lies beside others of a checkpoint; None for a named shape."""
    assumptions: tuple[str, ...] = ()
    """What it does not say and was taken."""
    is_general: bool = False
    """Whether transformers' own code computes its layers."""

    @property
    def vocab_size(self) -> int:
        return int(self.config.get_text_config(decoder=True).vocab_size)


def architecture(
    path: str | Path | None,
    shape: str | None,
    *,
    revision: str | None = None,
    trust_remote_code: bool = False,
    accepted: Accepted = OF_TARGET,
    layers: Layers = Layers.auto,
) -> Architecture:
    """The architecture of a named shape or, without one, of a folder or Hugging Face id.

    Raises ValueError when there is no such shape or no config.json, or a field is not accounted for.
    """
    if shape is not None:
        fields = read_shape(shape).config
        if takes_general_path(fields, layers):
            from harness.models.general.known_types import general_config

            told = told_of_shape(fields, layers)
            return Architecture(general_config(fields), fields, SHAPES / f"{shape}.json", None, told, is_general=True)
        others = {name: value for name, value in fields.items() if name != "model_type"}
        config = config_class(fields["model_type"]).from_dict(others)
        infer_dense_layers(config, fields)
        return Architecture(config, fields, SHAPES / f"{shape}.json", None)
    assert path is not None, "sizes come from a shape or from a path"
    folder = checkpoint_folder(path, revision, WITHOUT_WEIGHTS, with_code=trust_remote_code)
    config, fields, settled = read_config(folder, trust_remote_code, accepted, layers=layers)
    is_general = takes_general_path(fields, layers)
    return Architecture(config, fields, folder / CONFIG, folder, settled.assumptions, is_general)


def random_target(
    path: str | Path | None = None,
    *,
    shape: str | None = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    trust_remote_code: bool = False,
    name: str = "zoo",
    in_fp8: bool = False,
    accepted: Accepted = OF_TARGET,
    layers: Layers = Layers.auto,
    num_ranks: int = 1,
) -> TargetModel:
    """A target with frozen random weights, the same at every call.

    path: local folder or Hugging Face id whose config.json gives the sizes; None without a shape is the built-in
    target. dtype: None is the one that its configuration states, else bfloat16. in_fp8, layers,
    num_ranks: as for `load_target`.
    Its tokenizer is the folder's own or, where there is none, that of the zoo, whose ids lie below any real vocabulary
    size. A sequence ends at the tokens that the configuration names; those of the zoo's tokenizer end nothing here.
    Raises ValueError when the model type is not supported.
    """
    source_path = zoo_path("target", with_weights=False) if path is None and shape is None else path
    given = architecture(
        source_path, shape, revision=revision, trust_remote_code=trust_remote_code, accepted=accepted, layers=layers
    )
    own = given.folder if given.folder is not None and has_tokenizer(given.folder) else None
    folder = zoo_path("target", with_weights=False) if own is None else own
    tokenizer = load_tokenizer(folder, trust_remote_code)
    if len(tokenizer) > given.vocab_size:
        raise ValueError(
            f"{given.source}: expected vocab_size {len(tokenizer)} or more, the tokens of the tokenizer in {folder}, "
            f"found {given.vocab_size}; put the tokenizer of this model beside it"
        )
    identity = given.fields | {"tokenizer": fingerprint(folder, TEXT_SUFFIXES)}
    stands_in = folder != given.folder
    return random_model(
        given,
        "target",
        tokenizer,
        device,
        dtype,
        name,
        identity,
        tokenizer_stands_in=stands_in,
        in_fp8=in_fp8,
        num_ranks=num_ranks,
    )


def random_model(
    given: Architecture,
    role: str,
    tokenizer: Any,
    device: torch.device | str,
    dtype: torch.dtype | None,
    name: str,
    identity: dict[str, Any],
    *,
    tokenizer_stands_in: bool,
    in_fp8: bool = False,
    num_ranks: int = 1,
) -> TargetModel:
    """A causal language model of an architecture; two roles of the same architecture have other weights.

    identity: what its results depend on beside the role.
    Raises ValueError as `random_target` does.
    """
    config = given.config
    assumptions = given.assumptions
    if dtype is None and not isinstance(config.dtype, torch.dtype):
        assumptions = (*assumptions, f"{given.source.name} does not state dtype, and bfloat16 is taken")
    if dtype is None:
        dtype = config.dtype if isinstance(config.dtype, torch.dtype) else torch.bfloat16
    described: dict[str, Any] = {
        "name": name,
        "path": given.folder,
        "tokenizer_stands_in": tokenizer_stands_in,
        "random_fingerprint": random_fingerprint(role, identity),
    }
    if given.is_general:
        from harness.models.general.load import check_fp8
        from harness.models.general.random import random_general

        check_fp8(in_fp8, name)
        with configured_by(given.source):
            general = random_general(config, role, tokenizer, device, dtype, num_ranks, **described)
        general.assumptions = (*assumptions, *general.assumptions)
        return general
    types = layer_types(config, given.source)
    with configured_by(given.source), made_on_meta():
        causal_lm = types.causal_lm(config)
    tied = bool(config.tie_word_embeddings)
    weights = RandomWeights(role, config.num_hidden_layers, device=device, dtype=dtype, tied=tied)
    fill(causal_lm, weights, device, dtype, in_fp8)
    causal_lm.model.rotary_emb = types.rotary(config).to(device)
    model = TargetModel(causal_lm.eval().requires_grad_(False), tokenizer, **described)
    model.assumptions = assumptions
    return model
