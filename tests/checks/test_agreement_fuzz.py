"""Random calls: the kernels agree with the reference on them, and a core that is wrong anywhere is found out."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from experiments.agreement import main
from harness.checks.agreement.config import AgreementConfig, Candidate
from harness.checks.agreement.fuzz import FuzzResult, layouts_of, run_fuzz
from harness.checks.agreement.report import is_green
from harness.config.device import Device
from kernels.contract import Draft, Drawn, VerificationResult
from kernels.core import Core, reference_core, triton_core
from kernels.launch.workspace import Workspace
from tests.support.kernel_rounds import DEVICE

TINY: dict[str, Any] = {"vocab_size": 70, "requests": 3, "draft_tokens": 2}
CPU = torch.device("cpu")


def fuzzed(core: Core, num_cases: int, device: torch.device = CPU, **settings: Any) -> FuzzResult:
    config = AgreementConfig(Candidate.triton, Device(device.type), fuzz_cases=num_cases, **settings)
    return run_fuzz(config, core, device, lambda text: None)


def test_the_kernels_agree_on_random_calls():
    """Would catch what no other test thought of, on one workspace over all methods, layouts and misused calls."""
    found = fuzzed(triton_core(), 24, DEVICE, **TINY)
    assert found.failures == ()
    assert found.num_misused > 3 and found.agreement.num_tokens > 60


@pytest.mark.gpu
@pytest.mark.parametrize("seed", [1, 2])
def test_the_kernels_agree_on_random_calls_of_all_sizes(seed: int):
    assert fuzzed(triton_core(), 640, DEVICE, seed=seed).failures == ()


@pytest.mark.parametrize("asked", [("block",), ("kseq",), ("strict", "recursive")])
def test_cases_are_of_the_methods_that_are_asked_for(asked: tuple[str, ...]):
    """Would catch cases of other methods, which leave few for the one whose hooks are in question."""
    config = AgreementConfig(Candidate.triton, Device.cpu, fuzz_cases=60, methods=asked, **TINY)
    assert {layout.method.value for layout in layouts_of(config, CPU)} == set(asked)


def lenient_count(verify: Callable[..., VerificationResult]) -> Callable[..., VerificationResult]:
    """Verification that takes a number of draft tokens above K as K, and does not say so."""

    def changed(target_logits: torch.Tensor, draft: Draft, *others: Any, **options: Any) -> VerificationResult:
        counts = draft.num_draft_tokens.clamp(-1, draft.token_ids.shape[1])
        return verify(target_logits, replace(draft, num_draft_tokens=counts), *others, **options)

    return changed


def without_mask(function: Callable[..., Any]) -> Callable[..., Any]:
    def changed(*arguments: Any, mask: Any = None, **options: Any) -> Any:
        return function(*arguments, **options)

    return changed


def as_siblings(verify: Callable[..., VerificationResult]) -> Callable[..., VerificationResult]:
    """Verification that takes all draft tokens of a tree for children of the context."""

    def changed(target_logits: torch.Tensor, draft: Draft, *others: Any, **options: Any) -> VerificationResult:
        parents = None if draft.parents is None else torch.full_like(draft.parents, -1)
        return verify(target_logits, replace(draft, parents=parents), *others, **options)

    return changed


def never_invalid(draw: Callable[..., Drawn]) -> Callable[..., Drawn]:
    def changed(*arguments: Any, **options: Any) -> Drawn:
        found = draw(*arguments, **options)
        return replace(found, invalid=torch.zeros_like(found.invalid))

    return changed


def busy() -> Workspace:
    workspace = Workspace()
    workspace.buffer("row_arrivals", 1, torch.int32, CPU, zeroed=True).fill_(1)
    return workspace


@pytest.mark.parametrize(
    ("change", "call"),
    [
        (lambda core: {"verify": lenient_count(core.verify)}, "misused"),
        (lambda core: {"verify": without_mask(core.verify)}, "verify"),
        (lambda core: {"draw": without_mask(core.draw)}, "draw"),
        (lambda core: {"draw": never_invalid(core.draw)}, "draw"),
        (lambda core: {"verify": as_siblings(core.verify)}, "verify"),
        (lambda core: {"workspace": busy()}, "expected counters of 0 afterwards, found others in row_arrivals"),
    ],
    ids=[
        "a wrong count is not flagged",
        "verify without masks",
        "draw without masks",
        "no flags",
        "siblings",
        "counters",
    ],
)
def test_a_core_that_is_wrong_somewhere_fails(change: Callable[[Core], dict[str, Any]], call: str):
    core, sizes = reference_core(), TINY | {"draft_tokens": 4}
    assert fuzzed(core, 40, **sizes).holds
    found = fuzzed(replace(core, **change(core)), 40, **sizes)
    assert any(call in failure for failure in found.failures)
    assert not is_green([], [], found)


def test_the_same_seed_gives_the_same_cases():
    first, second, other = (fuzzed(reference_core(), 12, seed=seed, **TINY) for seed in (3, 3, 4))
    assert first.agreement == second.agreement != other.agreement


def test_the_report_has_seed_and_count(tmp_path):
    flags = ["--fuzz", "--fuzz-cases=7", "--seed=5", "--core=reference", "--device=cpu", f"--output={tmp_path}"]
    assert main([*flags, "--vocab-size=70", "--requests=3"]) == 0
    record = json.loads((tmp_path / "agreement.json").read_text())
    assert (record["fuzz"]["seed"], record["fuzz"]["num_cases"], record["fuzz"]["failures"]) == (5, 7, [])
    assert record["total"]["num_unexplained"] == record["fuzz"]["num_failures"] == 0
    assert "7 random cases of seed 5" in (tmp_path / "report.md").read_text()
