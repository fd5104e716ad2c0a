"""Drafters with a network propose in the engine what a slow computation over the whole sequence proposes.

A mistake in positions, pairs, rollback or rows would not change the output's law, only lower acceptance: no
losslessness test sees it, this one does.
"""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from harness.config.models import Anchor
from harness.config.sampling import SamplingSettings
from harness.drafters.block import BlockDrafter
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.medusa_run import MedusaDrafter
from harness.drafters.parallel import ParallelDrafter
from harness.engine.depth import DepthByBatch
from harness.models.checkpoint_kind import BLOCK_HEADS
from harness.models.medusa import MedusaConfig, MedusaHead
from harness.models.target import TargetModel
from kernels.contract import DraftSampling, VerificationMethod
from tests.support.plain_layers import block_states
from tests.support.tiny_engines import engine_over, prompts_of, requests_of
from tests.support.tiny_heads import make_head
from tests.support.tiny_models import randomize

VOCAB_SIZE, NUM_DRAFTS = 50, 3
FROM_ANCHOR = "dflash, drafts from the anchor on"
OF_TARGET = "eagle3, output matrix of the target"
DRAFTERS = {
    "draft_model": DraftModelDrafter,
    "medusa": MedusaDrafter,
    "peagle": ParallelDrafter,
    "dflash": BlockDrafter,
    "dspark": BlockDrafter,
    "dflash2": BlockDrafter,
    FROM_ANCHOR: BlockDrafter,
}


def tiny_model(seed: int, num_layers: int = 3) -> TargetModel:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
        initializer_range=0.4,
    )
    tokenizer = SimpleNamespace(eos_token_id=None)
    return TargetModel(LlamaForCausalLM(config).eval().requires_grad_(False), tokenizer)


def drafting_model(kind: str, target: TargetModel):
    if kind == "draft_model":
        return tiny_model(seed=8, num_layers=1)
    if kind == "medusa":
        head = MedusaHead(MedusaConfig(NUM_DRAFTS, 1, VOCAB_SIZE), target)
        randomize(head, 5)
        return head
    reads_layers: dict[str, Any] = {} if kind in ("eagle", "mtp") else {"aux_layers": (0, 1, 2)}
    blocks = {"block_size": 4, "head_dim": 8} if kind in (*BLOCK_HEADS, FROM_ANCHOR) else {}
    if kind == OF_TARGET:
        reads_layers["own_output"] = False
    head = make_head(kind.split(",", maxsplit=1)[0], target, torch.arange(1, 41, 2), **reads_layers, **blocks)
    if kind == FROM_ANCHOR:
        head.config = replace(head.config, anchor=Anchor.first, block_size=NUM_DRAFTS)
    return head


def slow_proposal(kind: str, head, target: TargetModel, sequence: list[int], num_drafts: int = NUM_DRAFTS) -> list[int]:
    """Greedy drafts of NUM_DRAFTS or so many tokens, computed from the whole sequence without a cache."""
    tokens = torch.tensor([sequence])
    if kind == "draft_model":
        for _ in range(NUM_DRAFTS):
            positions = torch.arange(tokens.shape[1])[None]
            logits = head.logits(head.forward(tokens, positions, None).hidden[:, -1])
            tokens = torch.cat([tokens, logits.argmax(-1, keepdim=True)], dim=1)
        return tokens[0, len(sequence) :].tolist()
    positions = torch.arange(len(sequence) - 1)[None]
    if kind == "medusa":
        hidden = target.forward(tokens[:, :-1], positions, None).hidden[:, -1]
        return head.rows(hidden, num_drafts)[0].argmax(-1).tolist()
    if kind in (*BLOCK_HEADS, FROM_ANCHOR):
        states = target.forward(tokens[:, :-1], positions, None, head.aux_layers).aux
        # each place predicts its own token, or the one after it
        is_shifted = kind in (FROM_ANCHOR, "dspark")
        block = torch.tensor([sequence[-1], *[head.config.mask_token_id] * (num_drafts - is_shifted)])
        hidden = block_states(torch.cat(states, dim=-1)[0], block, head, target.embed_weight)[1 - is_shifted :]
        drafted, before = [], sequence[-1]
        for logits, state in zip(hidden @ head.output_matrix.T, hidden, strict=True):
            before = int(head.draft_to_target[corrected(logits, state, before, head).argmax()])
            drafted.append(before)
        return drafted
    features = head.features(target.forward(tokens[:, :-1], positions, None, head.aux_layers))
    if kind == "peagle":
        # each row for itself, from no more masked pairs than it needs
        drafted = []
        for num_masked in range(NUM_DRAFTS):
            masks = torch.full((1, num_masked), head.config.mask_token_id)
            joined = torch.cat([features, *[head.mask_features()] * num_masked], dim=1)
            places = torch.arange(joined.shape[1])[None]
            output = head(torch.cat([tokens[:, 1:], masks], dim=1), joined, places, None)
            drafted.append(int(head.draft_to_target[head.logits(output.hidden[0, -1]).argmax()]))
        return drafted
    for _ in range(NUM_DRAFTS):
        output = head(tokens[:, 1:], features, torch.arange(features.shape[1])[None], None)
        hidden = output.hidden[:, -1]
        logits = target.logits(hidden)[:, head.draft_to_target] if kind == OF_TARGET else head.logits(hidden)
        draft_id = logits.argmax(-1, keepdim=True)
        token = draft_id if head.draft_to_target is None else head.draft_to_target[draft_id]
        tokens = torch.cat([tokens, token], dim=1)
        features = torch.cat([features, output.next_features[:, -1:]], dim=1)
    return tokens[0, len(sequence) :].tolist()


def corrected(logits, state, before: int, head):
    """[V_draft] of one place, by the token before it, written out of the description of each format."""
    weights, kind = head.state_dict_public(), head.config.kind
    if kind == "dspark":
        token = weights["markov_head.markov_w1.weight"][before]
        gate = weights["markov_head.gate_proj.weight"] @ torch.cat((state, token))
        gate = (gate + weights["markov_head.gate_proj.bias"]).sigmoid()
        return logits + weights["markov_head.markov_w2.weight"] @ (gate * token)
    if kind == "dflash2":
        projected = weights["candidate_selector.hidden_projection.weight"] @ state
        context = projected * weights["candidate_selector.predecessor_codebook"][before]
        scores = logits + weights["candidate_selector.successor_codebook"] @ context
        best = logits.sort(descending=True).indices[: head.config.selector_top_k]
        return torch.full_like(logits, -torch.inf).index_copy(0, best, scores[best])
    return logits


@pytest.mark.parametrize("depths", [None, ((1, NUM_DRAFTS), (2, 0), (3, 1))], ids=["K", "by batch"])
@pytest.mark.parametrize(
    "kind", ["eagle", "eagle3", OF_TARGET, "mtp", "peagle", *BLOCK_HEADS, FROM_ANCHOR, "draft_model", "medusa"]
)
@torch.inference_mode()
def test_proposals_equal_the_slow_computation(kind, depths):
    """Ragged prompts, more requests than slots, sampled target tokens: rejections and rollback at every depth, and
    rounds without drafts between others."""
    target = tiny_model(seed=4)
    head = drafting_model(kind, target)
    shape = DrafterShape(3, 64, NUM_DRAFTS, VOCAB_SIZE)
    drafter = DRAFTERS.get(kind, ChainDrafter)(head, DraftSampling.greedy, shape)
    seen = []
    fast = drafter.propose

    def spy(batch):
        draft = fast(batch)
        for row, length in enumerate(batch.lengths.tolist()):
            # a row that idles has length 1; one that decodes has a prompt and a token after it
            if length > 1:
                seen.append((batch.token_ids[row, :length].tolist(), draft.token_ids[row].tolist()))
        return draft

    drafter.propose = spy
    lengths = (5, 1, 9, 3, 12)
    options = {"method": VerificationMethod.strict, "sampling": SamplingSettings(0.7)}
    engine = engine_over(target, drafter, shape, 12, depth=depths and DepthByBatch(depths), **options)
    run = engine.run(requests_of(prompts_of(lengths, VOCAB_SIZE), first_seed=70), lambda record: None)
    assert len(run.requests) == len(lengths) and len(seen) > 20
    assert len({len(sequence) for sequence, _ in seen}) > 8
    for sequence, proposed in seen:
        # fewer tokens are the first of NUM_DRAFTS, but of a block, which sees how many places it has
        expected = slow_proposal(kind, head, target, sequence, len(proposed))[: len(proposed)]
        assert proposed == expected, f"after {len(sequence)} tokens"
