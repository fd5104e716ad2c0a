"""A NaN that one request met must not reach the next request in its slot.

Masking does not keep it out: a masked key has weight 0, and 0 times NaN is NaN.
"""

import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.engine.engine import Engine
from harness.engine.request import Request
from harness.engine.runner import EagerRunner
from harness.models.slot_cache import SlotCache
from tests.support.tiny_engines import tiny_engine
from tests.support.tiny_models import random_target

POISON = 9
"""A token whose embedding is NaN."""


def make_engine() -> Engine:
    target = random_target(seed=3)
    with torch.no_grad():
        target.causal_lm.model.embed_tokens.weight[POISON] = float("nan")
    return tiny_engine(
        "eagle", target=target, num_slots=2, capacity=48, max_new_tokens=6, sampling=SamplingSettings(1.0)
    )


def request(name: str, tokens: tuple[int, ...]) -> Request:
    return Request(name, "tiny", 0, 0, len(name), tokens)


POISONED = request("poisoned", (12, *[POISON] * 25))
SHORT = request("short one", (12, 14, 11))
LONG = request("long", tuple(10 + index % 7 for index in range(30)))


def short_output(engine: Engine) -> tuple[int, ...]:
    """The short request in slot 0 beside a longer one, so that its slot is read beyond its own length."""
    run = engine.run([SHORT, LONG], lambda record: None)
    return next(record.output_token_ids for record in run.requests if record.prompt_id == SHORT.prompt_id)


@pytest.fixture(autouse=True)
def prompts_are_prefilled_one_by_one(monkeypatch):
    """Or the short prompt's padding would overwrite what the slot held."""
    monkeypatch.setattr(EagerRunner, "max_prefill_tokens", 32)


def test_the_next_request_of_the_slot_is_unchanged():
    clean = short_output(make_engine())
    engine = make_engine()
    assert engine.run([POISONED], lambda record: None).num_invalid > 0
    assert short_output(engine) == clean


def test_the_control_without_clearing_fails(monkeypatch):
    """Without clearing, the same run must show the damage; else the test above shows nothing."""
    monkeypatch.setattr(SlotCache, "clear", lambda self, rows: None)
    clean = short_output(make_engine())
    engine = make_engine()
    engine.run([POISONED], lambda record: None)
    assert short_output(engine) != clean
