"""DFlash heads compute what the package `speculators` computed.

Recorded by tests/support/record_dflash_speculators.py.
"""

from __future__ import annotations

import pytest
import torch

from harness.models.dflash import load_dflash
from harness.models.target import TargetModel, TargetOutput
from harness.models.tree_places import TreePlaces
from tests.support.recorded_speculators import RecordedSpeculators
from tests.support.tiny_models import TOLERANCE, positions_from, random_causal_lm, word_tokenizer

RECORDED = RecordedSpeculators("dflash")


@pytest.fixture(scope="module")
def runs():
    return RECORDED.runs()


@pytest.fixture(scope="module")
def target(runs):
    """The heads take its embedding and output matrix; the states of its layers are recorded."""
    vocab_size, hidden_size = runs["target_embedding"].shape
    causal_lm = random_causal_lm(
        vocab_size=vocab_size, hidden_size=hidden_size, num_attention_heads=4, tie_word_embeddings=False
    )
    with torch.no_grad():
        causal_lm.model.embed_tokens.weight.copy_(runs["target_embedding"])
        causal_lm.lm_head.weight.copy_(runs["target_output"])
    return TargetModel(causal_lm, word_tokenizer(vocab_size), name="recorded")


def block_logits(head, runs, anchor, num_places):
    """[L, V_draft] of one block, whose first place is the token at `anchor`, over a cache of what lies before it."""
    cache = head.new_cache(1, anchor + num_places)
    states = runs["aux_states"][None, :anchor]
    features = head.features(TargetOutput(states[..., :0], states.chunk(3, dim=-1)))
    positions = positions_from([0], anchor)
    head.read(features, positions, cache.view(slice(0, 1), positions, anchor))
    tokens = torch.full((1, num_places), head.config.mask_token_id)
    tokens[0, 0] = runs["token_ids"][anchor]
    all_see_all = torch.ones(num_places, num_places, dtype=torch.bool)
    tree = TreePlaces(torch.tensor([anchor]), torch.arange(num_places), all_see_all)
    view = cache.view(slice(0, 1), tree.absolute, anchor + num_places, tree)
    return head.logits(head.fill_block(tokens, tree.absolute, view))[0]


@pytest.mark.parametrize("name", RECORDED.cases)
@torch.inference_mode()
def test_blocks_at_each_anchor_equal_the_recorded(name, tmp_path, target, runs):
    """Would catch a block that sees the state of its own first token, or its places in one direction alone; a norm left
    out; and layers that share a cache."""
    case, head = RECORDED.cases[name], RECORDED.load(name, tmp_path, target, load_dflash)
    assert head.config.block_size == case["block_size"]
    recorded = runs["logits"][case["row"], :, : case["block_size"], : head.vocab_size]
    found = [block_logits(head, runs, anchor, case["block_size"]) for anchor in runs["anchors"].tolist()]
    torch.testing.assert_close(torch.stack(found), recorded, **TOLERANCE)


def test_the_recorded_cases_differ_from_each_other(runs):
    """Each field of a case reaches its outputs: otherwise a head that ignored the field would pass. Sizes given as a
    Llama's are the same sizes."""
    names = [name for name in RECORDED.cases if name != "sizes given as a Llama's"]
    rows = [runs["logits"][RECORDED.cases[name]["row"]] for name in names]
    assert all((rows[one] - rows[other]).abs().max() > 0.1 for one in range(len(rows)) for other in range(one))
