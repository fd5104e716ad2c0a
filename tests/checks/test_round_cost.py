"""What a round reads, against counts by hand on tiny models."""

from __future__ import annotations

import pytest
import torch

from harness.checks.profiling.profile import prefill_slots
from harness.checks.profiling.roofline import round_cost
from harness.models.target import TargetModel
from kernels.contract import DraftSampling
from tests.support.tiny_engines import NUM_SLOTS, tiny_engine, tiny_requests
from tests.support.tiny_glm import random_glm
from tests.support.tiny_models import VOCAB_SIZE, random_target, word_tokenizer

NUM_TOKENS, LENGTH, BYTES = 2, 10, 4
READ = NUM_SLOTS * (NUM_TOKENS + 1)
"""Tokens of the target's forward, and pairs of the head's last pass."""
H, KEYS, HEAD_DIM = 24, 2 * 8, 8
QUERIES, INNER, NUM_LAYERS = 6 * 8, 40, 5
LAYER = 2 * QUERIES * H + 2 * KEYS * H + 3 * INNER * H + 2 * H
OUTPUT = VOCAB_SIZE * H
CACHED = NUM_SLOTS * (LENGTH - 1) * 2 * KEYS
"""Numbers of one layer."""
TARGET = {
    "target_weight_bytes": BYTES * (NUM_LAYERS * LAYER + H + OUTPUT + READ * H),
    "target_cache_bytes": BYTES * NUM_LAYERS * CACHED,
}
NO_DRAFTER = {
    **dict.fromkeys(("draft_weight_bytes", "draft_output_bytes", "draft_cache_bytes", "draft_logit_bytes"), 0),
    **dict.fromkeys(("extend_weight_bytes", "extend_cache_bytes"), 0),
}


def read(kind, num_slots=NUM_SLOTS, **options):
    """Bytes of a round, as stored."""
    return cost(kind, num_slots, **options).to_json()["floor"]


def cost(kind, num_slots=NUM_SLOTS, **options):
    return round_cost(tiny_engine(kind, num_speculative_tokens=NUM_TOKENS, **options).step, num_slots, LENGTH)


def chain(layer, joining, output, vocab_size):
    """K - 1 passes over one pair of a slot, K output matrices, one pass over K + 1 pairs."""
    passes = NUM_TOKENS - 1
    return dict(
        **TARGET,
        draft_weight_bytes=BYTES * passes * (layer + NUM_SLOTS * H),
        draft_output_bytes=BYTES * NUM_TOKENS * output,
        draft_cache_bytes=BYTES * passes * CACHED,
        draft_logit_bytes=NUM_SLOTS * NUM_TOKENS * (vocab_size * BYTES + 16),
        extend_weight_bytes=BYTES * (layer + joining + READ * H),
        extend_cache_bytes=BYTES * CACHED,
    )


def test_a_llama_without_drafts():
    weights = NUM_LAYERS * LAYER + H + OUTPUT + NUM_SLOTS * H
    expected = TARGET | {"target_weight_bytes": BYTES * weights}
    assert read("none") == dict(**expected, **NO_DRAFTER)


def test_a_tied_qwen3_reads_its_embedding_once_as_the_output_matrix():
    target = random_target("qwen3", tie_word_embeddings=True, num_hidden_layers=NUM_LAYERS)
    weights = NUM_LAYERS * (LAYER + 2 * 8) + H + OUTPUT
    assert read("ngram", target=target)["target_weight_bytes"] == BYTES * weights


def test_an_embedding_is_never_read_more_than_whole():
    found = read("ngram", NUM_SLOTS * 1000)
    assert found["target_weight_bytes"] == BYTES * (NUM_LAYERS * LAYER + H + 2 * OUTPUT)


def test_a_lookup_reads_no_weights_and_no_cache_of_its_own():
    assert read("ngram") == dict(**TARGET, **NO_DRAFTER)


def test_an_eagle_head_uses_the_targets_output_matrix():
    layer = 2 * H * H + LAYER - H  # fc, and no norm before the attention
    assert read("eagle") == chain(layer, 0, OUTPUT, VOCAB_SIZE)


def test_an_eagle3_head_has_a_smaller_output_matrix_and_joins_states_once():
    layer = LAYER + (QUERIES + 2 * KEYS) * H + 2 * H  # wide queries, keys and values; hidden_norm and norm
    assert read("eagle3") == chain(layer, 3 * H * H, 9 * H, 9)


def test_an_mtp_layer_with_its_own_output_matrix():
    layer = LAYER + 2 * H * H + 3 * H  # eh_proj; enorm, hnorm and shared_head.norm
    assert read("mtp") == chain(layer, 0, OUTPUT, VOCAB_SIZE)


def test_a_peagle_head_passes_once_over_the_masked_pairs():
    """Two layers, and K = 3. Would catch a pass for each draft token, mask_hidden read in a pass, and an output matrix
    for each row."""
    layers = 2 * LAYER + (QUERIES + 2 * KEYS) * H + 2 * H
    found = tiny_engine("peagle", num_speculative_tokens=3).step
    known, masked = 4 * NUM_SLOTS, 2 * NUM_SLOTS
    assert round_cost(found, NUM_SLOTS, LENGTH).to_json()["floor"] == dict(
        target_weight_bytes=BYTES * (NUM_LAYERS * LAYER + H + OUTPUT + known * H),
        target_cache_bytes=BYTES * NUM_LAYERS * CACHED,
        draft_weight_bytes=BYTES * (layers + masked * H),
        draft_output_bytes=BYTES * 9 * H,
        draft_cache_bytes=BYTES * 2 * CACHED,
        draft_logit_bytes=NUM_SLOTS * 3 * (9 * BYTES + 16),
        extend_weight_bytes=BYTES * (layers + 3 * H * H + known * H),
        extend_cache_bytes=BYTES * 2 * CACHED,
    )


def test_a_dflash_head_reads_its_layers_once_and_of_the_context_keys_and_values():
    """Two layers, and K = 3. Would catch a pass for each draft token, and layers that read the context too."""
    keys = 2 * (2 * H * KEYS + HEAD_DIM)
    found = tiny_engine("dflash", num_speculative_tokens=3).step
    places = 4 * NUM_SLOTS
    assert round_cost(found, NUM_SLOTS, LENGTH).to_json()["floor"] == dict(
        target_weight_bytes=BYTES * (NUM_LAYERS * LAYER + H + OUTPUT + places * H),
        target_cache_bytes=BYTES * NUM_LAYERS * CACHED,
        draft_weight_bytes=BYTES * (2 * (LAYER + 2 * HEAD_DIM) + H + places * H),
        draft_output_bytes=BYTES * OUTPUT,
        draft_cache_bytes=BYTES * 2 * CACHED,
        draft_logit_bytes=NUM_SLOTS * 3 * (VOCAB_SIZE * BYTES + 16),
        extend_weight_bytes=BYTES * (3 * H * H + H + keys),
        extend_cache_bytes=0,
    )


def test_rows_that_depend_on_the_token_before_read_their_tables_again_and_again():
    """K = 3, gated, rank 6; two layers with convolutions, five candidates. Would catch tables over all tokens that
    count as read whole in a forward."""
    engines = {kind: tiny_engine(kind, num_speculative_tokens=3) for kind in ("dflash", "dspark", "dflash2")}
    found = {kind: round_cost(engine.step, NUM_SLOTS, LENGTH).draft for kind, engine in engines.items()}
    rows, rank = 3 * NUM_SLOTS, 6
    gate = rank * (H + rank) + rank
    # a block of DSpark has a place less
    of_bias = found["dspark"].weight_bytes - found["dflash"].weight_bytes
    assert of_bias == BYTES * (3 * gate + rows * rank - NUM_SLOTS * H)
    assert found["dspark"].output_bytes == BYTES * (OUTPUT + 3 * rank * VOCAB_SIZE)
    convolution = 2 * 2 * H + 2 * 2 * (H // 4) * H
    of_selector = found["dflash2"].weight_bytes - found["dflash"].weight_bytes
    assert of_selector == BYTES * (2 * 2 * convolution + rank * H + rows * (1 + 5) * rank)
    assert found["dflash2"].output_bytes == found["dflash"].output_bytes


def test_a_draft_model_is_read_whole_for_every_token():
    layers = NUM_TOKENS * (LAYER + H)
    rows = (2 * NUM_SLOTS + (NUM_TOKENS - 1) * NUM_SLOTS) * H  # the first pass reads two tokens of a slot
    assert read("draft_model") == dict(
        **TARGET,
        draft_weight_bytes=BYTES * (layers + rows),
        draft_output_bytes=BYTES * NUM_TOKENS * OUTPUT,
        draft_cache_bytes=BYTES * NUM_TOKENS * NUM_SLOTS * (LENGTH - 2) * 2 * KEYS,
        draft_logit_bytes=NUM_SLOTS * NUM_TOKENS * (VOCAB_SIZE * BYTES + 16),
        extend_weight_bytes=0,
        extend_cache_bytes=0,
    )


def test_a_target_without_layers_reads_those_that_are_left_and_keeps_keys_of_its_own():
    """Three of five. Would catch the cost of the whole target, and a cache of all its layers."""
    engine = tiny_engine("self_speculation", num_speculative_tokens=NUM_TOKENS)
    rows = (2 * NUM_SLOTS + (NUM_TOKENS - 1) * NUM_SLOTS) * H
    assert round_cost(engine.step, NUM_SLOTS, LENGTH).to_json()["floor"] == dict(
        **TARGET,
        draft_weight_bytes=BYTES * (NUM_TOKENS * (3 * LAYER + H) + rows),
        draft_output_bytes=BYTES * NUM_TOKENS * OUTPUT,
        draft_cache_bytes=BYTES * NUM_TOKENS * NUM_SLOTS * 3 * (LENGTH - 2) * 2 * KEYS,
        draft_logit_bytes=NUM_SLOTS * NUM_TOKENS * (VOCAB_SIZE * BYTES + 16),
        extend_weight_bytes=0,
        extend_cache_bytes=0,
    )
    assert 5 * engine.drafter.cache_bytes == 3 * engine.cache_bytes


GLM_ATTENTION = H * 18 + 18 + 18 * 5 * 20 + H * 22 + 14 + 14 * 5 * 22 + 50 * H
EXPERT = 3 * H * 16
ROUNDED = 4
"""Bytes: the share of each of a layer's two merged weights is rounded to whole ones."""


def glm_layer(num_hit):
    """Attention, two norms, the router, the shared expert, and those of six that are hit."""
    return GLM_ATTENTION + 2 * H + 6 * H + EXPERT + num_hit * EXPERT


@pytest.mark.parametrize(
    ("num_slots", "in_target", "in_chain"),
    [(1, 6 * 19 / 27, 2), (2, 6 * 665 / 729, 6 * 5 / 9), (3, 6 * 19171 / 19683, 6 * 19 / 27)],
    ids=["one slot", "two", "three"],
)
def test_of_experts_those_are_read_that_the_tokens_hit_on_average(num_slots, in_target, in_chain):
    """Two experts of a token, six in all; the forward after the chain has three tokens of a slot."""
    target = TargetModel(random_glm(), word_tokenizer())
    found = read("mtp", num_slots=num_slots, target=target)
    num_read = 3 * num_slots
    dense = GLM_ATTENTION + 2 * H + 3 * H * 40
    expected = BYTES * (dense + 2 * glm_layer(in_target) + H + OUTPUT + num_read * H)
    assert found["target_weight_bytes"] == pytest.approx(expected, abs=ROUNDED)
    assert found["target_cache_bytes"] == BYTES * 3 * num_slots * (LENGTH - 1) * 22
    around = 2 * H * H + 3 * H
    expected = BYTES * (glm_layer(in_chain) + around + num_slots * H)
    assert found["draft_weight_bytes"] == pytest.approx(expected, abs=ROUNDED)
    expected = BYTES * (glm_layer(in_target) + around + num_read * H)
    assert found["extend_weight_bytes"] == pytest.approx(expected, abs=ROUNDED)
    assert found["extend_cache_bytes"] == BYTES * num_slots * (LENGTH - 1) * 22


def test_greedy_drafts_leave_no_rows():
    assert read("eagle", draft_sampling=DraftSampling.greedy)["draft_logit_bytes"] == 0


def test_half_the_weights_in_half_the_bytes():
    """Would catch an element size that is taken for granted."""
    causal_lm = random_target(seed=3, num_hidden_layers=NUM_LAYERS).causal_lm.to(torch.bfloat16)
    half, whole = cost("eagle", target=TargetModel(causal_lm, word_tokenizer())), cost("eagle")
    assert 2 * half.target.num_bytes == whole.target.num_bytes and 2 * half.extend.num_bytes == whole.extend.num_bytes


def test_what_joins_the_targets_states_is_read_after_verification_and_not_before():
    """What the count of EAGLE-3 rests on: NaN in fc reaches no draft of this round, and those of the next."""
    engine = tiny_engine("eagle3", num_speculative_tokens=NUM_TOKENS)
    step = engine.step
    inputs = prefill_slots(step, tiny_requests(NUM_SLOTS, 4))
    step.drafter.head.fc.weight.fill_(torch.nan)
    drafted = step.draft(inputs)
    assert not drafted.draft.logits.isnan().any()
    scored = step.score(inputs, drafted)
    step.extend(inputs, scored, step.verify(inputs, drafted, scored))
    assert step.draft(inputs).draft.logits.isnan().any()
