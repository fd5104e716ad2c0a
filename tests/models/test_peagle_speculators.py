"""P-EAGLE heads compute what the package `speculators` computed.

Recorded by tests/support/record_peagle_speculators.py.
"""

from __future__ import annotations

import pytest
import torch

from harness.models.peagle import load_peagle
from harness.models.target import TargetModel, TargetOutput
from tests.support.recorded_speculators import RecordedSpeculators
from tests.support.tiny_models import TOLERANCE, positions_from, random_causal_lm, word_tokenizer

RECORDED = RecordedSpeculators("peagle")
VOCAB_SIZE, HIDDEN_SIZE = 24, 16


@pytest.fixture(scope="module")
def runs():
    return RECORDED.runs()


@pytest.fixture(scope="module")
def target():
    """Of the recorded target only sizes matter: the states of its layers are recorded, and the heads embed tokens."""
    causal_lm = random_causal_lm(vocab_size=VOCAB_SIZE, hidden_size=HIDDEN_SIZE, num_attention_heads=4)
    return TargetModel(causal_lm, word_tokenizer(VOCAB_SIZE), name="recorded")


def drafted(head, runs, first, num_masked):
    """[1 + M, V_draft] logits of a draft that begins at a pair, in one forward."""
    states = runs["aux_states"][None, : first + 1]
    features = head.features(TargetOutput(states[..., :0], states.chunk(3, dim=-1)))
    tokens = torch.cat((runs["token_ids"][1 : first + 2], torch.full((num_masked,), head.config.mask_token_id)))[None]
    joined = torch.cat((features, head.mask_features().expand(1, num_masked, -1)), dim=1)
    hidden = head(tokens, joined, positions_from([0], first + 1 + num_masked), None).hidden
    return head.logits(hidden[0, first:])


@pytest.mark.parametrize("name", RECORDED.cases)
@torch.inference_mode()
def test_drafts_from_each_pair_equal_the_recorded(name, tmp_path, target, runs):
    """Would catch another position, feature, norm or mask of a masked pair than heads are trained with."""
    head, anchors, depths = RECORDED.load(name, tmp_path, target, load_peagle), runs["anchors"], runs["depths"]
    found = torch.empty_like(runs["logits"][0])
    for first in anchors.unique().tolist():
        of_draft = anchors == first
        found[of_draft] = drafted(head, runs, first, int(depths[of_draft].max()))
    torch.testing.assert_close(found, runs["logits"][RECORDED.cases[name]["row"]], **TOLERANCE)
    assert head.assumptions == ()


def test_the_recorded_cases_differ_from_each_other(runs):
    """Each field of a case reaches its outputs: otherwise a head that ignored the field would pass."""
    rows = runs["logits"]
    assert all((rows[one] - rows[other]).abs().max() > 0.1 for one in range(len(rows)) for other in range(one))
