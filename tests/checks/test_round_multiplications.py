"""What a round multiplies, against counts by hand on tiny models and what torch does; and its rates."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from harness.checks.profiling.profile import prefill_slots
from harness.checks.profiling.roofline import round_cost
from harness.checks.timing.clock import WallClock
from harness.checks.timing.matrix_rate import CPU_SIZES, matrix_rates
from harness.checks.timing.measured import Timing
from harness.models.target import TargetModel
from tests.checks.test_round_cost import (
    EXPERT,
    KEYS,
    LAYER,
    LENGTH,
    NUM_LAYERS,
    NUM_TOKENS,
    OUTPUT,
    QUERIES,
    READ,
    VOCAB_SIZE,
    H,
    cost,
)
from tests.support.tiny_engines import KINDS, NUM_SLOTS, tiny_engine, tiny_requests
from tests.support.tiny_glm import random_glm
from tests.support.tiny_models import random_target, word_tokenizer

KEYS_OF_ROUND = 10 + 11 + 12
"""That the tokens of a slot see: the last of ten sees ten."""
MATRICES = LAYER - 2 * H
"""Weights of the matrices of a layer, without its norms."""
OF_KEY = 2 * 6 * (8 + 8)
"""Six query heads, whatever the number of key heads."""
TARGET_OPERATIONS = {
    "num_target_linear": 2 * READ * (NUM_LAYERS * MATRICES + OUTPUT),
    "num_target_attention": NUM_SLOTS * NUM_LAYERS * KEYS_OF_ROUND * OF_KEY,
}
NO_DRAFTER_OPERATIONS = {
    **dict.fromkeys(("num_draft_linear", "num_draft_output", "num_draft_attention"), 0),
    **dict.fromkeys(("num_extend_linear", "num_extend_attention"), 0),
}


def operations(kind, num_slots=NUM_SLOTS, **options):
    """Operations of a round, as stored."""
    return cost(kind, num_slots, **options).to_json()["operations"]


def multiplied_by_chain(layer, joining, output):
    """One pass over one pair of a slot, K output matrices, one pass over K + 1 pairs."""
    return dict(
        **TARGET_OPERATIONS,
        num_draft_linear=2 * NUM_SLOTS * layer,
        num_draft_output=2 * NUM_SLOTS * NUM_TOKENS * output,
        num_draft_attention=NUM_SLOTS * 10 * OF_KEY,
        num_extend_linear=2 * READ * (layer + joining),
        num_extend_attention=NUM_SLOTS * KEYS_OF_ROUND * OF_KEY,
    )


def test_a_llama_without_drafts_multiplies_one_token_of_a_slot():
    found = cost("none").target
    assert found.num_linear + found.num_output == 2 * NUM_SLOTS * (NUM_LAYERS * MATRICES + OUTPUT)
    assert found.num_attention == NUM_SLOTS * NUM_LAYERS * 10 * OF_KEY and cost("none").draft.num_operations == 0


def test_a_tied_output_matrix_multiplies_all_the_same():
    target = random_target("qwen3", tie_word_embeddings=True, num_hidden_layers=NUM_LAYERS)
    assert operations("ngram", target=target) == TARGET_OPERATIONS | NO_DRAFTER_OPERATIONS


def test_operations_of_an_eagle_head_uses_the_targets_output_matrix():
    assert operations("eagle") == multiplied_by_chain(2 * H * H + MATRICES, 0, OUTPUT)


def test_operations_of_an_eagle3_head_has_a_smaller_output_matrix_and_joins_states_once():
    assert operations("eagle3") == multiplied_by_chain(MATRICES + (QUERIES + 2 * KEYS) * H, 3 * H * H, 9 * H)


def test_operations_of_an_mtp_layer_with_its_own_output_matrix():
    assert operations("mtp") == multiplied_by_chain(MATRICES + 2 * H * H, 0, OUTPUT)


def test_operations_of_a_peagle_head_are_those_of_one_pass():
    layers = 2 * MATRICES + (QUERIES + 2 * KEYS) * H
    assert operations("peagle") == dict(
        **TARGET_OPERATIONS,
        num_draft_linear=2 * NUM_SLOTS * layers,
        num_draft_output=2 * NUM_SLOTS * NUM_TOKENS * 9 * H,
        num_draft_attention=NUM_SLOTS * 2 * 10 * OF_KEY,
        num_extend_linear=2 * READ * (layers + 3 * H * H),
        num_extend_attention=NUM_SLOTS * 2 * KEYS_OF_ROUND * OF_KEY,
    )


def test_operations_of_a_dflash_head_are_those_of_one_block_and_of_keys_and_values():
    """Would catch a whole layer for each token that the target has read, and places of a block that see those before
    them alone."""
    width = NUM_TOKENS + 1
    assert operations("dflash") == dict(
        **TARGET_OPERATIONS,
        num_draft_linear=2 * NUM_SLOTS * width * 2 * MATRICES,
        num_draft_output=2 * NUM_SLOTS * NUM_TOKENS * OUTPUT,
        num_draft_attention=NUM_SLOTS * 2 * width * (LENGTH + NUM_TOKENS) * OF_KEY,
        num_extend_linear=2 * READ * (3 * H * H + 2 * 2 * H * KEYS),
        num_extend_attention=0,
    )


def test_a_dspark_head_multiplies_its_gate_and_its_second_matrix_for_each_row():
    found, rank = cost("dspark").draft, 6
    rows = NUM_SLOTS * NUM_TOKENS
    block = NUM_SLOTS * NUM_TOKENS * 2 * MATRICES
    assert found.num_linear == 2 * (block + rows * rank * (H + rank))
    assert found.num_output == 2 * rows * (OUTPUT + rank * VOCAB_SIZE)


def test_a_dflash2_head_multiplies_its_kernels_and_projects_each_row():
    found, rank = cost("dflash2").draft, 6
    kernels = 2 * H * 2 * 2 * (H // 4)
    places = NUM_SLOTS * (NUM_TOKENS + 1)
    assert found.num_linear == 2 * (places * 2 * (MATRICES + kernels) + NUM_SLOTS * NUM_TOKENS * rank * H)
    assert found.num_output == 2 * NUM_SLOTS * NUM_TOKENS * OUTPUT


def test_a_draft_model_reads_two_tokens_of_a_slot_first():
    assert operations("draft_model") == dict(
        **TARGET_OPERATIONS,
        num_draft_linear=2 * NUM_SLOTS * 3 * MATRICES,
        num_draft_output=2 * NUM_SLOTS * NUM_TOKENS * OUTPUT,
        num_draft_attention=NUM_SLOTS * (9 + 10 + 11) * OF_KEY,
        num_extend_linear=0,
        num_extend_attention=0,
    )


GLM_MATRICES = H * 18 + 18 * 5 * 20 + H * 22 + 14 * 5 * 22 + 50 * H
GLM_LAYER_MATRICES = GLM_MATRICES + 6 * H + (1 + 2) * EXPERT
"""The router, the shared expert, and the two of six that a token goes through."""
GLM_OF_KEY = 2 * 5 * (22 + 14)
"""Latent and rotated key, 14 + 8, and the latent again as the value."""


@pytest.mark.parametrize("num_slots", [1, 3])
def test_of_experts_those_count_that_a_token_goes_through(num_slots):
    """One dense layer and two with experts; whatever the number of tokens, unlike the bytes."""
    found = operations("mtp", num_slots=num_slots, target=TargetModel(random_glm(), word_tokenizer()))
    read, head = num_slots * 3, GLM_LAYER_MATRICES + 2 * H * H
    assert found == dict(
        num_target_linear=2 * read * (GLM_MATRICES + 3 * H * 40 + 2 * GLM_LAYER_MATRICES + OUTPUT),
        num_target_attention=num_slots * 3 * KEYS_OF_ROUND * GLM_OF_KEY,
        num_draft_linear=2 * num_slots * head,
        num_draft_output=2 * num_slots * NUM_TOKENS * OUTPUT,
        num_draft_attention=num_slots * 10 * GLM_OF_KEY,
        num_extend_linear=2 * read * head,
        num_extend_attention=num_slots * KEYS_OF_ROUND * GLM_OF_KEY,
    )


def multiplied(work: Callable[[], object]) -> int:
    """Operations of the products with weights that torch is asked for; those of attention have batches."""
    with FlopCounterMode(display=False) as counter:
        work()
    counts = counter.get_flop_counts().get("Global", {})
    return sum(counts.get(operation, 0) for operation in (torch.ops.aten.mm, torch.ops.aten.addmm))


@pytest.mark.parametrize("kind", KINDS)
def test_torch_multiplies_as_much_with_weights_in_a_round(kind):
    """Would catch a pass, an output matrix or a token that is counted twice or left out."""
    step = tiny_engine(kind, num_speculative_tokens=3).step
    inputs = prefill_slots(step, tiny_requests(NUM_SLOTS, LENGTH - 1))
    found = round_cost(step, NUM_SLOTS, LENGTH)
    with torch.inference_mode():
        assert multiplied(lambda: step.draft(inputs)) == found.draft.num_linear + found.draft.num_output
        drafted = step.draft(inputs)
        assert multiplied(lambda: step.score(inputs, drafted)) == found.target.num_linear + found.target.num_output
        scored = step.score(inputs, drafted)
        verified = step.verify(inputs, drafted, scored)
        assert multiplied(lambda: step.extend(inputs, scored, verified)) == found.extend.num_linear


class SecondLong:
    """Every piece of work takes a second."""

    def time(self, work, in_graph=True):
        work()
        return Timing(1e6, 1e6, 1e6, 1e6, 2, False)


def test_a_product_and_a_sum_are_two_operations_and_rates_are_per_second():
    cpu = torch.device("cpu")
    found = matrix_rates(SecondLong(), cpu, torch.bfloat16)
    assert list(found.values()) == [2 * rows * inner * columns for rows, inner, columns in CPU_SIZES]
    assert all(rate > 0 for rate in matrix_rates(WallClock(2), cpu, torch.float32).values())
