"""Requests with sampling parameters of their own in one batch: each gets the tokens that it gets alone."""

from dataclasses import replace
from functools import cache

import pytest

from harness.config.sampling import SamplingSettings
from harness.engine.request import Request
from kernels.contract import DraftSampling, VerificationMethod
from tests.support.tiny_engines import KINDS, tiny_engine, tiny_requests
from tests.support.toy_markov import outputs

OWN = (
    None,
    SamplingSettings(0.0),
    SamplingSettings(1.3),
    SamplingSettings(1.0, top_k=4),
    None,
    SamplingSettings(0.9, top_p=0.7, min_p=0.05),
    SamplingSettings(0.5),
)
"""More than there are slots, so that a slot is filled again with other parameters."""


def requests() -> list[Request]:
    asked = tiny_requests(len(OWN), num_tokens=5)
    return [replace(request, sampling=own) for request, own in zip(asked, OWN, strict=True)]


@cache
def tokens_alone(kind: str, graphs: bool) -> dict[str, tuple[int, ...]]:
    """Each request by itself, in an engine whose own parameters are those of the request."""
    found = {}
    for request in requests():
        options = {} if request.sampling is None else {"sampling": request.sampling}
        found |= outputs(tiny_engine(kind, graphs=graphs, **options), [replace(request, sampling=None)])
    return found


@pytest.mark.parametrize("graphs", [False, True], ids=["eager", "as graphs"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_request_in_a_mixed_batch_gets_the_tokens_it_gets_alone(kind: str, graphs: bool):
    """Would catch parameters of the slot's last request, of the default or of a neighbour, in drafts or target."""
    together = outputs(tiny_engine(kind, graphs=graphs, is_mixed=True), requests())
    assert together == tokens_alone(kind, False)
    assert len(set(together.values())) > 1


def test_a_request_alone_gets_the_same_tokens_in_steps_of_fixed_sizes():
    assert tokens_alone("eagle3", True) == tokens_alone("eagle3", False)


def test_the_next_request_of_a_slot_takes_the_default_again():
    """Would catch parameters that stay behind; the record says which requests had their own."""
    engine = tiny_engine("eagle", is_mixed=True)
    asked = tiny_requests(1, num_tokens=5)
    before = outputs(engine, asked)
    changed = engine.run([replace(asked[0], sampling=SamplingSettings(1.3, top_k=2))], lambda answer: None).requests[0]
    assert changed.output_token_ids != before[asked[0].prompt_id]
    assert changed.sampling == {"temperature": 1.3, "top_k": 2, "top_p": 1.0, "min_p": 0.0}
    again = engine.run(asked, lambda answer: None).requests[0]
    assert again.output_token_ids == before[asked[0].prompt_id] and again.sampling is None


def test_an_engine_for_plain_requests_refuses_one_that_cuts():
    """Would catch truncation ignored on a GPU, whose kernels were promised that nothing is cut."""
    asked = [replace(request, sampling=SamplingSettings(top_k=3)) for request in tiny_requests(1, num_tokens=5)]
    with pytest.raises(ValueError, match="truncates"):
        tiny_engine("none").run(asked, lambda answer: None)


@pytest.mark.parametrize("method", [VerificationMethod.coupled, VerificationMethod.block])
def test_other_draws_take_the_parameters_of_the_request_too(method: VerificationMethod):
    sampling = DraftSampling.coupled if method is VerificationMethod.coupled else DraftSampling.sampled
    asked = requests()
    together = outputs(tiny_engine("eagle3", draft_sampling=sampling, method=method, is_mixed=True), asked)
    request = asked[5]
    engine = tiny_engine("eagle3", draft_sampling=sampling, method=method, sampling=request.sampling)
    assert together[request.prompt_id] == outputs(engine, [replace(request, sampling=None)])[request.prompt_id]
