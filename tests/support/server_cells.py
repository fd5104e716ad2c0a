"""Cells on a scripted server, run as a sweep runs them, and the counts that its scripts expect."""

from harness.analysis import load_results
from harness.analysis.results import read_results
from harness.config.backend import Server
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.server import Engine, server_of
from harness.config.workload import WorkloadConfig
from harness.runner.plan.run_plan import RunPlan
from harness.runner.run_cells import run_cells
from harness.workload.conversations import conversations, load_prompts
from kernels.methods import VerificationMethod
from kernels.verification import Verification
from tests.runner.test_sweep import Silent
from tests.support.server_scripts import script_of

DEPTH, MAX_TOKENS = 3, 12
ENGINES = {
    "vllm_0.25": Engine.vllm,
    "vllm_0.33": Engine.vllm,
    "sglang": Engine.sglang,
    "tensorrt_llm": Engine.tensorrt_llm,
    "llama_cpp": Engine.llama_cpp,
    "plain": Engine.plain,
}


def cell_on(server, num_requests=6, concurrency=256, **settings):
    engine = ENGINES[server.format]
    temperature = 0.0 if engine in (Engine.tensorrt_llm, Engine.llama_cpp) else 1.0
    kind = {Engine.plain: DrafterKind.none, Engine.llama_cpp: DrafterKind.draft_model}.get(engine, DrafterKind.eagle3)
    return CellConfig(
        drafter=drafter_of(kind),
        drafting=DraftingConfig(DEPTH),
        decoding=DecodingConfig(temperature=temperature, max_new_tokens=MAX_TOKENS),
        verification=Verification(VerificationMethod.probabilistic if temperature else VerificationMethod.greedy),
        workload=WorkloadConfig(num_prompts=min(8, num_requests), num_requests=num_requests, num_turns=1),
        backend=Server(max_concurrency=concurrency),
        server=server_of(engine, url=server.url, stall_timeout_s=settings.pop("stall_timeout_s", 60.0)),
        measurement=MeasurementConfig(
            num_warmup_requests=0, num_blocks=settings.pop("num_blocks", 2), num_resamples=200
        ),
        **settings,
    )


def scripts_of(cell, server):
    """Seed -> script of every request of a cell."""
    played = conversations(load_prompts(cell.workload, cell.seed), cell.workload, cell.seed)
    seeds = [item.turn_seed(0) for item in played]
    return {seed: script_of(seed, server.depth, cell.decoding.max_new_tokens) for seed in seeds}


def run_on(tmp_path, *cells):
    """Run cells through the sweep; returns their records and the frame of results."""
    run_cells(RunPlan("test", "a test", list(cells), (), tmp_path, "command"), tmp_path, Silent(), [])
    return [cell.record for cell in read_results(tmp_path).cells], load_results(tmp_path)


def assert_rounds_of(script, request):
    """That the rounds of a record are the script's, cut where our own engine cuts."""
    assert request.num_output_tokens == script.num_tokens
    assert [item.num_output_tokens for item in request.rounds] == list(script.sizes)
    assert [item.num_proposed_tokens for item in request.rounds] == [0] + [DEPTH] * len(script.accepted)
    before = list(zip(request.rounds[1:-1], script.accepted[:-1], strict=True))
    assert all(item.num_accepted_tokens == number for item, number in before)
    last = request.rounds[-1]
    assert last.num_cut_tokens == script.accepted[-1] + 1 - last.num_output_tokens
    # neither beyond the limit nor from an accepted end of sequence on
    allowed = [MAX_TOKENS - sum(script.sizes[:place]) for place in range(1, len(script.sizes))]
    drafted = [min(DEPTH, number - 1) for number in allowed]
    if script.finish_reason == "stop" and last.num_cut_tokens:
        drafted[-1] = last.num_output_tokens - 1
    assert [item.num_draft_tokens for item in request.rounds[1:]] == drafted
