"""A draft model with the target's tokenizer and another number of rows: lossless, and the tokens of the baseline."""

from __future__ import annotations

import itertools
from shutil import copytree

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer

from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.sampling import SamplingSettings
from harness.config.sections import DecodingConfig
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.registry import load_head
from harness.models.assumptions import assumed_of_cell
from harness.models.check_model_configs import check_model_configs
from harness.models.target import TargetModel
from harness.models.zoo import zoo_path
from harness.workload.conversations import Conversation
from harness.workload.prompt import Prompt
from kernels.contract import DraftSampling, VerificationMethod
from tests.support.tiny_engines import engine_over
from tests.support.tiny_models import edit_config, edit_weights, random_causal_lm, save_target_folder, word_tokenizer
from tests.support.toy_markov import fits, outputs, toy_requests

VOCAB_SIZE, NUM_TOKENS, PROMPT = 5, 3, (0, 1)
NUM_REQUESTS = 6000
FALSE_ALARM = 1e-6
"""Every seed is fixed, so a pass stays a pass."""
TEMPERATURE = 0.3
"""Sharp rows, on which draft and target differ."""


@pytest.fixture(scope="module")
def target():
    causal_lm = random_causal_lm(seed=1, num_hidden_layers=1, vocab_size=VOCAB_SIZE)
    return TargetModel(causal_lm, word_tokenizer(VOCAB_SIZE))


def exact_law(target: TargetModel) -> dict[tuple[int, ...], float]:
    """Probability of every continuation of the prompt."""
    paths = list(itertools.product(range(VOCAB_SIZE), repeat=NUM_TOKENS))
    tokens = torch.tensor([PROMPT + path for path in paths])
    positions = torch.arange(tokens.shape[1]).expand(len(tokens), -1)
    rows = target.logits(target.forward(tokens, positions, None).hidden)[:, len(PROMPT) - 1 : -1]
    chosen = (rows.double() / TEMPERATURE).softmax(-1).gather(2, tokens[:, len(PROMPT) :, None])
    return dict(zip(paths, chosen.squeeze(2).prod(dim=1).tolist(), strict=True))


@pytest.mark.parametrize(
    ("num_rows", "method", "sampling"),
    [
        (8, VerificationMethod.block, DraftSampling.sampled),
        (8, VerificationMethod.coupled, DraftSampling.coupled),
        (4, VerificationMethod.probabilistic, DraftSampling.sampled),
        (4, VerificationMethod.strict, DraftSampling.sampled),
    ],
    ids=lambda item: getattr(item, "value", item),
)
def test_the_law_is_the_targets_whatever_rows_the_draft_model_has(tmp_path, target, num_rows, method, sampling):
    """Would catch drafts from padding, a law that keeps its share, and a residual that misses the ids of the target
    alone."""
    causal_lm = random_causal_lm(seed=5, num_hidden_layers=1, vocab_size=num_rows)
    save_target_folder(tmp_path, causal_lm, word_tokenizer(VOCAB_SIZE))
    loaded = load_head(drafter_of(DrafterKind.draft_model, path=str(tmp_path)), target)
    shape = DrafterShape(1000, 12, 2, VOCAB_SIZE)
    drafter = DraftModelDrafter(loaded.head, sampling, shape)
    engine = engine_over(target, drafter, shape, NUM_TOKENS, method=method, sampling=SamplingSettings(TEMPERATURE))
    found = outputs(engine, toy_requests(NUM_REQUESTS, prompt=PROMPT))
    assert fits(found.values(), exact_law(target)) > FALSE_ALARM


def zoo_folder(folder, num_rows):
    """A copy of the zoo's draft model with another number of rows; with more, its tokenizer has a token more."""
    copytree(zoo_path("draft_model"), folder)
    embedding = load_file(folder / "model.safetensors")["model.embed_tokens.weight"]
    beyond = torch.full((max(num_rows - len(embedding), 0), embedding.shape[1]), 3.0, dtype=embedding.dtype)
    edit_weights(folder, put={"model.embed_tokens.weight": torch.cat((embedding, beyond))[:num_rows].contiguous()})
    edit_config(folder, vocab_size=num_rows)
    if len(beyond):
        tokenizer = AutoTokenizer.from_pretrained(folder)
        tokenizer.add_tokens(["<|more|>"])
        tokenizer.save_pretrained(folder)
    return folder


def test_greedy_tokens_and_acceptance_are_those_without_padding(tmp_path):
    """Would catch a refusal, drafts that the padding changes, and ids that are missing in silence."""
    folders = [None, *(zoo_folder(tmp_path / str(number), number) for number in (6272, 6080))]
    drafters = [drafter_of(DrafterKind.draft_model, path=folder and str(folder)) for folder in folders]
    store, found = ModelStore(), []
    prompts = [Conversation(Prompt(str(row), "test", (text,)), 0, 7) for row, text in enumerate(("A colour?", "And?"))]
    for drafter in (drafter_of("none"), *drafters):
        cell = CellConfig(
            drafter=drafter,
            decoding=DecodingConfig(temperature=0.0, max_new_tokens=16, ignore_eos=True),
            backend=Local(device="cpu", dtype="float32", max_concurrency=2),
        )
        check_model_configs([cell])
        backend = LocalBackend(cell, store)
        requests = backend.generate(prompts).requests
        accepted = [item.num_accepted_tokens for request in requests for item in request.rounds]
        found.append(([request.output_token_ids for request in requests], accepted, backend.facts().assumptions))
        # what is known before anything is loaded is what the loader says
        assert assumed_of_cell(cell) == backend.facts().assumptions
    (tokens, *_), own, wide, narrow = found
    assert own[0] == wide[0] == narrow[0] == tokens and own[1] == wide[1] == narrow[1] and sum(own[1]) > 10
    told = "it has 6272 rows for the target's 6144 token ids, and never drafts those beyond"
    assert own[2] == () and wide[2] == (f"drafter: {told}",)
    told = "it has 6080 of the target's 6144 token ids, and never drafts the others, and reads the others as 6079"
    assert narrow[2] == (f"drafter: {told}",)
