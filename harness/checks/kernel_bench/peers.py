"""Times what the core is compared with, on the very batch that the core was timed on.

FlashInfer is one where it is importable: softmax in float32 (`flashinfer.sampling.softmax`), truncation by renormalised
probabilities, then `chain_speculative_sampling`, or `sampling_from_probs` for a draw. It draws with its own random
numbers, from a seed that is given, so that it can be captured in a graph. vLLM's: see vllm_peer.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from harness.checks.agreement.round_inputs import RoundInputs
from harness.checks.kernel_bench import separate
from harness.checks.kernel_bench.case import Case, Truncation, Work
from harness.checks.kernel_bench.measure import RowCounts, Rows, extra_memory, num_launches
from harness.checks.kernel_bench.records import Measurement, Status
from harness.checks.kernel_bench.rows import TOP_K, TOP_P
from harness.checks.kernel_bench.vllm_peer import vllm_ways
from harness.checks.timing.clock import Clock
from harness.checks.timing.measured import Timing
from harness.plugins.vllm.signatures import RefusedVersion
from kernels.contract import DraftSampling, VerificationMethod

Call = Callable[[], Any]


def _can_be_torch(case: Case) -> bool:
    """Whether softmaxes and the rule do it: probabilistic verification of cached drafts or a draw, above T = 0."""
    if case.temperature == 0 or case.truncation is Truncation.min_p or case.work is Work.coupled_draw:
        return False
    of_draft = case.method is VerificationMethod.probabilistic and case.draft_sampling is DraftSampling.sampled
    return case.work is Work.draw or of_draft


class Peer(NamedTuple):
    """One implementation."""

    name: str
    prepare: Callable[[Case, Any], Call]
    """The case and its batch -> what is timed. A verification's first result is [R] accepted tokens."""
    num_beside: int = 0
    """What that counts beside them."""


def peers_of(case: Case, device: torch.device, with_torch: bool = True) -> list[Peer]:
    """What the case is timed beside.

    torch.compile is one compilation for each shape, some seconds each: it gets verifications without truncation and one
    draw. FlashInfer is there if it is importable, vLLM if it is installed.

    Args:
        case: any.
        device: of the batch.
        with_torch: also eager torch and torch.compile.
    """
    on_gpu, found = device.type == "cuda", []
    if case.edited_tokens:
        return []
    if with_torch and _can_be_torch(case):
        found.append(_of_functions("eager torch", separate.verify_logits, separate.draw_logits))
        if on_gpu and case.truncation is Truncation.off and (case.work is Work.verify or case.num_requests == 256):
            found.append(_of_functions("torch.compile", _compiled("verify_logits"), _compiled("draw_logits")))
    if on_gpu and _can_be_torch(case) and importlib.util.find_spec("flashinfer") is not None:
        found.append(_of_functions("FlashInfer", _flashinfer_verify, _flashinfer_draw))
    return [*found, *(Peer(name, prepare, num_beside=1) for name, prepare in vllm_ways(case).items())]


@cache
def _compiled(name: str) -> Callable[..., Any]:
    compiled: Callable[..., Any] = torch.compile(getattr(separate, name), dynamic=False)
    return compiled


def _of_functions(name: str, verify_logits: Callable[..., Any], draw_logits: Callable[..., Any]) -> Peer:
    """A peer of functions with the signatures of harness.checks.kernel_bench.separate."""

    def prepare(case: Case, inputs: RoundInputs | Rows) -> Call:
        if isinstance(inputs, Rows):
            return lambda: draw_logits(inputs.logits, case.temperature, case.truncation)
        draft = inputs.draft
        arguments = (inputs.target_logits, draft.logits, draft.idx_mapping, draft.token_ids)
        return lambda: verify_logits(*arguments, case.temperature, case.truncation)

    return Peer(name, prepare)


def measure_peer(case: Case, peer: Peer, inputs: RoundInputs | Rows, counts: RowCounts, clock: Clock) -> Measurement:
    """One peer on one case; what goes wrong in it is written down, not raised."""
    on_gpu = inputs.streams.seeds.device.type == "cuda"
    try:
        call = peer.prepare(case, inputs)
        found = call()
        extra_bytes = extra_memory(call) if on_gpu else None
        timing, remark = _timed(call, clock)
        launches = num_launches(call) if timing.in_graph else None
    except (torch.OutOfMemoryError, RefusedVersion) as error:
        return Measurement(case, peer.name, Status.skipped, first_line(error))
    except Exception as error:
        return Measurement(case, peer.name, Status.failed, first_line(error))
    return Measurement(
        case,
        peer.name,
        reason=remark,
        timing=timing,
        mean_accepted=float(found[0].double().mean()) - peer.num_beside if case.work is Work.verify else None,
        bytes_all_rows=counts.all_rows * case.row_bytes,
        bytes_needed=counts.needed * case.row_bytes,
        extra_bytes=extra_bytes,
        num_launches=launches,
    )


def _timed(call: Call, clock: Clock) -> tuple[Timing, str]:
    """The time, from a graph if the work can be captured, and a remark if it cannot."""
    try:
        return clock.time(call), ""
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as error:
        torch.cuda.synchronize()
        return clock.time(
            call, in_graph=False
        ), f"launched from the host, as no graph could be made: {first_line(error)}"


def first_line(error: Exception) -> str:
    """What an error says, in one line."""
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0][:200]}" if text else type(error).__name__


def _probabilities(sampling: Any, logits: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """[N, V] -> [N, V] float32."""
    probs = sampling.softmax(logits, temperature=temperature)
    if truncation is Truncation.top_p:
        return sampling.top_p_renorm_probs(probs, TOP_P)
    if truncation is Truncation.top_k:
        return sampling.top_k_renorm_probs(probs, TOP_K)
    return probs


def _flashinfer_verify(
    target_logits: Tensor, cache: Tensor, slots: Tensor, token_ids: Tensor, temperature: float, truncation: Truncation
) -> tuple[Tensor, Tensor]:
    """As separate.verify_logits; the second result is all output tokens, [R, K + 1] int32."""
    from flashinfer import sampling

    num_requests, width = token_ids.shape
    vocab_size = target_logits.shape[1]
    target = _probabilities(sampling, target_logits, temperature, truncation)
    proposed = _probabilities(sampling, cache[slots].flatten(0, 1), temperature, truncation)
    # the counts are added to, so they begin at 0
    accepted = torch.zeros(num_requests, dtype=torch.int32, device=target.device)
    emitted = torch.zeros_like(accepted)
    output, accepted, emitted = sampling.chain_speculative_sampling(
        proposed.view(num_requests, width, vocab_size),
        token_ids.int(),
        target.view(num_requests, width + 1, vocab_size),
        accepted,
        emitted,
        seed=0,
        offset=0,
    )
    return emitted, output


def _flashinfer_draw(logits: Tensor, temperature: float, truncation: Truncation) -> Tensor:
    """[N, V] -> [N] int32, one token of each row."""
    from flashinfer import sampling

    probs = _probabilities(sampling, logits, temperature, truncation)
    tokens: Tensor = sampling.sampling_from_probs(probs, seed=0, offset=0)
    return tokens
