"""The two open questions of the review of vLLM PR 35461, answered by timing both ways on the same batch.

gather    copy the batch's draft rows out of the cache first, or index the cache inside the kernel?
softmax   write both softmaxes down in float32 and verify from probabilities, or fuse them into the verification?
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch

from harness.checks.kernel_bench.case import Case
from harness.checks.kernel_bench.check import Disagreement
from harness.checks.kernel_bench.measure import extra_memory, num_launches
from harness.checks.kernel_bench.records import Variant
from harness.checks.kernel_bench.separate import probabilities, verify_probabilities
from harness.checks.kernel_bench.workload import make_round, verification_of
from harness.checks.timing.clock import Clock
from kernels.contract import Draft, RowStats
from kernels.core import core_for

GATHER = "gathering the draft logits first, or indexing them inside the kernel"
SOFTMAX = "a fused or a separate softmax"


def gathered(draft: Draft) -> Draft:
    """The same draft with the batch's rows copied together: [R, K, V] of logits, and their statistics."""
    slots, stats = draft.idx_mapping, draft.row_stats
    assert draft.logits is not None and slots is not None and stats is not None
    return replace(
        draft,
        logits=draft.logits.index_select(0, slots),
        idx_mapping=None,
        row_stats=RowStats(*(values[slots] for values in (stats.maximum, stats.normalizer, stats.threshold))),
    )


def variants_of(case: Case, clock: Clock, seed: int, device: torch.device) -> Iterator[Variant]:
    """Both questions on one case of probabilistic verification.

    Raises:
        Disagreement: the same kernel found other tokens after gathering.
    """
    core = core_for(device)
    inputs = make_round(case, core, seed, device)
    draft, verification = inputs.draft, verification_of(case)
    width, temperature = case.width, case.temperature
    cache, slots = draft.logits, draft.idx_mapping
    assert cache is not None and slots is not None
    target = inputs.target_logits.view(case.num_requests, width + 1, case.vocab_size)

    def verify(draft: Draft) -> Any:
        return core.verify(inputs.target_logits, draft, inputs.sampling, verification, inputs.streams)

    def softmaxes() -> tuple[torch.Tensor, torch.Tensor]:
        return probabilities(target, temperature, case.truncation), probabilities(cache, temperature, case.truncation)

    def then_rule() -> tuple[torch.Tensor, torch.Tensor]:
        return verify_probabilities(*softmaxes(), draft.token_ids, slots)

    if not torch.equal(verify(draft).token_ids, verify(gathered(draft)).token_ids):
        raise Disagreement(f"{case.name}: gathering the draft rows first changed the tokens; nothing is reported")
    ways: list[tuple[str, str, Callable[[], Any]]] = [
        (GATHER, "indexed inside the kernel", lambda: verify(draft)),
        (GATHER, "gathered first", lambda: verify(gathered(draft))),
        (GATHER, "the gather alone", lambda: gathered(draft)),
        (SOFTMAX, "fused", lambda: verify(draft)),
        (SOFTMAX, "separate: both softmaxes alone", softmaxes),
        (SOFTMAX, "separate: softmaxes, then the rule", then_rule),
    ]
    on_gpu = device.type == "cuda"
    for question, name, call in ways:
        call()
        extra_bytes = extra_memory(call) if on_gpu else None
        yield Variant(
            question, name, case.num_requests, clock.time(call), extra_bytes, num_launches(call) if on_gpu else None
        )
