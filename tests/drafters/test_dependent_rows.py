"""Blocks whose rows depend on the token before, in the engine: the law of what comes out on a toy pair."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from harness.drafters.block import BlockDrafter
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_logits import Caching, DraftLogits
from harness.models.candidate_rows import CandidateSelector, SelectorRows
from harness.models.confidence_head import ConfidenceHead, PredictedConfidence
from harness.models.cost import Cost
from harness.models.markov_rows import MarkovHead, MarkovRows
from harness.models.slot_cache import SlotCache
from kernels.contract import DraftSampling, VerificationMethod
from kernels.core import reference_core
from tests.support.tiny_models import randomize
from tests.support.toy_markov import exact_law, fits, outputs, toy_engine, toy_requests, transitions

TARGET, DRAFT = transitions(3, seed=12), transitions(3, seed=19)
NUM_TOKENS, NUM_SLOTS, NUM_DRAFTS, HIDDEN_SIZE = 4, 800, 3, 5


class ToyBlocks:
    """A place's state follows from its position, its logits from the last known token too; rows as heads make them."""

    config = SimpleNamespace(
        most_drafts=NUM_DRAFTS, block_size=NUM_DRAFTS, mask_token_id=0, num_places=lambda count: count
    )
    name, aux_layers, num_parameters, vocab_size, draft_to_target = "toy", (), 0, 3, None

    def __init__(self, head_type, *, predicts=False):
        sizes = {"hidden_size": HIDDEN_SIZE, "vocab_size": 3, "draft_vocab_size": 3}
        if head_type == "candidates":
            self._module = CandidateSelector(top_k=2, rank=2, **sizes)
        else:
            self._module = MarkovHead(head_type, 2, **sizes)
        randomize(self._module, seed=7)
        self._module.requires_grad_(False)
        for parameter in self._module.parameters():
            parameter.mul_(5)
        self.confidence_head = None
        if predicts:
            self.confidence_head = ConfidenceHead(HIDDEN_SIZE + self._module.rank)
            randomize(self.confidence_head, seed=9)
            # the token before decides more than the place
            self.confidence_head.requires_grad_(False).proj.weight[:, HIDDEN_SIZE:].mul_(20)
        self._states = torch.randn(64, HIDDEN_SIZE, generator=torch.Generator().manual_seed(8))

    def new_cache(self, num_slots, capacity):
        return SlotCache(1, num_slots, capacity, 1, 1, torch.float32, torch.device("cpu"))

    def features(self, output):
        return output.hidden

    def read(self, features, positions, view):
        """The last known token is in every block."""

    def fill_block(self, token_ids, positions, view):
        self._logits = DRAFT.log()[token_ids[:, :1]].expand(-1, positions.shape[1], -1)
        return self._states[positions]

    def rows(self, hidden):
        kind = SelectorRows if isinstance(self._module, CandidateSelector) else MarkovRows
        return kind(self._logits, hidden, self._module)

    def confidence(self, hidden):
        if self.confidence_head is None:
            return None
        return PredictedConfidence(hidden, self.confidence_head, self._module.markov_w1.weight, multiplies=True)

    def rows_cost(self, num_slots, num_tokens):
        return Cost()


def p_value(head_type, method, sampling, core=None, graphs=False, least=0.0):
    head, shape = ToyBlocks(head_type, predicts=least > 0), DrafterShape(NUM_SLOTS, 40, NUM_DRAFTS, 3)
    drafter = BlockDrafter(head, sampling, shape, Caching(min_confidence=least))
    sizes = {"num_speculative_tokens": NUM_DRAFTS, "max_new_tokens": NUM_TOKENS, "num_slots": NUM_SLOTS}
    engine = toy_engine(TARGET, DRAFT, method, sampling, drafter=drafter, core=core, graphs=graphs, **sizes)
    return fits(outputs(engine, toy_requests(5000)).values(), exact_law(TARGET, NUM_TOKENS))


PROBABILISTIC, SAMPLED = VerificationMethod.probabilistic, DraftSampling.sampled
LEAST = 0.6
"""Confidence below which drafts end; about half of the predictions are."""


@pytest.mark.parametrize(
    ("head_type", "method", "sampling", "graphs"),
    [
        *((head_type, PROBABILISTIC, SAMPLED, True) for head_type in ("vanilla", "gated", "rnn", "candidates")),
        *((head_type, VerificationMethod.block, SAMPLED, False) for head_type in ("rnn", "candidates")),
        ("candidates", VerificationMethod.coupled, DraftSampling.coupled, False),
    ],
    ids=lambda item: getattr(item, "value", item),
)
def test_law_is_the_targets(head_type, method, sampling, graphs):
    """Would catch rows that are kept before the token that they depend on is known."""
    assert p_value(head_type, method, sampling, graphs=graphs) > 1e-6


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of one size"])
def test_drafts_that_end_by_a_confidence_head_follow_the_targets_law(graphs, monkeypatch):
    """Would catch drafts that end in front of another place than the head predicts, and rows that decide instead."""
    kept, seen, at, draft = [], set(), PredictedConfidence.at, DraftLogits.draft

    def remembered(self, step, previous):
        kept[step:] = [at(self, step, previous)]
        return kept[step]

    def compared(self, *others):
        found, is_sure = draft(self, *others), torch.stack(kept, dim=1) >= LEAST
        assert torch.equal(found.num_draft_tokens, is_sure.long().cumprod(dim=1).sum(dim=1))
        seen.update(found.num_draft_tokens.tolist())
        return found

    monkeypatch.setattr(PredictedConfidence, "at", remembered)
    monkeypatch.setattr(DraftLogits, "draft", compared)
    assert p_value("vanilla", PROBABILISTIC, SAMPLED, graphs=graphs, least=LEAST) > 1e-6
    assert len(seen) > 2


def test_predictions_behind_the_drafted_token_are_rejected(monkeypatch):
    """Would catch a head that is asked with the draft token itself, whose drafts no longer follow their rows."""
    kept, at, draw = [], PredictedConfidence.at, DraftLogits.draw

    def later(self, logits, batch, step, predicted=None):
        token_ids = draw(self, logits, batch, step, predicted)
        self._confidences[: batch.num_rows, step] = at(kept[-1], step, token_ids)
        return token_ids

    def remembered(self, step, previous):
        kept.append(self)
        return torch.ones(len(previous))

    monkeypatch.setattr(DraftLogits, "draw", later)
    monkeypatch.setattr(PredictedConfidence, "at", remembered)
    assert p_value("vanilla", PROBABILISTIC, SAMPLED, least=LEAST) < 1e-6


@pytest.mark.parametrize("head_type", ["vanilla", "candidates"])
def test_the_same_statistic_rejects_rows_of_another_token_before(head_type, monkeypatch):
    """Drafts drawn from rows of the token before, and verified by rows of the token 0."""
    kind, kept = (SelectorRows if head_type == "candidates" else MarkovRows), []
    row = kind.row

    def both(self, step, previous, out):
        kept.append(row(self, step, torch.zeros_like(previous), None).clone())
        return row(self, step, previous, out)

    core = reference_core()

    def verify(target_logits, draft, *others, mask):
        if draft.logits is not None:
            wrong = torch.stack(kept[-NUM_DRAFTS:], dim=1)[: len(draft.logits)]
            draft = replace(draft, logits=wrong, row_stats=None)
        return core.verify(target_logits, draft, *others, mask=mask)

    monkeypatch.setattr(kind, "row", both)
    assert p_value(head_type, PROBABILISTIC, SAMPLED, replace(core, verify=verify)) < 1e-6
