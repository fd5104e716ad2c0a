"""Guarded requests on a GPU: steps in parts as CUDA graphs, launched ahead until somebody is behind the boundary."""

import pytest
import torch

pytest.importorskip("llguidance", reason="needs the extra grammar")
pytest.importorskip("jsonschema", reason="needs the extra grammar")

from experiments.zoo.reasoning_prompts import FILE
from harness.backends.local import LocalBackend
from harness.config import (
    BackendConfig,
    CellConfig,
    DecodingConfig,
    DrafterConfig,
    DrafterKind,
    DraftingConfig,
    Layout,
    MeasurementConfig,
    WorkloadConfig,
)
from harness.constraint_config import ConstraintConfig, PolicyKind
from harness.workload import conversations, load_prompts

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("drafter", [DrafterKind.eagle3, DrafterKind.draft_model, DrafterKind.ngram, DrafterKind.none])
@pytest.mark.parametrize("policy", [PolicyKind.commit, PolicyKind.mask], ids=lambda item: item.value)
def test_every_finished_answer_is_valid(policy, drafter):
    """Would catch a graph that reads masks, drafts or counts of another round, and a boundary seen too late."""
    config = CellConfig(
        drafter=DrafterConfig(drafter),
        drafting=DraftingConfig(4),
        decoding=DecodingConfig(temperature=1.0, max_new_tokens=160),
        workload=WorkloadConfig(path=str(FILE), layout=Layout.plain, num_prompts=40),
        constraint=ConstraintConfig(policy),
        backend=BackendConfig(device="cuda", max_concurrency=12),
        measurement=MeasurementConfig(expected_acceptance=False),
    )
    backend = LocalBackend(config)
    run = backend.generate(conversations(load_prompts(config.workload, 0), config.workload, 0))
    assert backend.uses_graphs and backend.num_invalid == 0
    finished = [item for item in run.requests if item.finish_reason.value == "grammar"]
    assert len(finished) >= 30 and all(item.answer_is_valid for item in finished)
    assert all(item.num_reasoning_tokens is not None for item in finished)
