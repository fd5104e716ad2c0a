"""A draft model of another tokenizer: which tokens it shares, what it reads and drafts, and the law of what comes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from harness.backends.local.local import LocalBackend
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import drafter_of
from harness.config.drafting import DraftingConfig, DraftSamplingChoice
from harness.config.identity import plain_values
from harness.config.models import TargetConfig
from harness.config.sections import DecodingConfig
from harness.config.workload import WorkloadConfig
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_model import Vocabulary
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.models.assumptions import assumed_of_vocabulary
from harness.models.cost import Cost
from harness.models.draft_model import load_draft_model
from harness.models.shared_tokens import SharedTokens, shared_tokens
from harness.records.parts import Part
from harness.records.schema import Block
from harness.runner.cell_record import record_of
from harness.workload.conversations import conversations, load_prompts
from kernels.contract import DraftSampling, Verification, VerificationMethod
from kernels.core import reference_core
from kernels.methods import TreeMethod
from kernels.reference.verify import verify
from tests.support.renumbered_model import renumbered
from tests.support.tiny_models import (
    VOCAB_SIZE,
    positions_from,
    random_causal_lm,
    random_target,
    save_target_folder,
    word_tokenizer,
)
from tests.support.toy_markov import ToyTarget, exact_law, fits, outputs, toy_engine, toy_requests, transitions


def test_tokens_are_one_if_they_stand_for_the_same_bytes():
    """Byte-level ids against SentencePiece's. Would catch marks of a space that are compared as letters, a piece for a
    byte that is taken for the letter itself, and a lacking token that is read as another one's beginning."""
    ours = {"Ġ": 0, "Ġthe": 1, "a": 2, "Ã©": 3, "Ġthis": 4, "xq": 5, "<|end|>": 6, "beyond": 7}
    theirs = {"<unk>": 0, "<0x61>": 1, "a": 2, "▁the": 3, "é": 4, "his": 5, "▁": 6, "s": 7, "the": 8, "beyond": 9}
    found = shared_tokens(ours, 7, theirs, 10, unknown=0)
    assert dict(zip(found.target_ids, found.draft_ids, strict=True)) == {0: 6, 1: 3, 2: 2, 3: 4}
    # " this" ends in "his", "xq" in nothing known
    assert found.read_as == (6, 3, 2, 4, 5, 0, 0)


def test_rows_beyond_either_embedding_are_left_out():
    found = shared_tokens({"a": 0, "b": 1, "c": 2}, 2, {"c": 0, "b": 1, "a": 3}, 3)
    assert (found.target_ids, found.draft_ids, found.read_as) == ((1,), (1,), (0, 1))
    with pytest.raises(ValueError, match="shares tokens with the target, found none of its 1 among the target's 1"):
        shared_tokens({"a": 0}, 1, {"b": 0}, 1)


OTHER = word_tokenizer(50, renamed={"w3": 12, "only": 4, "w12": 3, "another": 20})
"""Fifty tokens: two have changed places, and two that the target does not have took the ids of w4 and w20."""


@pytest.fixture
def folder(tmp_path):
    return save_target_folder(tmp_path, random_causal_lm(seed=7, num_hidden_layers=1, vocab_size=50), OTHER)


def test_rows_are_those_of_the_model_restricted_to_shared_tokens(folder):
    """And the mass is what they had. Would catch ids that are not translated on the way in or out."""
    target = random_target()
    model = load_draft_model(folder, target, shares_tokens=True)
    assert model.assumptions == (
        "it shares 48 of the target's 61 token ids, drafts no others of its 50, and reads the target's others as the "
        "longest of its tokens that end them",
    )
    drafter = DraftModelDrafter(model, DraftSampling.sampled, DrafterShape(2, 16, 2, VOCAB_SIZE))
    ids = torch.tensor([[3, 12, 4, 60, 8], [0, 20, 5, 7, 49]])
    positions = positions_from([0, 0], 5)
    hidden = drafter._forward(ids, positions, drafter._cache.view(torch.tensor([0, 1]), positions, 5))
    assert drafter.shared is not None
    found = drafter.shared.restricted(model.logits(hidden[:, -1]), torch.tensor([True, False]))
    # it has no token for what is unknown, and takes the one that ends a text
    read, own = torch.tensor([[12, 3, 5, 5, 8], [0, 5, 5, 7, 49]]), OTHER.get_vocab()
    shared = [number for number in range(61) if f"w{number}" in own]
    law = random_causal_lm(seed=7, num_hidden_layers=1, vocab_size=50)(read).logits[:, -1].softmax(-1)
    kept = law[:, [own[f"w{number}"] for number in shared]]
    torch.testing.assert_close(found.softmax(-1), kept / kept.sum(-1, keepdim=True), rtol=1e-4, atol=1e-6)
    assert drafter.shared.target_ids.tolist() == shared
    assert drafter.shared.mass.tolist() == pytest.approx([float(kept[0].sum()), 1], rel=1e-5)


class ToyDraft(ToyTarget):
    """A Markov draft model of five tokens of its own, of which three are among the target's four."""

    dtype = torch.float32
    shared_tokens = SharedTokens(target_ids=(0, 2, 3), draft_ids=(4, 1, 0), read_as=(4, 2, 1, 0))

    @property
    def cost(self) -> Cost:
        return Cost()


TARGET, DRAFT = transitions(4, seed=12), transitions(5, seed=19)
NUM_TOKENS = 4


def p_value(method, sampling, core=None):
    sizes = {"num_speculative_tokens": 3, "max_new_tokens": NUM_TOKENS, "num_slots": 500}
    drafter = DraftModelDrafter(ToyDraft(DRAFT), sampling, DrafterShape(500, 20, 3, 4))
    engine = toy_engine(TARGET, DRAFT, method, sampling, drafter=drafter, core=core, **sizes)
    found = outputs(engine, toy_requests(6000, prompt=(1, 0)))
    share = drafter.shared.mass[0] / drafter.shared.mass[1]
    assert 0.2 < share < 0.9, "the other tokens matter"
    return fits(found.values(), exact_law(TARGET, NUM_TOKENS))


@pytest.mark.parametrize(
    ("method", "sampling"),
    [
        (VerificationMethod.coupled, DraftSampling.coupled),
        (VerificationMethod.probabilistic, DraftSampling.sampled),
        (VerificationMethod.block, DraftSampling.sampled),
    ],
    ids=lambda item: item.value,
)
def test_law_of_the_first_tokens_is_the_targets(method, sampling):
    assert p_value(method, sampling) > 1e-6


def test_the_same_statistic_rejects_drafts_that_are_verified_by_the_whole_law():
    """Rows in which tokens that are not shared keep their probability, as much as all others have."""

    def verify_by_whole_law(target_logits, draft, *others, mask):
        if draft.logits is None:
            return verify(target_logits, draft, *others, mask=mask)
        rest = draft.logits.logsumexp(-1, keepdim=True)
        ids = torch.cat([draft.draft_to_target, torch.tensor([1])])
        whole = replace(draft, logits=torch.cat([draft.logits, rest], -1), draft_to_target=ids, row_stats=None)
        return verify(target_logits, whole, *others, mask=mask)

    core = replace(reference_core(), verify=verify_by_whole_law)
    assert p_value(VerificationMethod.probabilistic, DraftSampling.sampled, core) < 1e-6


def cell(
    drafting=DraftSamplingChoice.greedy, method=VerificationMethod.probabilistic, tree=None, top_k=None, **drafter
):
    return CellConfig(
        drafter=drafter_of("draft_model", **drafter),
        drafting=DraftingConfig(3, sampling=drafting, tree=tree),
        decoding=DecodingConfig(temperature=1.0 if top_k else 0.0, top_k=top_k or 0, max_new_tokens=16),
        verification=Verification(method),
        workload=WorkloadConfig(num_prompts=3),
        backend=Local(device="cpu", dtype="float32", max_concurrency=3),
    )


def run(config):
    backend = LocalBackend(config)
    played = conversations(load_prompts(config.workload, config.seed), config.workload, config.seed)
    requests = backend.generate(played).requests
    found = {item.prompt_id: (item.output_token_ids, [r.num_accepted_tokens for r in item.rounds]) for item in requests}
    return found, backend.facts()


@pytest.mark.parametrize(
    ("tree", "method"), [(None, VerificationMethod.probabilistic), ("2-2", TreeMethod.recursive)], ids=["chain", "tree"]
)
def test_other_ids_of_the_same_tokens_draft_the_same(tree, method, tmp_path):
    """Would catch a place, a prompt or a node that is read or drafted by the wrong ids."""
    shared = cell(tree=tree, method=method, path=str(renumbered(tmp_path)), vocabulary=Vocabulary.shared)
    found, facts = run(shared)
    assert found == run(cell(tree=tree, method=method))[0]
    assert facts.shared_mass == pytest.approx(1.0, abs=1e-5)
    assert any("shares 6144 of the target's 6144" in text for text in facts.assumptions)


def test_lacking_tokens_lower_acceptance_and_the_mass_that_the_record_tells(tmp_path):
    given = {"path": str(renumbered(tmp_path, num_lacking=5900)), "vocabulary": Vocabulary.shared}
    (found, facts), (whole, others) = run(cell(**given)), run(cell())
    (told,) = assumed_of_vocabulary(TargetConfig(), cell(**given).drafter)
    assert f"drafter: {told}" in facts.assumptions
    assert {key: tokens for key, (tokens, _) in found.items()} == {key: tokens for key, (tokens, _) in whole.items()}
    accepted = [sum(sum(counts) for _, counts in each.values()) for each in (found, whole)]
    assert accepted[0] < accepted[1] and 0.1 < facts.shared_mass < 0.95 and others.shared_mass is None


def test_the_mass_of_a_cell_that_was_stopped_is_that_of_all_its_sessions(tmp_path):
    """Would catch the mean of the last session alone, of the rows of its last block, and sessions that count alike."""
    config = cell(path=str(renumbered(tmp_path, num_lacking=5900)), vocabulary=Vocabulary.shared)
    facts = plain_values(run(config)[1])
    assert facts["num_shared_rows"] > 0
    told = [("first", 0.1, 50), ("first", 0.2, 100), ("second", 0.8, 300)]
    parts = [
        Part(
            block=Block(index, session, 0, 1e9 + index, 1e9 + index + 1, 0, 0, 0.5),
            is_whole=True,
            played=(),
            clock_s=1.0,
            provenance={},
            facts=facts | {"shared_mass": mass, "num_shared_rows": num_rows},
        )
        for index, (session, mass, num_rows) in enumerate(told)
    ]
    assert record_of(config, parts, "", ()).shared_mass == pytest.approx((0.2 * 100 + 0.8 * 300) / 400)


def test_the_mass_is_that_of_nodes_that_are_there(tmp_path):
    """Where one token is left of each law the second siblings are none. Would catch rows behind these that count."""
    given = {"path": str(renumbered(tmp_path, num_lacking=5900)), "vocabulary": Vocabulary.shared}
    runs = [
        run(cell(DraftSamplingChoice.sampled, TreeMethod.recursive, tree, top_k=1, **given)) for tree in ("2-2", "1-1")
    ]
    assert runs[0][0] == runs[1][0]
    assert runs[0][1].shared_mass == pytest.approx(runs[1][1].shared_mass, rel=1e-5)


def test_what_a_user_is_told(tmp_path):
    """The same ids mean something else: refused with what to do; without tokenizers there is nothing to share."""
    path = str(renumbered(tmp_path))
    with pytest.raises(ValueError, match=r"draft the tokens that both have by drafter\.vocabulary=shared"):
        LocalBackend(cell(path=path))
    with pytest.raises(ValueError, match=r"drafter\.vocabulary=shared compares the tokenizers of two checkpoints"):
        cell(vocabulary=Vocabulary.shared)
    for file in tmp_path.glob("*token*"):
        file.unlink()
    with pytest.raises(ValueError, match=r"expected a tokenizer of both models, .*found none of "):
        LocalBackend(cell(path=path, vocabulary=Vocabulary.shared))
