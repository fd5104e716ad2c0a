"""What is taken where the files of a model do not say, one sentence each: for the record, the report and `run --list`.

The loader of a kind and `assumed_of_cell` ask the same functions. JSON only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.config.cell import CellConfig
from harness.config.drafter import DRAFTER, DrafterConfig, DrafterKind
from harness.config.models import AS_FILED, HeadChoices, TargetConfig, Weights
from harness.models.accounting import Accepted, head_account, model_account, mtp_account
from harness.models.aux_layer_ids import aux_layers_of
from harness.models.checkpoint import CheckpointError, named, stored_tensors
from harness.models.checkpoint_kind import BLOCK_HEADS
from harness.models.described import described_drafter, described_target
from harness.models.dflash_anchor import anchor_of
from harness.models.head_fits import confidence_told, windows_told
from harness.models.rounded_weights import trained_weights_told, weights_label_here
from harness.models.shape import told_of_shape
from harness.models.shared_tokens import shared_tokens
from harness.models.token_ids import Vocabulary, compared, has_tokenizer, missing_ids, stored_token_ids

_READ_LAYERS = DRAFTER.members_with("aux_layers")
"""Kinds of heads that read states of some layers of the target."""


def assumed_of_head(
    kind: str, fields: Mapping[str, Any], num_layers: int, label: str, choices: HeadChoices = AS_FILED
) -> tuple[str, ...]:
    """Of a draft head.

    Args:
        kind: of the drafter.
        fields: of its config.json.
        num_layers: of its target.
        label: of its target's weights, see `weights_label_here`.
        choices: what counts in place of what the file says.

    Raises:
        ValueError: what its file says contradicts itself, or may mean several things.
    """
    found = []
    # of P-EAGLE heads all readers take false
    is_asked = kind == DrafterKind.eagle3.value and "transformer_layer_config" in fields
    if is_asked and fields.get("norm_before_residual") is None:
        found.append(
            "its file does not state norm_before_residual, and false is taken as speculators does, while vLLM "
            "takes true"
        )
    if kind in _READ_LAYERS:
        found += aux_layers_of(kind, fields, num_layers, choices.aux_layers or None).assumed
    if kind in BLOCK_HEADS:
        found += anchor_of(fields, choices.anchor, kind).assumed
    if kind == DrafterKind.dspark.value:
        found += confidence_told(fields, choices)
    if kind == DrafterKind.dflash2.value:
        found += windows_told(fields)
    return (*found, *trained_weights_told(fields, label))


def assumed_of_vocabulary(target: TargetConfig, drafter: DrafterConfig) -> tuple[str, ...]:
    """Of a drafter's token ids, as far as files on this machine tell them.

    Raises:
        ValueError: they differ in meaning from the target's, or it cannot be told that they do not.
    """
    ours, theirs = described_target(target), described_drafter(drafter)
    # the built-in models have one vocabulary
    if ours is None or theirs is None or (target.is_built_in and drafter.path is None and drafter.shape is None):
        return ()
    num_rows, num_target_rows = theirs.vocab_size, ours.vocab_size
    if type(num_rows) is not int or type(num_target_rows) is not int:
        return ()
    is_model = drafter.kind is DrafterKind.draft_model
    is_random = drafter.weights is Weights.random
    # those of a shape, and beside random weights, only stand in
    folders = [
        None if target.shape is not None else ours.source.parent,
        None if is_random else theirs.source.parent,
    ]
    stated, own = (None if folder is None else stored_token_ids(folder) for folder in folders)
    for folder, found in zip(folders, (stated, own), strict=True):
        if folder is not None and found is None and has_tokenizer(folder):
            # in a form that the loader alone reads
            return ()
    if DRAFTER.has(drafter, "vocabulary") and DRAFTER.parts(drafter)[1]["vocabulary"].value == "shared":
        if stated is None or own is None:
            # the loader says what is missing
            return ()
        return (shared_tokens(stated, num_target_rows, own, num_rows).told(num_rows),)
    vocabularies = Vocabulary(num_target_rows, stated), Vocabulary(num_rows, own)
    assumed = compared(*vocabularies, target.name, is_model and not is_random)
    # of a head it follows from its tensors too
    return (*assumed, *missing_ids(num_rows, num_target_rows)) if is_model else assumed


def assumed_of_target(target: TargetConfig) -> tuple[str, ...]:
    """Of the files of a target, where they are on this machine.

    Raises:
        CheckpointError: a field or tensor is not accounted for.
    """
    described = described_target(target)
    if described is None:
        return ()
    if target.shape is not None:
        return told_of_shape(described.fields, target.layers)
    if target.trust_remote_code and "auto_map" in described.fields:
        # its own code may take other fields
        return ()
    accepted, folder = Accepted("target", tuple(target.accept_unknown)), described.source.parent
    names, runs_code = _names(folder, target), target.trust_remote_code
    account = model_account(folder, described.fields, accepted, runs_code=runs_code, names=names, layers=target.layers)
    return account.settled().assumptions


def assumed_of_drafter(drafter: DrafterConfig, target: TargetConfig) -> tuple[str, ...]:
    """The same of a drafter's files; those of an MTP layer are normally its target's."""
    in_target = drafter.has_model and drafter.traits.in_target and drafter.path is None
    described = described_target(target) if in_target else described_drafter(drafter)
    if described is None or drafter.shape is not None:
        return ()
    accepted, folder = Accepted("drafter", tuple(drafter.accept_unknown)), described.source.parent
    names, fields = _names(folder, target if in_target else drafter), described.fields
    if drafter.kind is DrafterKind.mtp:
        if Weights.random in (target.weights, drafter.weights):
            return ()
        owner = None if in_target else described_target(target)
        others = None if owner is None else owner.fields
        return mtp_account(folder, fields, accepted, names, target=others).settled().assumptions
    if drafter.kind is DrafterKind.draft_model:
        return model_account(folder, fields, accepted, names=names).settled().assumptions
    kind = drafter.kind.value
    of_files = head_account(kind, folder, fields, accepted, names).settled().assumptions
    ours = described_target(target)
    num_layers = None if ours is None else ours.fields.get("num_hidden_layers")
    if type(num_layers) is not int:
        return of_files
    with named(described.source):
        return (*of_files, *assumed_of_head(kind, fields, num_layers, weights_label_here(target), drafter.head_choices))


def _names(folder: Path, model: TargetConfig | DrafterConfig) -> Collection[str] | None:
    """The tensors in a folder that are read; None where its files are damaged, which the loader says."""
    if model.weights is Weights.random:
        return ()
    try:
        return stored_tensors(folder)
    except CheckpointError:
        return None


def by_role(target: Sequence[str], drafter: Sequence[str]) -> tuple[str, ...]:
    """What was assumed of the models of a cell, each with whose file it is."""
    return (*(f"target: {text}" for text in target), *(f"drafter: {text}" for text in drafter))


def assumed_of_cell(cell: CellConfig) -> tuple[str, ...]:
    """What is known without weights: nothing of what is not on this machine, or of models that a server loads."""
    if cell.is_served:
        return ()
    of_files = assumed_of_drafter(cell.drafter, cell.target)
    return by_role(assumed_of_target(cell.target), (*of_files, *assumed_of_vocabulary(cell.target, cell.drafter)))
