"""A step that a CUDA graph cannot hold is refused with what to do."""

from __future__ import annotations

import pytest
import torch

from harness.config.models import Layers
from harness.drafters.chain import DrafterShape
from harness.drafters.ngram_run import NgramDrafter
from harness.engine.request import Request
from harness.models.target import load_target
from tests.support.any_models import NO_TOKENIZER, save_tiny, tiny_model
from tests.support.tiny_engines import engine_over

pytestmark = pytest.mark.gpu


def test_modeling_code_that_copies_from_the_host_is_refused_by_name(tmp_path):
    """falcon divides by a tensor that it makes on the CPU: would catch torch's own message about streams."""
    folder = save_tiny(tiny_model("falcon"), tmp_path)
    device = torch.device("cuda")
    target = load_target(folder, tokenizer=NO_TOKENIZER, layers=Layers.transformers, device=device, dtype=torch.float32)
    shape = DrafterShape(1, 32, 2, target.vocab_size)
    engine = engine_over(target, NgramDrafter(3, 1), shape, 4, graphs=True)
    with pytest.raises(ValueError, match=r"a step that a CUDA graph can hold.*take backend\.graphs=false"):
        engine.run([Request("0", "toy", 0, 0, 1, (5, 6, 7))], lambda record: None)
