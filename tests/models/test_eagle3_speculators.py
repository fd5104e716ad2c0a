"""EAGLE-3 heads compute what the package `speculators` computed.

Recorded by tests/support/record_eagle3_speculators.py.
"""

from __future__ import annotations

import pytest
import torch

from harness.models.eagle3 import load_eagle3
from harness.models.target import TargetModel, TargetOutput
from tests.support.recorded_speculators import RecordedSpeculators
from tests.support.tiny_models import positions_from, random_causal_lm, word_tokenizer

RECORDED = RecordedSpeculators("eagle3")
VOCAB_SIZE, HIDDEN_SIZE, NUM_AUX, NUM_STEPS = 56, 32, 3, 4

# Another order of summation, in the last of four chained steps of about ten sums each, of up to 96 terms:
# 40 x sqrt(96) x 2^-24 = 2.3e-5 of the terms, which come to a few units. A norm left out changes the first digit.
TOLERANCE = {"rtol": 1e-5, "atol": 3e-5}


@pytest.fixture(scope="module")
def runs():
    return RECORDED.runs()


@pytest.fixture(scope="module")
def target(runs):
    """Of the recorded target only the embedding matters: the states of its layers are recorded, too."""
    causal_lm = random_causal_lm(vocab_size=VOCAB_SIZE, hidden_size=HIDDEN_SIZE, num_attention_heads=4)
    causal_lm.model.embed_tokens.weight.data.copy_(runs["target_embedding"])
    return TargetModel(causal_lm, word_tokenizer(VOCAB_SIZE), name="recorded")


def chained(head, runs):
    """Features entering each step [N, T, H] and logits [N, T, V_draft], every chain in a slot of its own.

    Slot t holds all pairs; its chain goes on at position t + 1, over the pairs that the slot holds from there.
    """
    states = runs["aux_states"][None]
    features = head.features(TargetOutput(states[..., :0], states.chunk(NUM_AUX, dim=-1)))[:, :-1]
    num_pairs = features.shape[1]
    cache, slots = head.new_cache(num_pairs, num_pairs + NUM_STEPS), slice(0, num_pairs)
    positions = positions_from([0] * num_pairs, num_pairs)
    view = cache.view(slots, positions, num_pairs)
    each = torch.arange(num_pairs)
    output = head(runs["token_ids"][1:].expand(num_pairs, -1), features.expand(num_pairs, -1, -1), positions, view)
    entering, logits = [features[0]], [head.logits(output.hidden)[each, each]]
    following = output.next_features[each, each]
    for step in range(1, NUM_STEPS):
        entering.append(following)
        positions = each[:, None] + step
        view = cache.view(slots, positions, num_pairs + step)
        output = head(runs["step_ids"][step][:, None], following[:, None], positions, view)
        following = output.next_features[:, 0]
        logits.append(head.logits(output.hidden)[:, 0])
    return torch.stack(entering), torch.stack(logits)


@pytest.mark.parametrize("name", RECORDED.cases)
@torch.inference_mode()
def test_a_sequence_and_chains_from_each_of_its_pairs_equal_the_recorded(name, tmp_path, target, runs):
    case = RECORDED.cases[name]
    head = RECORDED.load(name, tmp_path, target, load_eagle3)
    features, logits = chained(head, runs)
    torch.testing.assert_close(features, runs["features"][case["row"]], **TOLERANCE)
    torch.testing.assert_close(logits, runs["logits"][case["row"]], **TOLERANCE)
    assert head.aux_layers == tuple(case["aux_layers"])


def test_the_recorded_cases_differ_from_each_other(runs):
    """Each field of a case reaches its outputs: otherwise a head that ignored the field would pass."""
    rows = {name: runs["logits"][case["row"]] for name, case in RECORDED.cases.items() if name != "default layers"}
    for name, logits in rows.items():
        others = [other for other in rows if other != name]
        assert all((logits - rows[other]).abs().max() > 0.1 for other in others), name
