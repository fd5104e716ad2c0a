"""The prepared experiments of conf/experiment: their cells, texts and sizes, without a model."""

import re
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from harness.config.guarantee import labels
from harness.config.models import Weights
from harness.config.schema import CONF, group_options
from harness.runner.plan.compose import compose_plan
from tests.runner.test_compose import summary

PROMISED = {
    "quickstart": (
        ("mtp", "eagle3"),
        (2,),
        (1.0,),
        ("strict", "coupled", "probabilistic", "block"),
    ),
    "public": (("eagle3", "suffix"), (3,), (0.0, 1.0), ("strict", "coupled", "probabilistic", "block")),
    "draft_logits_dtype": (("eagle3", "draft_model"), (4,), (0.3, 1.0), ("strict", "probabilistic")),
    "methods": (("eagle3",), (4,), (1.0,), ("strict", "typical", "lenient", "fly", "pr35461")),
    "throughput_llama3_8b": (("eagle",), (3,), (1.0,), ("synthetic",)),
    "throughput_glm47_mtp": (("mtp",), (3,), (1.0,), ("synthetic",)),
    "throughput_qwen3_8b": (("eagle3",), (5,), (1.0,), ("synthetic",)),
    "pr35461_llama3_eagle": (("eagle",), (3,), (1.0,), ("coupled", "pr35461", "strict", "probabilistic", "block")),
    "pr35461_qwen3_eagle3": (("eagle3",), (5,), (1.0,), ("coupled", "pr35461", "strict", "probabilistic", "block")),
    "pr35461_glm47_mtp": (("mtp",), (3,), (1.0,), ("coupled", "pr35461", "strict", "probabilistic", "block")),
    "pr35461_llama3_eagle_shapes": (("eagle",), (4,), (1.0,), ("synthetic",)),
    "pr35461_qwen3_eagle3_shapes": (("eagle3",), (3,), (1.0,), ("synthetic",)),
    "pr35461_glm47_mtp_shapes": (("mtp",), (3,), (1.0,), ("synthetic",)),
    "depth_by_temperature": (("eagle3",), (1, 4, 8), (0.0, 0.6, 1.0), ("strict", "probabilistic", "block")),
    "drafting_by_verification": (("eagle3",), (4,), (1.0,), ("strict", "coupled", "typical", "lenient", "pr35461")),
    "truncation": (("eagle3",), (4,), (1.0,), ("strict", "probabilistic", "block")),
    "concurrency": (("eagle3",), (4,), (1.0,), ("probabilistic",)),
    "best_depth": (("eagle3",), (1, 2, 3, 4, 6), (0.0, 1.0), ("probabilistic",)),
    "lossy_tradeoff": (("eagle3",), (4,), (1.0,), ("probabilistic", "typical", "lenient", "fly")),
    "reasoning_boundary": (("eagle3", "draft_model", "ngram"), (2, 4, 8), (1.0,), ("probabilistic",)),
    "reasoning_before_boundary": (("eagle3",), (4,), (1.0,), ("probabilistic",)),
    "vllm_methods": (("eagle3",), (1, 3, 5), (0.0, 1.0), ("probabilistic", "block")),
    "sglang_methods": (("eagle3",), (1, 3, 5), (1.0,), ("strict", "probabilistic", "block")),
    "server_load": (("eagle3",), (1, 3, 5), (1.0,), ("probabilistic",)),
    "server_boundary": (("eagle3",), (2, 4), (1.0,), ("probabilistic",)),
    "demo_server": (("draft_model", "eagle", "eagle3"), (4,), (0.0,), ("probabilistic",)),
    "side_by_side": (("eagle",), (3,), (1.0,), ("synthetic",)),
    "adaptive_depth": (("eagle3",), (1, 2, 3, 4, 6, 8), (1.0,), ("probabilistic",)),
    "tune": (("eagle3",), (1, 2, 3, 4, 6), (1.0,), ("probabilistic",)),
    "tune_check": (("eagle3",), (1, 2, 3, 4), (1.0,), ("probabilistic",)),
    "tree_shapes": (
        ("eagle3",),
        (1, 2, 3, 4, 5, 6, 7, 8),
        (0.0, 0.6, 1.0),
        ("probabilistic", "block"),
    ),
    "dynamic_trees": (("eagle3",), (8, 16), (0.0, 0.6, 1.0), ("recursive",)),
    "tree_children": (("eagle", "eagle3"), (28, 31), (0.0, 1.0), ("recursive",)),
    "trees_llama3_8b": (("eagle",), (1, 2, 3, 4, 5, 8, 16, 32), (1.0,), ("synthetic",)),
}
"""Cells that each experiment must have: drafters, depths, temperatures, methods."""
TREES = {"tree_shapes": (("eagle3",), (4, 6, 8), (0.0, 0.6, 1.0), ("recursive", "traversal"))}
"""The same of experiments that hold trees against chains."""
WITH_INVALID = ("drafting_by_verification", "tree_shapes")
"""Experiments whose axes have pairs without a meaning."""
NUM_CELLS = {
    "pr35461_llama3_eagle": 6,
    "pr35461_qwen3_eagle3": 6,
    "pr35461_glm47_mtp": 6,
    "pr35461_llama3_eagle_shapes": 2,
    "pr35461_qwen3_eagle3_shapes": 2,
    "pr35461_glm47_mtp_shapes": 3,
    "depth_by_temperature": 52,
    "drafting_by_verification": 16,
    "truncation": 24,
    "concurrency": 16,
    "best_depth": 48,
    "lossy_tradeoff": 24,
    "draft_logits_dtype": 42,
    "vllm_methods": 26,
    "sglang_methods": 10,
    "server_load": 20,
    "server_boundary": 6,
    "demo_server": 8,
    "side_by_side": 4,
    "adaptive_depth": 44,
    "tune": 24,
    "tune_check": 6,
    "tree_shapes": 99,
    "dynamic_trees": 30,
    "tree_children": 10,
    "trees_llama3_8b": 27,
}
"""Of the experiments whose files say it."""


@cache
def plan_of(experiment):
    """An experiment in full."""
    return compose_plan([f"experiment={experiment}", "backend.device=cuda"])


@pytest.mark.parametrize("experiment", group_options()["experiment"])
def test_every_experiment_composes_and_covers_what_it_promises(experiment):
    plan = plan_of(experiment)
    assert plan.name == experiment
    assert plan.folder == Path("results/runs") / experiment
    assert plan.title != experiment
    # prompts that are not beside the repository are left out, which is no pair without a meaning
    skipped = [reason for _, reason in plan.skipped if "there is no file of prompts" not in reason]
    assert bool(skipped) == (experiment in WITH_INVALID)
    assert any(cell.is_baseline for cell in plan.cells)
    found = {summary(cell) for cell in plan.cells}
    assert set(product(*PROMISED[experiment])) | set(product(*TREES.get(experiment, ((),)))) <= found


@pytest.mark.parametrize("experiment", group_options()["experiment"])
def test_every_experiment_says_what_it_shows_and_what_it_does_not(experiment):
    plan = plan_of(experiment)
    assert plan.shows.strip().endswith(".") and plan.does_not_show.strip().endswith(".")
    text = (CONF / "experiment" / f"{experiment}.yaml").read_text()
    words = " ".join(text.replace("\n# ", " ").split())
    assert not re.search(r"\.\.|,,|\b(\w+) \1\b", words), "a doubled full stop, comma or word"
    assert len(plan.cells) == NUM_CELLS.get(experiment, len(plan.cells))
    assert experiment not in NUM_CELLS or f"# {NUM_CELLS[experiment]} cells:" in text


@pytest.mark.parametrize(
    "experiment",
    [
        name
        for name in group_options()["experiment"]
        if not name.startswith("throughput_") and not name.endswith(("_shapes", "_8b")) and name != "quickstart"
    ],
)
def test_every_experiment_on_the_zoo_is_small_without_a_gpu(experiment):
    """Two cores make about 700 tokens a second with drafts: a few minutes are 100,000 tokens."""
    num_tokens = 0
    for cell in compose_plan([f"experiment={experiment}", "backend.device=cpu"]).cells:
        workload = cell.workload
        num_requests = workload.num_requests or (workload.num_prompts or 80) * (workload.num_turns or 2)
        num_tokens += num_requests * cell.decoding.max_new_tokens
    assert num_tokens <= 100_000


def test_the_demo_takes_less_than_four_minutes_on_two_idle_cores():
    """Tokens a second there, measured with one request and with a batch; loading and the report take half a minute."""
    seconds, loads = 0.0, set()
    for cell in plan_of("quickstart").cells:
        num_requests = cell.workload.num_prompts * cell.workload.num_turns
        loads.add(cell.backend.max_concurrency)
        seconds += num_requests * cell.decoding.max_new_tokens / (90 if cell.backend.max_concurrency == 1 else 400)
    assert min(loads) == 1 < max(loads) and seconds < 180


def test_pairs_without_meaning_are_skipped_with_the_reason():
    plan = plan_of("drafting_by_verification")
    pairs = {(values["drafting.sampling"], values["verification"]) for values, _ in plan.skipped}
    assert {("sampled", "coupled"), ("coupled", "block"), ("greedy", "pr35461"), ("greedy", "greedy")} <= pairs
    assert len(pairs) == 9 and all(reason for _, reason in plan.skipped)


@pytest.mark.parametrize(
    ("experiment", "shape", "num_requests", "num_tokens", "profiles"),
    [
        ("throughput_glm47_mtp", "glm47_flash", 256, 3, ["round_mtp_k3"]),
        ("throughput_llama3_8b", "llama3_8b", 256, 3, ["round_eagle_k3"]),
        ("throughput_qwen3_8b", "qwen3_8b", 256, 5, ["round_eagle3_k5"]),
        ("pr35461_llama3_eagle_shapes", "llama3_8b", 1000, 4, ["vllm_llama3_8b_eagle_k4"]),
        ("pr35461_qwen3_eagle3_shapes", "qwen3_8b", 1000, 3, ["vllm_qwen3_8b_eagle3_k3"]),
        (
            "pr35461_glm47_mtp_shapes",
            "glm47_flash",
            1000,
            3,
            ["derived_glm47_mtp_strict_k3", "derived_glm47_mtp_probabilistic_k3"],
        ),
    ],
)
def test_a_throughput_experiment_fixes_every_length_and_says_what_is_random(
    experiment, shape, num_requests, num_tokens, profiles
):
    baseline, *drafted = compose_plan([f"experiment={experiment}"]).cells
    for item in (baseline, *drafted):
        assert (item.target.shape, item.target.weights) == (shape, Weights.random)
        assert (item.workload.num_requests, item.workload.num_turns, item.workload.prompt_tokens) == (
            num_requests,
            1,
            128,
        )
        assert (item.decoding.max_new_tokens, item.decoding.ignore_eos, item.decoding.temperature) == (256, True, 1.0)
        assert (item.backend.dtype, item.backend.max_concurrency) == ("bfloat16", 16)
    assert baseline.is_baseline and labels(baseline) == ("weights: random",)
    assert [item.verification.rule.profile.value for item in drafted] == profiles
    for item in drafted:
        assert item.drafter.weights is Weights.random and item.drafting.num_speculative_tokens == num_tokens
        assert labels(item) == ("synthetic", "weights: random")
