"""Families of transformers through the general path: greedy tokens are those of `generate`, whatever drafts."""

from __future__ import annotations

from functools import cache

import pytest
import torch

from harness.config.models import HeadChoices, Layers
from harness.config.sampling import SamplingSettings
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.ngram_run import NgramDrafter
from harness.engine.engine import Engine
from harness.engine.request import Limits, Request
from harness.engine.settings import EngineSettings
from harness.models.checkpoint import CheckpointError
from harness.models.general.target import GeneralTarget
from harness.models.random_head import random_eagle3
from harness.models.target import load_target
from kernels.contract import DraftSampling, Verification, VerificationMethod
from tests.support.any_models import FAMILIES, NO_TOKENIZER, SILENTLY_WRONG, VOCAB_SIZE, disturbed, tiny_model

NUM_DRAFTED, NUM_NEW, CAPACITY = 3, 8, 40
WITHOUT_HEADS = ("gemma3n_text", "glm4_moe_lite")
"""No head reads the states between the layers of the first, several side by side; random ones for GLM are refused."""


READS_ALL = HeadChoices(aux_layers=(0, 1, 2))
"""What enters both layers, and what leaves the last."""


@cache
def prompts() -> list[list[int]]:
    """Three for two slots, one of them longer than a window."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in (3, 13, 5)]


def generated(causal_lm) -> list[list[int]]:
    """Tokens of transformers, one sequence after the other."""
    found = []
    for prompt in prompts():
        given = torch.tensor([prompt])
        length = {"max_new_tokens": NUM_NEW, "min_new_tokens": NUM_NEW}
        tokens = causal_lm.generate(given, attention_mask=torch.ones_like(given), do_sample=False, **length)
        found.append(tokens[0, len(prompt) :].tolist())
    return found


def run(target, drafter, graphs):
    settings = EngineSettings(
        num_slots=2,
        capacity=CAPACITY,
        num_speculative_tokens=NUM_DRAFTED,
        sampling=SamplingSettings(temperature=0.0),
        verification=Verification(VerificationMethod.probabilistic),
        limits=Limits(NUM_NEW, frozenset()),
        graphs=graphs,
    )
    requests = [Request(str(number), "toy", 0, 0, 1, tuple(prompt)) for number, prompt in enumerate(prompts())]
    found = Engine(target, drafter, settings).run(requests, lambda record: None)
    assert found.num_invalid == 0
    return sorted(found.requests, key=lambda record: int(record.prompt_id))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_greedy_tokens_are_those_of_generate(model_type, tmp_path):
    """Slots are used again, prompts of different lengths are read together, drafts are rejected: a key, a window or a
    state that belongs to another token shows."""
    causal_lm = tiny_model(model_type)
    wanted = generated(causal_lm)
    causal_lm.save_pretrained(tmp_path)
    target = load_target(tmp_path, tokenizer=NO_TOKENIZER, layers=Layers.transformers)
    assert isinstance(target, GeneralTarget)
    weights = disturbed(causal_lm)
    causal_lm.load_state_dict(weights)
    shape = DrafterShape(2, CAPACITY, NUM_DRAFTED, VOCAB_SIZE)
    drafters = {
        "ngram": (NgramDrafter(3, 1), False),
        "draft_model": (DraftModelDrafter(GeneralTarget(causal_lm, None), DraftSampling.sampled, shape), False),
    }
    if model_type not in WITHOUT_HEADS:
        head = random_eagle3(target, choices=READS_ALL)
        drafters["eagle3"] = (ChainDrafter(head, DraftSampling.sampled, shape), True)
    for name, (drafter, graphs) in drafters.items():
        records = run(target, drafter, graphs)
        assert [list(record.output_token_ids) for record in records] == wanted, name
        if name == "draft_model":
            rounds = [item for record in records for item in record.rounds if item.num_draft_tokens]
            accepted = sum(item.num_accepted_tokens for item in rounds)
            assert 0 < accepted < sum(item.num_draft_tokens for item in rounds)


def test_code_that_fails_over_slots_is_refused_by_name(tmp_path):
    """minimax wants a cache of its own."""
    tiny_model("minimax").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="found MiniMaxForCausalLM to fail in a forward of a few tokens: "):
        load_target(tmp_path, tokenizer=NO_TOKENIZER)


@pytest.mark.parametrize("model_type", SILENTLY_WRONG)
def test_the_probe_refuses_what_is_wrong_over_slots(model_type, tmp_path):
    """Would catch a family whose tokens are wrong without any error."""
    tiny_model(model_type).save_pretrained(tmp_path)
    wanted = r"found them to differ by [\d.]+ of the largest .*this architecture does not run here"
    with pytest.raises(CheckpointError, match=wanted):
        load_target(tmp_path, tokenizer=NO_TOKENIZER)
