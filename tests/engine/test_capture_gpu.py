"""A step that a CUDA graph cannot hold is refused with what to do."""

from __future__ import annotations

import pytest
import torch

from harness.config.models import Layers
from harness.config.sampling import SamplingSettings
from harness.drafters.ngram_run import NgramDrafter
from harness.engine.engine import Engine
from harness.engine.request import Limits, Request
from harness.engine.settings import EngineSettings
from harness.models.target import load_target
from kernels.contract import Verification, VerificationMethod
from tests.support.any_models import NO_TOKENIZER, save_tiny, tiny_model

pytestmark = pytest.mark.gpu


def test_modeling_code_that_copies_from_the_host_is_refused_by_name(tmp_path):
    """falcon divides by a tensor that it makes on the CPU: would catch torch's own message about streams."""
    folder = save_tiny(tiny_model("falcon"), tmp_path)
    device = torch.device("cuda")
    target = load_target(folder, tokenizer=NO_TOKENIZER, layers=Layers.transformers, device=device, dtype=torch.float32)
    settings = EngineSettings(
        num_slots=1,
        capacity=32,
        num_speculative_tokens=2,
        sampling=SamplingSettings(temperature=0.0),
        verification=Verification(VerificationMethod.probabilistic),
        limits=Limits(4, frozenset()),
        graphs=True,
    )
    engine = Engine(target, NgramDrafter(3, 1), settings)
    with pytest.raises(ValueError, match=r"a step that a CUDA graph can hold.*take backend\.graphs=false"):
        engine.run([Request("0", "toy", 0, 0, 1, (5, 6, 7))], lambda record: None)
