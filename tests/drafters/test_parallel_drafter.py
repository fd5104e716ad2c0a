"""Drafters of one forward a round: which rows see a draft token, tokens of the baseline, on kernels too."""

from dataclasses import replace

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.drafters.block import BlockDrafter
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.parallel import ParallelDrafter
from harness.engine.engine import Engine
from harness.models import layer_forward
from harness.models.fused import layer as fused_layer
from harness.models.fused.operations import named_operations
from kernels.contract import DraftSampling, Verification, VerificationMethod
from tests.support.tiny_engines import NUM_SLOTS, tiny_engine, tiny_head, tiny_requests
from tests.support.tiny_models import VOCAB_SIZE

NUM_DRAFTS = 4
PARALLEL = {"peagle": ParallelDrafter, "dflash": BlockDrafter}
DRAFTERS = PARALLEL | {"dspark": BlockDrafter, "dflash2": BlockDrafter}


def drawn_twice(make, draft_sampling, kind="peagle"):
    """[((tokens, rows), (tokens, rows))] of the requests of each round, drafted with two seeds from one state."""
    engine = tiny_engine(kind, num_speculative_tokens=NUM_DRAFTS)
    head, shape = engine.drafter.head, DrafterShape(NUM_SLOTS, 30, NUM_DRAFTS, VOCAB_SIZE)
    drafter = make(head, draft_sampling, shape)
    found, propose = [], drafter.propose

    def twice(batch):
        both = []
        for seeds in (batch.streams.seeds + 1000, batch.streams.seeds):
            draft = propose(replace(batch, streams=replace(batch.streams, seeds=seeds)))
            decodes = batch.lengths > 1
            both.append((draft.token_ids[decodes], draft.logits[decodes].clone()))
        found.append(tuple(both))
        return draft

    drafter.propose = twice
    method = VerificationMethod.coupled if draft_sampling is DraftSampling.coupled else VerificationMethod.probabilistic
    settings = replace(engine.settings, verification=Verification(method))
    Engine(engine.target, drafter, settings).run(tiny_requests(5, 6), lambda _: None)
    return found


@pytest.mark.parametrize("draft_sampling", [DraftSampling.sampled, DraftSampling.coupled])
@pytest.mark.parametrize("kind", PARALLEL)
def test_no_row_depends_on_a_draft_token(kind, draft_sampling):
    """Two draws from one state: other tokens at every place, the same rows, bit for bit. Would catch a head that is fed
    what it drafted, and a cache in which drafts of the last round are left."""
    rounds = drawn_twice(DRAFTERS[kind], draft_sampling, kind)
    tokens = [torch.cat([each[way][0] for each in rounds]) for way in (0, 1)]
    assert (tokens[0] != tokens[1]).any(dim=0).all() and len(rounds) > 10
    assert all(torch.equal(first, second) for (_, first), (_, second) in rounds)


@pytest.mark.parametrize(
    ("make", "kind"), [(ChainDrafter, "peagle"), (BlockDrafter, "dspark"), (BlockDrafter, "dflash2")]
)
def test_the_same_comparison_finds_rows_that_depend_on_drafts(make, kind):
    """A head run as a chain, and heads whose rows depend on the token before: the first one alone sees no draft."""
    rounds = drawn_twice(make, DraftSampling.sampled, kind)
    first, second = (torch.cat([each[way][1] for each in rounds]) for way in (0, 1))
    assert [bool((first[:, place] != second[:, place]).any()) for place in range(NUM_DRAFTS)] == [False, *[True] * 3]


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "steps of fixed sizes"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_tokens_are_the_baselines(drafter, graphs):
    def tokens(kind, **options):
        engine = tiny_engine(kind, sampling=SamplingSettings(0.0), graphs=graphs, **options)
        return {
            each.prompt_id: each.output_token_ids for each in engine.run(tiny_requests(5, 6), lambda _: None).requests
        }

    assert tokens(drafter, num_speculative_tokens=NUM_DRAFTS) == tokens("none")


@pytest.mark.parametrize("num_tokens", [1, 2, 5])
def test_a_round_is_one_forward_however_many_it_drafts(monkeypatch, num_tokens):
    """Beside the one that reads the known pairs. Counts of the records are those of the rounds."""
    engine, widths = tiny_engine("peagle", num_speculative_tokens=num_tokens), []
    head = engine.drafter.head
    forward = type(head).forward

    def counted(self, token_ids, *others):
        widths.append(token_ids.shape[1])
        return forward(self, token_ids, *others)

    monkeypatch.setattr(type(head), "forward", counted)
    record = engine.run(tiny_requests(1, 6), lambda _: None).requests[0]
    rounds = record.rounds[1:]
    # the prompt's pairs; then in every round the masked pairs, if there are any, and the known ones
    assert widths == [6, *([num_tokens - 1] * (num_tokens > 1) + [num_tokens + 1]) * len(rounds)]
    assert {each.num_proposed_tokens for each in rounds} == {num_tokens}
    assert sum(each.num_accepted_tokens + 1 for each in rounds) + 1 >= len(record.output_token_ids) == 12


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are interpreted where there is no GPU")
@pytest.mark.parametrize("kind", DRAFTERS)
def test_fused_kernels_emit_the_same_tokens(kind, monkeypatch):
    """The kernels themselves, not their twins. Would catch inputs with gaps, which they refuse, and a layer that writes
    to the cache of another one."""
    for module in (fused_layer, layer_forward):
        monkeypatch.setattr(module, "operations_for", lambda device: named_operations("triton"))
    engine, found = tiny_engine(kind, num_speculative_tokens=3, max_new_tokens=5), []
    for fused in (False, True):
        head = tiny_head(kind, engine.target)
        assert not fused or head.fuse() is None
        drafter = DRAFTERS[kind](head, DraftSampling.sampled, DrafterShape(NUM_SLOTS, 30, 3, VOCAB_SIZE))
        run = Engine(engine.target, drafter, engine.settings).run(tiny_requests(2, 4), lambda _: None)
        found.append([each.output_token_ids for each in run.requests])
    assert found[0] == found[1]
