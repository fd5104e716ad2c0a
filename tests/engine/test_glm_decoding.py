"""Decoding with a tiny GLM: the engine's greedy tokens are those that transformers' own forward gives one by one."""

from __future__ import annotations

import pytest
import torch

from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.drafters.chain import DrafterShape
from harness.drafters.registry import build_drafter, load_head
from harness.models.target import load_target
from tests.support.tiny_engines import engine_over, requests_of
from tests.support.tiny_glm import MTP_PREFIX, mtp_tensors, random_glm, save_glm_folder
from tests.support.tiny_models import VOCAB_SIZE, random_tokens

PROMPT_LENGTHS = (3, 19, 5, 1, 7)
NUM_NEW, NUM_DRAFTED, CAPACITY = 14, 3, 49
CALM = 0.05


def calmed(tensors):
    """Weights whose layers add little to the residual stream: the next token mostly follows from the last one."""
    return {name: tensor * CALM if "down_proj" in name or "o_proj" in name else tensor for name, tensor in tensors}


def calm_glm():
    """A target that a drafter can be right about, though not always."""
    causal_lm = random_glm()
    causal_lm.load_state_dict(calmed(causal_lm.state_dict().items()))
    return causal_lm


def knowing_mtp(causal_lm):
    """An MTP layer that guesses from the last token alone."""
    tensors = mtp_tensors(causal_lm.config)
    size = causal_lm.config.hidden_size
    tensors[f"{MTP_PREFIX}enorm.weight"] = torch.ones(size)
    tensors[f"{MTP_PREFIX}eh_proj.weight"] = torch.eye(size, 2 * size)
    tensors[f"{MTP_PREFIX}embed_tokens.weight"] = causal_lm.model.embed_tokens.weight
    tensors[f"{MTP_PREFIX}shared_head.norm.weight"] = causal_lm.model.norm.weight
    tensors[f"{MTP_PREFIX}shared_head.head.weight"] = causal_lm.lm_head.weight
    return calmed(tensors.items())


@pytest.fixture(scope="module")
def causal_lm():
    return calm_glm()


@pytest.fixture(scope="module", params=[False, True], ids=["as transformers has it", "fused"])
def target(request, causal_lm, tmp_path_factory):
    loaded = load_target(save_glm_folder(tmp_path_factory.mktemp("glm"), causal_lm, knowing_mtp(causal_lm)))
    if request.param:
        assert loaded.fuse() is None
    return loaded


@pytest.fixture(scope="module")
def prompts():
    return {str(row): random_tokens(1, length, seed=row)[0].tolist() for row, length in enumerate(PROMPT_LENGTHS)}


def engine(target, num_tokens, graphs):
    kind = DrafterKind.mtp if num_tokens else DrafterKind.none
    cell = CellConfig(drafter=drafter_of(kind), drafting=DraftingConfig(NUM_DRAFTED))
    shape = DrafterShape(2, CAPACITY, num_tokens, VOCAB_SIZE)
    head = load_head(cell.drafter, target)
    if target.is_fused and head is not None:
        assert head.module.fuse() is None
    drafter = build_drafter(cell, target, head, shape)
    return engine_over(target, drafter, shape, NUM_NEW, graphs=graphs)


@pytest.mark.parametrize("num_tokens", [0, NUM_DRAFTED], ids=["without drafts", "with the MTP layer"])
@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of fixed sizes"])
def test_greedy_tokens_are_those_of_transformers(target, causal_lm, prompts, num_tokens, graphs):
    """Two slots for five requests: slots are used again, rejected drafts are rolled back."""
    run = engine(target, num_tokens, graphs).run(requests_of(prompts.values()), lambda record: None)
    for record in run.requests:
        sequence = list(prompts[record.prompt_id])
        for _ in range(NUM_NEW):
            sequence.append(int(causal_lm(torch.tensor([sequence])).logits[0, -1].argmax()))
        assert list(record.output_token_ids) == sequence[-NUM_NEW:]
    assert run.num_invalid == 0
    rounds = [item for record in run.requests for item in record.rounds if item.num_draft_tokens]
    accepted = sum(item.num_accepted_tokens for item in rounds)
    # both what follows an accepted draft and what follows a rejected one is exercised
    assert not num_tokens or len(rounds) < accepted < NUM_DRAFTED * len(rounds)
