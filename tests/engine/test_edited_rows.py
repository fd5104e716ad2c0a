"""Penalties, biases and min_tokens in the engine: greedy tokens of every way of drafting beside a plain loop.

The loop asks transformers for the logits of the whole text, token by token, and changes them as vLLM's V1 sampler does.
"""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from harness.config.sampling import SamplingSettings
from harness.config.tree import DynamicTree
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_logits import Caching
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.draft_tree import DraftTree
from harness.drafters.dynamic_tree import DynamicTreeShape
from harness.engine.token_logprobs import LogprobsSettings
from harness.records.request import FinishReason
from kernels.contract import DraftSampling, SiblingDraws, VerificationMethod
from kernels.methods import TreeMethod
from tests.support.tiny_engines import KINDS, engine_over, prompts_of, requests_of, tiny_engine
from tests.support.tiny_models import VOCAB_SIZE, random_causal_lm, random_target

NUM_NEW, ENDS = 12, frozenset({20, 44})
PENALTIES = SamplingSettings(0.0, repetition_penalty=1.3, presence_penalty=0.4, frequency_penalty=0.3)
SETTINGS = {
    "all": replace(PENALTIES, min_tokens=6, logit_bias="7:1.5/20:4/13:-2"),
    "repetition": SamplingSettings(0.0, repetition_penalty=1.8),
    "presence": SamplingSettings(0.0, presence_penalty=2.0),
    "frequency": SamplingSettings(0.0, frequency_penalty=0.9),
    "bias": SamplingSettings(0.0, logit_bias="20:40"),
    "min_tokens": SamplingSettings(0.0, min_tokens=9, logit_bias="20:30"),
    "none": SamplingSettings(0.0),
}
PROMPTS = dict(zip(SETTINGS, prompts_of([5, 9, 3, 6, 12, 4, 7]), strict=True))


@cache
def causal_lm():
    return random_causal_lm(seed=3, num_hidden_layers=5)


@torch.inference_mode()
def plain_decoding(prompt: list[int], settings: SamplingSettings) -> list[int]:
    """Greedy tokens of a request, one forward of the whole text a token."""
    output: list[int] = []
    while len(output) < NUM_NEW and not (output and output[-1] in ENDS):
        logits = causal_lm()(torch.tensor([[*prompt, *output]])).logits[0, -1].float().numpy().copy()
        if len(output) < settings.min_tokens:
            logits[list(ENDS)] = -np.inf
        for token, bias in settings.biases.items():
            logits[token] += bias
        for token in {*prompt, *output}:
            logits[token] *= 1 / settings.repetition_penalty if logits[token] > 0 else settings.repetition_penalty
        for token in set(output):
            logits[token] -= settings.frequency_penalty * output.count(token) + settings.presence_penalty
        output.append(int(logits.argmax()))
    return output


@cache
def wanted() -> dict[str, list[int]]:
    return {name: plain_decoding(PROMPTS[name], settings) for name, settings in SETTINGS.items()}


def engine(kind: str, **options):
    options = {"capacity": 64, "max_new_tokens": NUM_NEW, "sampling": SETTINGS["all"], **options}
    return tiny_engine(kind, num_slots=3, eos_token_ids=ENDS, num_fixed_tokens=9, **options)


def requests():
    """One for each of the settings; the first has the engine's own."""
    asked = zip(requests_of(PROMPTS.values()), SETTINGS.items(), strict=True)
    return [
        replace(request, prompt_id=name, sampling=None if name == "all" else settings)
        for request, (name, settings) in asked
    ]


def tokens(kind: str, **options) -> dict[str, list[int]]:
    run = engine(kind, **options).run(requests(), lambda answer: None)
    assert run.num_invalid == 0
    return {record.prompt_id: list(record.output_token_ids) for record in run.requests}


def test_the_settings_change_every_answer():
    """Would catch settings so weak that the tests below say nothing."""
    for name, settings in SETTINGS.items():
        edited, plain = wanted()[name], plain_decoding(PROMPTS[name], SETTINGS["none"])
        assert (edited == plain) == (not settings.edits), name
    assert len(wanted()["min_tokens"]) == 10 and wanted()["bias"] == [20]


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "fixed sizes"])
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_plain_decoding(kind: str, graphs: bool):
    """Requests with other settings share a batch, and slots are taken again. Would catch penalties that do not count
    the drafts before a position, or count rejected ones, an end that min_tokens forgets along a draft, settings of the
    slot's last request, and prompts counted as output."""
    method = VerificationMethod.greedy if kind == "eagle" else None
    assert tokens(kind, graphs=graphs, num_speculative_tokens=3, method=method) == wanted()


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "fixed sizes"])
def test_drafts_of_the_target_itself_are_accepted_as_far_as_penalties_let_them(graphs: bool):
    """Its drafts repeat tokens, which a penalty of the round's start lets through. Would catch that penalty at every
    position."""
    shape = DrafterShape(3, 64, 3, VOCAB_SIZE)
    model = random_target(seed=3, num_hidden_layers=5)
    drafter = DraftModelDrafter(model, DraftSampling.greedy, shape, Caching())
    options = {"sampling": SETTINGS["all"], "eos_token_ids": ENDS, "num_fixed_tokens": 9, "graphs": graphs}
    run = engine_over(random_target(seed=3, num_hidden_layers=5), drafter, shape, NUM_NEW, **options).run(
        requests(), lambda answer: None
    )
    assert {record.prompt_id: list(record.output_token_ids) for record in run.requests} == wanted()
    num_accepted = {item.prompt_id: sum(each.num_accepted_tokens for each in item.rounds) for item in run.requests}
    assert num_accepted["none"] >= 8 > num_accepted["presence"] > 0


@pytest.mark.parametrize("graphs", [False, True], ids=["operation by operation", "fixed sizes"])
@pytest.mark.parametrize(
    ("kind", "tree"),
    [
        ("eagle3", DraftTree([-1, -1, 0, 0, 1, 2], SiblingDraws.distinct)),
        ("ngram", DynamicTreeShape(DynamicTree(6, 3, 3))),
    ],
    ids=["fixed", "dynamic"],
)
def test_nodes_of_trees_count_those_above_them(kind: str, tree, graphs: bool):
    """Would catch a node that counts its siblings, or the nodes before it in the list."""
    options = {"tree": tree, "method": TreeMethod.recursive, "draft_sampling": DraftSampling.greedy}
    assert tokens(kind, graphs=graphs, **options) == wanted()


@pytest.mark.parametrize("is_processed", [False, True], ids=["raw", "processed"])
def test_raw_logprobs_are_of_the_target_and_processed_ones_of_the_edited_rows(is_processed: bool):
    """Would catch raw log-probabilities of rows with penalties, as vLLM's are of rows without."""
    settings, prompt = SETTINGS["all"], PROMPTS["all"]
    run = engine("eagle3", logprobs=LogprobsSettings(2, is_processed)).run(requests()[:1], lambda answer: None)
    (record,) = run.requests
    assert list(record.output_token_ids) == wanted()["all"]
    with torch.inference_mode():
        rows = causal_lm()(torch.tensor([[*prompt, *record.output_token_ids]])).logits[0, len(prompt) - 1 : -1]
    plain = rows.log_softmax(1).gather(1, torch.tensor(record.output_token_ids)[:, None])[:, 0]
    expected = torch.zeros(len(plain)) if is_processed else plain
    assert settings.temperature == 0
    torch.testing.assert_close(torch.tensor(record.logprobs.token), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("own", [False, True], ids=["the engine's", "the request's own"])
def test_drafts_of_an_end_that_is_held_back_are_evidence(own):
    """Would catch rounds whose rejections are left out, so that acceptance under min_tokens reads too high."""
    held = SamplingSettings(0.0, min_tokens=64)
    given = {"capacity": 64, "max_new_tokens": NUM_NEW, "eos_token_ids": frozenset(range(0, VOCAB_SIZE, 2))}
    sampling = SamplingSettings(0.0) if own else held
    drafting = tiny_engine("draft_model", num_slots=3, num_fixed_tokens=VOCAB_SIZE, sampling=sampling, **given)
    asked = [replace(each, sampling=held if own else None) for each in requests()]
    found = drafting.run(asked, lambda answer: None).requests
    # the last ones meet the length limit
    rounds = [item for record in found for item in record.rounds[:-3]]
    assert any(item.num_proposed_tokens for item in rounds)
    assert all(item.num_draft_tokens == item.num_proposed_tokens for item in rounds)


def test_an_answer_ends_behind_the_least_number_of_tokens():
    """Would catch an end that is cut away where it may not come yet, or one that never comes."""
    (record,) = engine("eagle3", sampling=SETTINGS["min_tokens"]).run(requests()[5:6], lambda answer: None).requests
    assert list(record.output_token_ids) == wanted()["min_tokens"]
    assert record.finish_reason is (FinishReason.eos if record.output_token_ids[-1] in ENDS else FinishReason.length)
    assert not ENDS & set(record.output_token_ids[:9])


def test_a_request_that_the_engine_has_no_room_for_is_refused():
    """Would catch edits that are left out without a word."""
    plain = tiny_engine("none", target=random_target(seed=3, num_hidden_layers=5), sampling=SamplingSettings(0.0))
    with pytest.raises(ValueError, match="expected none that changes logits"):
        plain.run([replace(requests()[1], sampling=SETTINGS["presence"])], lambda answer: None)
    with pytest.raises(ValueError, match="at most 1 tokens with a bias"):
        tiny_engine("none", sampling=SETTINGS["presence"]).run(
            [replace(requests()[1], sampling=replace(SETTINGS["bias"], logit_bias="1:1/2:1"))], lambda answer: None
        )
