"""guides/drafter.md, followed as it stands there.

Would catch a guide that no longer fits the code, and a drafter of its kind that changes the output.
"""

import importlib
import sys

import pytest

from harness.analysis import load_results
from harness.config.drafter import drafter_of
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_logits import AS_DRAFTED
from harness.drafters.registry import DrafterSetup
from kernels.contract import DraftSampling, VerificationMethod
from tests.engine.test_engine_law import FALSE_ALARM, NUM_REQUESTS, NUM_TOKENS, fit
from tests.support.guide_pages import follow, written
from tests.support.toy_markov import LONGEST_PROMPT, ToyTarget, outputs, toy_engine, toy_requests, transitions

TARGET = transitions(3, seed=12)


def test_its_drafter_runs_and_changes_no_answer_at_temperature_0(tmp_path):
    (said,) = follow("drafter.md", tmp_path)
    assert "my_drafters:Followers" in said
    rows = load_results(tmp_path / "results" / "runs" / "followers")
    drafted = rows[rows["drafter"] == "my_drafters:Followers"]
    assert len(drafted) == 4 and (drafted["num_accepted_tokens"] > 0).all()
    cold = drafted[drafted["temperature"] == 0]
    assert (cold["num_answers_compared"] == 8).all() and (cold["num_other_answers"] == 0).all()


def test_its_drafter_keeps_the_law(tmp_path, monkeypatch: pytest.MonkeyPatch):
    """Would catch logits that are not those that its tokens were drawn from."""
    list(written("drafter.md", tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_drafters", raising=False)
    made = importlib.import_module("my_drafters").FollowersDrafter
    num_slots, sampling = 1500, DraftSampling.sampled
    shape = DrafterShape(num_slots, LONGEST_PROMPT + 20, 3, len(TARGET))
    setup = DrafterSetup(drafter_of("none"), ToyTarget(TARGET), None, sampling, shape, AS_DRAFTED)
    engine = toy_engine(
        TARGET, TARGET, VerificationMethod.block, sampling, num_speculative_tokens=3, max_new_tokens=NUM_TOKENS,
        num_slots=num_slots, drafter=made(setup, 0.05),
    )  # fmt: skip
    assert fit(outputs(engine, toy_requests(NUM_REQUESTS)).values(), TARGET, NUM_TOKENS) > FALSE_ALARM
