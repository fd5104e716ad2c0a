"""Where a DFlash head's drafts begin: what files say, and what it changes."""

from __future__ import annotations

import pytest
import torch

from harness.config.drafter import DrafterKind, drafter_of
from harness.config.models import Anchor
from harness.drafters.block import BlockDrafter
from harness.drafters.chain import DrafterShape
from harness.drafters.registry import load_head
from harness.models.dflash import load_dflash
from harness.models.dflash_anchor import anchor_of
from harness.models.head import save_head
from harness.models.target import TargetModel
from kernels.contract import DraftSampling, VerificationMethod
from tests.support.tiny_engines import engine_over, tiny_requests
from tests.support.tiny_heads import make_head
from tests.support.tiny_models import edit_config, random_target

ORIGINAL = {"architectures": ["DFlashDraftModel"], "dflash_config": {}}
ASSUMED = ("its file does not say where in a block its drafts begin, and drafter.anchor=mask is taken",)


@pytest.mark.parametrize(
    ("fields", "anchor", "assumed"),
    [
        (ORIGINAL, Anchor.mask, ASSUMED),
        (ORIGINAL | {"architectures": ["QwenDFlashDraftModel"]}, Anchor.mask, ASSUMED),
        ({"transformer_layer_config": {}}, Anchor.mask, ASSUMED),
        ({"transformer_layer_config": {}, "sample_from_anchor": False}, Anchor.mask, ()),
        ({"transformer_layer_config": {}, "sample_from_anchor": True}, Anchor.first, ()),
        (ORIGINAL | {"dflash_config": {"query_zero_predicts_next": True}}, Anchor.first, ()),
        (ORIGINAL | {"dflash_config": {"sample_from_anchor": True}, "sample_from_anchor": True}, Anchor.first, ()),
        ({"dflash_config": {"query_zero_predicts_next": False}}, Anchor.mask, ()),
    ],
)
def test_what_a_file_says_counts_and_what_it_leaves_out_is_told(fields, anchor, assumed):
    """Would catch drafts that are all off by one position, in silence."""
    assert anchor_of(fields) == (anchor, assumed)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dflash_config": {}}, r"found architectures None; say by drafter\.anchor=mask"),
        ({"dflash_config": {}, "architectures": ["Qwen3DSparkModel"]}, "found architectures .*DSpark"),
        ({"target_layer_ids": [1], "architectures": ["DFlashDraftModel"]}, "expected sample_from_anchor or"),
        (ORIGINAL | {"dflash_config": {"sample_from_anchor": True}, "sample_from_anchor": False}, "one layout"),
        (ORIGINAL | {"sample_from_anchor": 1}, "expected sample_from_anchor as true or false, found 1"),
    ],
)
def test_a_file_that_may_mean_either_is_refused_until_the_user_says(fields, message):
    with pytest.raises(ValueError, match=message):
        anchor_of(fields)


def test_what_the_user_says_counts_and_is_told_where_the_file_says_otherwise():
    said = {"transformer_layer_config": {}, "sample_from_anchor": True}
    told = "drafter.anchor=mask counts, and not sample_from_anchor true of its file"
    assert anchor_of(said, Anchor.mask) == (Anchor.mask, (told,))
    assert anchor_of(said, Anchor.first) == (Anchor.first, ())
    assert anchor_of({"dflash_config": {}}, Anchor.first) == (Anchor.first, ())


@pytest.fixture
def target():
    """A target whose layers add nothing, so that the last token alone decides the next one."""
    return silenced(random_target(seed=3))


def silenced(model):
    layers = model.causal_lm.model.layers if isinstance(model, TargetModel) else model.layers
    with torch.no_grad():
        for layer in layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    return model


@pytest.fixture
def folder(tmp_path, target):
    """A head of blocks of 3 that does the same: each place gives the token that follows its own."""
    sizes = {"aux_layers": (1, 2), "block_size": 3, "mask_token_id": 5, "num_hidden_layers": 1}
    head = silenced(make_head("dflash", target, None, **sizes))
    with torch.no_grad():
        head.norm.weight.copy_(target.causal_lm.model.norm.weight)
    save_head(head, tmp_path)
    return tmp_path


def accepted(folder, target, anchor, num_drafts):
    """Share of rounds whose first draft token is accepted, greedy."""
    config = drafter_of(DrafterKind.dflash, path=str(folder), anchor=anchor)
    loaded = load_head(config, target)
    shape = DrafterShape(2, 40, num_drafts, target.vocab_size)
    drafter = BlockDrafter(loaded.head, DraftSampling.greedy, shape)
    engine = engine_over(target, drafter, shape, 16, method=VerificationMethod.strict)
    run = engine.run(tiny_requests(4, 5), lambda record: None)
    rounds = [item for record in run.requests for item in record.rounds if item.num_draft_tokens]
    return sum(item.num_accepted_tokens > 0 for item in rounds) / len(rounds)


def test_a_head_whose_first_place_drafts_is_accepted_where_it_is_read_so(folder, target):
    """The file says the other layout. Would catch a setting that the loader does not see, and drafts that begin one
    place too late."""
    assert accepted(folder, target, Anchor.first, 3) == 1
    assert accepted(folder, target, None, 2) < 0.2
    with pytest.raises(ValueError, match="expected at most 2 with a DFlash head that was trained on blocks of 3"):
        accepted(folder, target, Anchor.mask, 3)


def test_a_file_that_says_so_is_read_so_and_written_again(folder, target):
    edit_config(folder, sample_from_anchor=True)
    head = load_dflash(folder, target)
    assert head.config.anchor is Anchor.first and head.assumptions == () and head.config.to_dict()["sample_from_anchor"]
    assert head.config.to_dict()["speculators_config"]["proposal_methods"][0]["speculative_tokens"] == 3
    assert accepted(folder, target, None, 3) == 1
