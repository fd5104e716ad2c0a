"""DFlash heads: both layouts give the same rows, and what does not fit is refused."""

from __future__ import annotations

import json

import pytest
import torch

from harness.drafters.block import BlockDrafter
from harness.drafters.chain import DrafterShape
from harness.models.checkpoint import CheckpointError
from harness.models.dflash import load_dflash
from harness.models.head import save_head
from kernels.contract import DraftSampling
from tests.support.tiny_heads import (
    AUX_LAYERS,
    BLOCK_SIZE,
    DRAFT_IDS,
    MASK_TOKEN_ID,
    load_quietly,
    logits_of,
    make_head,
)
from tests.support.tiny_models import (
    TOLERANCE,
    VOCAB_SIZE,
    edit_config,
    edit_weights,
    positions_from,
    random_causal_lm,
    random_target,
    random_tokens,
)

NUM_KNOWN = 6


@pytest.fixture
def target():
    return random_target()


@pytest.fixture
def folder(tmp_path, target):
    save_head(make_head("dflash", target), tmp_path)
    return tmp_path


def write_original(folder, head, **changes):
    """The same head in z-lab's layout: no output matrix, and layers counted by what leaves them."""
    save_head(head, folder)
    sizes = head.config.layer.to_dict() | {"dtype": "float32"}
    own = {"mask_token_id": MASK_TOKEN_ID, "target_layer_ids": [index - 1 for index in AUX_LAYERS]}
    fields = {"architectures": ["DFlashDraftModel"], "block_size": BLOCK_SIZE, "num_target_layers": 7}
    (folder / "config.json").write_text(json.dumps(sizes | fields | {"dflash_config": own | changes}))


def assert_refused_in_one_line(folder, target, message):
    with pytest.raises(ValueError, match=message) as refused:
        load_dflash(folder, target)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("ids", "left_out"),
    [(DRAFT_IDS, ()), (None, ()), (torch.arange(VOCAB_SIZE), ()), (torch.arange(VOCAB_SIZE), ("d2t", "t2d"))],
    ids=["few tokens", "shared", "own matrix", "own matrix without ids"],
)
def test_a_written_head_is_read_back(tmp_path, target, ids, left_out):
    """Would catch an output matrix of all tokens that is taken for the target's, and lost ids of draft tokens."""
    head = make_head("dflash", target, ids)
    save_head(head, tmp_path)
    for name in left_out:
        edit_weights(tmp_path, drop=name)
    loaded = load_quietly("dflash", tmp_path, target)
    assert torch.equal(logits_of(loaded), logits_of(head)) and loaded.config.to_dict() == head.config.to_dict()
    assert loaded.has_own_output == (ids is not None)
    given, found = head.draft_to_target, loaded.draft_to_target
    assert found is given is None or torch.equal(found, given)


def test_the_original_layout_is_read(tmp_path, target):
    """Would catch target_layer_ids taken for the layers that states enter, one too early."""
    head = make_head("dflash", target, None)
    save_head(head, tmp_path)
    expected = logits_of(load_dflash(tmp_path, target))
    write_original(tmp_path, head)
    loaded = load_quietly("dflash", tmp_path, target)
    assert torch.equal(logits_of(loaded), expected) and loaded.aux_layers == AUX_LAYERS
    told = "its file does not say where in a block its drafts begin, and drafter.anchor=mask is taken"
    assert loaded.assumptions == (told,)
    edit_config(tmp_path, dflash_config={"mask_token_id": MASK_TOKEN_ID, "target_layer_ids": list(AUX_LAYERS)})
    assert not torch.allclose(logits_of(load_dflash(tmp_path, target)), expected, atol=1e-2)


def test_target_layer_ids_are_those_of_layers_whose_output_is_read(tmp_path, target):
    """Of modules that count for themselves: would catch an off by one here and in `write_original` alike."""
    write_original(tmp_path, make_head("dflash", target, None))
    causal_lm, tokens, left = random_causal_lm(), random_tokens(1, NUM_KNOWN), []
    for index in json.loads((tmp_path / "config.json").read_text())["dflash_config"]["target_layer_ids"]:
        causal_lm.model.layers[index].register_forward_hook(lambda *given: left.append(given[-1]))
    causal_lm(tokens)
    loaded = load_dflash(tmp_path, target)
    output = target.forward(tokens, positions_from([0], NUM_KNOWN), None, loaded.aux_layers)
    torch.testing.assert_close(torch.cat(output.aux, dim=-1), torch.cat(left, dim=-1), **TOLERANCE)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"block_size": True}, "expected block_size as one number, found True"),
        ({"block_size": 1}, "expected block_size 2 or more, found 1"),
        ({"mask_token_id": "11"}, "expected mask_token_id as one number, found '11'"),
        ({"mask_token_id": -1}, "from 0 to 60, a token of target tiny, found -1"),
        ({"mask_token_id": VOCAB_SIZE}, f"from 0 to 60, a token of target tiny, found {VOCAB_SIZE}"),
        ({"aux_hidden_state_layer_ids": ["1"]}, r"expected aux_hidden_state_layer_ids as a list .* found \['1'\]"),
        ({"aux_hidden_state_layer_ids": [1, 2, 7]}, r"different layers from 0 to 6, .* found \[1, 2, 7\]"),
        ({"aux_hidden_state_layer_ids": [1, 2, 2]}, r"different layers from 0 to 6, .* found \[1, 2, 2\]"),
        ({"sample_from_anchor": "yes"}, "sample_from_anchor = 'yes' in config.json, where true or false is expected"),
        ({"target_hidden_size": "24"}, "expected target_hidden_size 24, its own, found '24'"),
        ({"draft_vocab_size": 9.0}, r"draft_vocab_size as a whole number of 1 or more, found 9\.0"),
        ({"draft_vocab_size": -1}, "draft_vocab_size as a whole number of 1 or more, found -1"),
        (
            {"speculators_config": {"verifier": "tiny"}},
            "speculators_config.verifier = 'tiny' in config.json, where an object is expected",
        ),
        (
            {"speculators_model_type": "peagle"},
            "found speculators_model_type = 'peagle' in config.json, beside speculators_config.algorithm = 'dflash'",
        ),
        (
            {"speculators_model_type": "peagle", "speculators_config": {"algorithm": "peagle"}},
            "expected speculators_model_type 'dflash', found 'peagle'",
        ),
        ({"transformer_layer_config": None}, "expected a DFlash head with dflash_config or transformer_layer_config"),
        ({"dflash_config": "x"}, "dflash_config = 'x' in config.json, where an object is expected"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(folder, target, fields, message):
    edit_config(folder, **fields)
    assert_refused_in_one_line(folder, target, message)


@pytest.mark.parametrize("name", ["block_size", "mask_token_id", "aux_hidden_state_layer_ids"])
def test_a_config_without_a_field_that_it_needs_is_refused(folder, target, name):
    edit_config(folder, drop=(name,))
    assert_refused_in_one_line(folder, target, f"expected {name} as .*, found [Nn]one")


def test_a_config_of_neither_layout_is_refused(folder, target):
    edit_config(folder, drop=("transformer_layer_config",))
    assert_refused_in_one_line(folder, target, "dflash_config or transformer_layer_config, found neither")


@pytest.mark.parametrize(
    ("fields", "own", "message"),
    [
        ({"block_size": None}, {}, "expected block_size as one number, found None"),
        ({"block_size": "5"}, {}, "expected block_size as one number, found '5'"),
        ({}, {"mask_token_id": None}, "expected mask_token_id as one number, found None"),
        ({"architectures": ["Other"]}, {}, "expected sample_from_anchor or query_zero_predicts_next"),
        ({}, {"target_layer_ids": [0, 1.0, 3]}, r"dflash_config\.target_layer_ids as a list .* found \[0, 1\.0, 3\]"),
        ({}, {"target_layer_ids": [0, 1, 6]}, "different layers from 0 to 6"),
        ({}, {"block_size": 4}, "block_size = 5 in config.json, beside dflash_config.block_size = 4; take out"),
        ({"num_target_layers": 36}, {}, "expected num_target_layers 7, those of target tiny, found 36"),
        ({"speculators_model_type": "eagle3"}, {}, "expected speculators_model_type 'dflash', found 'eagle3'"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, {}, "would change what the layers attend to"),
    ],
)
def test_a_config_of_the_original_layout_that_does_not_fit_is_refused(tmp_path, target, fields, own, message):
    write_original(tmp_path, make_head("dflash", target, None), **own)
    edit_config(tmp_path, **fields)
    assert_refused_in_one_line(tmp_path, target, message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_size": 48}, "expected hidden_size 24, that of target tiny, found 48; the head was made for another"),
        ({"num_hidden_layers": 0}, "expected num_hidden_layers 1 or more, found 0"),
        ({"layer_types": ["sliding_attention", "full_attention"]}, "would change what the layers attend to"),
        ({"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, "use_sliding_window = True"),
        ({"model_type": "llama", "use_sliding_window": True, "sliding_window": 4}, "use_sliding_window = True"),
    ],
)
def test_layers_that_do_not_fit_are_refused(folder, target, changes, message):
    layers = json.loads((folder / "config.json").read_text())["transformer_layer_config"]
    edit_config(folder, transformer_layer_config=layers | changes)
    assert_refused_in_one_line(folder, target, message)


def test_few_draft_tokens_need_an_output_matrix(folder, target):
    edit_weights(folder, drop="lm_head.weight")
    with pytest.raises(CheckpointError, match=r"expected lm_head\.weight for its own 9 draft tokens, found none"):
        load_dflash(folder, target)


def test_more_drafts_than_a_block_holds_are_refused_before_memory_is_taken(target):
    """Would catch the check behind the caches: no machine has memory for slots of so many places."""
    head = make_head("dflash", target, None)
    BlockDrafter(head, DraftSampling.sampled, DrafterShape(2, 30, BLOCK_SIZE - 1, VOCAB_SIZE))
    with pytest.raises(ValueError, match=r"drafting\.num_speculative_tokens: expected at most 4 .* of 5, found 5"):
        BlockDrafter(head, DraftSampling.sampled, DrafterShape(2, 10**15, BLOCK_SIZE, VOCAB_SIZE))
