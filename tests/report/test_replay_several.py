"""What several drafts would be worth at the contexts of a chain: recorded by the engine, averaged and printed."""

import numpy as np
import pandas as pd
import pytest
import torch

from experiments import replay as command
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig, DraftSamplingChoice
from harness.config.identity import determinants
from harness.config.sections import MeasurementConfig
from harness.records.acceptance_terms import collect_terms, write_terms
from harness.records.files import write_cell
from harness.report.replay.several_drafts import NO_TREE
from kernels.contract import Draft, DraftSampling, Sampling, VerificationMethod
from kernels.reference.multi_draft_terms import multi_draft_terms
from kernels.reference.optimal_acceptance import distinct_bound, independent_bound, top_bound
from kernels.reference.several_drafts import kseq_acceptance, recursive_acceptance
from tests.support.synthetic_cells import cell_record, config
from tests.support.toy_markov import toy_engine, toy_requests, transitions

TARGET, DRAFT = transitions(9, seed=11), transitions(9, seed=12)
"""More tokens than drafts."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run folder of one cell, and the states of all contexts at which it had a draft token to verify."""
    folder = tmp_path_factory.mktemp("several")
    engine = toy_engine(
        TARGET,
        DRAFT,
        VerificationMethod.probabilistic,
        DraftSampling.sampled,
        num_speculative_tokens=3,
        max_new_tokens=14,
        num_slots=8,
        expected_acceptance=True,
        round_terms=True,
        multi_draft_terms=True,
    )
    run = engine.run(toy_requests(8), lambda record: None)
    settings = config(verification__method="probabilistic", measurement__multi_draft_terms=True)
    cell = cell_record(run.requests, settings=settings)
    write_cell(cell, folder / "cells")
    write_terms(collect_terms(cell.cell_id, run.terms), folder / "cells")
    states = []
    for request in run.requests:
        num_emitted = 0
        for item in request.rounds:
            if 0 < item.num_draft_tokens == item.num_proposed_tokens:
                num_contexts = min(item.num_accepted_tokens + 1, item.num_draft_tokens)
                states += request.output_token_ids[num_emitted - 1 : num_emitted - 1 + num_contexts]
            num_emitted += item.num_output_tokens
    return folder, states


def test_every_rule_is_averaged_over_the_contexts_that_the_chain_visited(recorded, capsys):
    """Would catch positions after a rejection counted in, the rows of another position, and an n that is off by one."""
    folder, states = recorded
    assert command.main([str(folder)]) == 0
    shown = capsys.readouterr().out
    assert "What several drafts a position would be worth" in shown and NO_TREE in shown
    frame = pd.read_csv(folder / "tables" / "replay_several_drafts.csv")
    rows = tuple(each[states].double() / each[states].double().sum(1, keepdim=True) for each in (TARGET, DRAFT))
    wanted = {
        "bound_independent": independent_bound(*rows, 8),
        "bound_distinct": distinct_bound(*rows, 8),
        "bound_top": top_bound(*rows, 8),
        "recursive": recursive_acceptance(*rows, 8),
        "kseq": kseq_acceptance(*rows, 8),
    }
    assert (frame["num_contexts"] == len(states)).all() and list(frame["num_drafts"]) == list(range(1, 9))
    for name, table in wanted.items():
        np.testing.assert_allclose(frame[name], table.mean(dim=0), atol=1e-6)
        low, high = frame[f"{name}_low"] - 1e-9, frame[f"{name}_high"] + 1e-9
        assert ((low <= frame[name]) & (frame[name] <= high)).all()
    pairs = frame["recursive_distinct"]
    assert pairs.notna().tolist() == [True, True] + [False] * 6 and pairs[1] < frame["bound_distinct"][1]


def test_only_sampled_drafts_of_a_model_are_recorded():
    def cell(is_recorded, sampling=DraftSamplingChoice.sampled):
        return CellConfig(
            drafter=drafter_of(DrafterKind.eagle3),
            drafting=DraftingConfig(sampling=sampling),
            measurement=MeasurementConfig(round_terms=True, multi_draft_terms=is_recorded),
        )

    assert determinants(cell(False)) != determinants(cell(True))
    greedy = DraftSamplingChoice.greedy
    assert determinants(cell(False, greedy)) == determinants(cell(True, greedy))
    with pytest.raises(ValueError, match="multi_draft_terms: expected false without"):
        MeasurementConfig(multi_draft_terms=True)


def test_the_best_tokens_are_the_draft_rows_at_temperature_0_too():
    """There the target has one token: it is among the draft's n best, or not."""
    target = torch.tensor([[0.0, 3.0, 1.0], [0.0, 0.0, 1.0]])
    draft = Draft(torch.tensor([[2]]), torch.tensor([1]), torch.tensor([[[5.0, 4.0, 6.0]]]))
    terms = multi_draft_terms(target, draft, Sampling.same_for_all(1, 0.0, 0, 1.0, 0.0))
    assert [float(terms[f"bound_top_{number}"]) for number in (1, 2, 3, 4)] == [0, 0, 1, 1]
