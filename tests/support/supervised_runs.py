"""Plans of a failing server for a supervisor, and a display that counts what is left."""

from dataclasses import replace

from harness.config.backend import backend_of
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.workload import WorkloadConfig
from harness.runner.plan.run_plan import Workers
from kernels.contract import VerificationMethod
from kernels.verification import Verification
from tests.runner.test_sweep import Silent, plan

METHODS = (VerificationMethod.strict, VerificationMethod.block)


def plan_on(name, folder, methods=METHODS, temperatures=(1.0,), **workers):
    """The baseline and some methods on a failing server."""
    cells = [
        CellConfig(
            drafter=drafter_of(DrafterKind.eagle3),
            decoding=DecodingConfig(temperature=temperature, max_new_tokens=8),
            workload=WorkloadConfig(num_prompts=4, num_turns=1),
            backend=backend_of(f"tests.support.failing_servers:{name}", device="cpu", dtype="float32"),
            measurement=MeasurementConfig(num_warmup_requests=1, num_resamples=100),
            verification=Verification(method),
        )
        for temperature in temperatures
        for method in methods
    ]
    return replace(plan(folder, *cells), workers=Workers(**workers))


class Counting(Silent):
    """A display that counts what is left."""

    def done_before(self, num_requests):
        self.total -= num_requests

    def leave_out(self, num_requests):
        self.total -= num_requests
