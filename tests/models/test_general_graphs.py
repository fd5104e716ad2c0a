"""The general path in CUDA graphs: no forward waits for the device, and captured steps give the same tokens."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.config.sampling import SamplingSettings
from harness.drafters.ngram_run import NgramDrafter
from harness.engine.engine import Engine
from harness.engine.request import Limits, Request
from harness.engine.settings import EngineSettings
from harness.models.general.target import GeneralTarget
from kernels.contract import Verification, VerificationMethod
from tests.support.any_models import FAMILIES, VOCAB_SIZE, tiny_model

WAITING = ("dbrx", "longcat_flash")
"""Families whose code loops over the experts that are hit; a graph cannot hold them."""
READS = {"aten::_local_scalar_dense", "aten::item", "aten::nonzero", "aten::masked_select", "aten::equal"}
"""Operations that hand values, or a shape that follows from values, to the host."""


class HostReads(TorchDispatchMode):
    """Collects the operations inside that wait for the device, where there is one."""

    def __init__(self) -> None:
        super().__init__()
        self.found: set[str] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name
        is_by_mask = name == "aten::index" and any(each is not None and each.dtype is torch.bool for each in args[1])
        if name in READS or is_by_mask:
            self.found.add(name)
        return func(*args, **(kwargs or {}))


def host_reads(target: GeneralTarget) -> set[str]:
    """Of a round of several tokens of rows at different places."""
    positions = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
    view = target.new_cache(3, 30, rewind=4).view(torch.tensor([1, 0]), positions, 30)
    with torch.inference_mode(), HostReads() as reads:
        target.logits(target.forward(positions, positions, view, (0, 1)).hidden)
    return reads.found


@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name not in WAITING])
def test_no_forward_waits_for_the_device(model_type):
    """Would catch a mask, a state or a read of our own that a CUDA graph cannot hold, or a new one of transformers."""
    assert host_reads(GeneralTarget(tiny_model(model_type), None)) == set()


def test_what_waits_is_seen():
    assert "aten::nonzero" in host_reads(GeneralTarget(tiny_model("dbrx"), None))


IN_GRAPHS = [
    *((name, torch.float32) for name in ("llama", "gemma3_text", "qwen3_next", "qwen3_moe", "gpt_oss")),
    # their grouped product runs in 16 bits alone
    *((name, torch.bfloat16) for name in ("qwen3_moe", "gpt_oss")),
]


@pytest.mark.gpu
@pytest.mark.parametrize(("model_type", "dtype"), IN_GRAPHS, ids=lambda item: str(item).removeprefix("torch."))
def test_captured_steps_give_the_tokens_of_steps_without_graphs(model_type, dtype):
    """Two slots for four requests; prompts longer than a window, drafts that are rejected."""
    target = GeneralTarget(tiny_model(model_type).to("cuda", dtype), None)
    generator = torch.Generator().manual_seed(7)
    prompts = [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in (3, 13, 5, 9)]
    outputs = []
    for graphs in (False, True):
        settings = EngineSettings(
            num_slots=2,
            capacity=48,
            num_speculative_tokens=3,
            sampling=SamplingSettings(temperature=0.0),
            verification=Verification(VerificationMethod.probabilistic),
            limits=Limits(12, frozenset()),
            graphs=graphs,
        )
        requests = [Request(str(number), "toy", 0, 0, 1, tuple(prompt)) for number, prompt in enumerate(prompts)]
        run = Engine(target, NgramDrafter(3, 1), settings).run(requests, lambda record: None)
        assert run.num_invalid == 0
        outputs.append({record.prompt_id: record.output_token_ids for record in run.requests})
    captured, plain = outputs[1], outputs[0]
    if dtype is torch.float32:
        assert captured == plain
    else:
        # in 16 bits a row among others may round to another token later on
        assert {name: tokens[0] for name, tokens in captured.items()} == {name: each[0] for name, each in plain.items()}
