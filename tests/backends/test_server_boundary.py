"""The end of reasoning on a server: what is asked of it, and what its answers show of drafts before and after."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from harness.backends.server.answer_reasoning import with_reasoning
from harness.config.constraint import GrammarKind, PolicyKind, constraint_of
from harness.config.schema import SettingsError
from harness.config.workload import WorkloadConfig
from harness.engine.constraint.answer_check import AnswerCheck
from harness.records.request import FinishReason, RequestRecord, RoundRecord
from harness.runner.plan.compose import compose_plan
from tests.support.scripted_server import END_THINK, ScriptedServer
from tests.support.server_cells import DEPTH, cell_on, run_on

ON_VLLM = {"backend": "server", "server": "vllm", "workload": "reasoning_json", "constraint": "mask"}


@pytest.mark.parametrize("policy", [PolicyKind.none, PolicyKind.mask])
def test_a_server_is_asked_for_the_schema_and_its_answers_are_judged(tmp_path, policy):
    """Would catch a reference that follows a grammar too, and an end of reasoning that is not found."""
    with ScriptedServer(depth=DEPTH, reasoning_tokens=4) as server:
        workload = WorkloadConfig(path="builtin:reasoning_json.jsonl", num_prompts=4, num_turns=1)
        cell = replace(cell_on(server), workload=workload, constraint=constraint_of(policy))
        (record,), frame = run_on(tmp_path, cell)
    asked = [body.get("structured_outputs") for body in server.bodies]
    assert all((item is not None and "properties" in item["json"]) is (policy is PolicyKind.mask) for item in asked)
    ended = [item for item in record.requests if END_THINK in item.output_token_ids]
    assert not record.failures and ended
    for request in record.requests:
        is_ended = request in ended
        assert request.num_reasoning_tokens == (4 if is_ended else None)
        assert request.answer_is_valid is (False if is_ended else None)
        assert all(item.num_free_tokens <= item.num_proposed_tokens for item in request.rounds)
    row, drafted = frame.iloc[0], sum(item.num_draft_tokens for request in record.requests for item in request.rounds)
    assert row["answer_valid_rate"] == 0 and drafted
    assert row["num_draft_tokens"] == drafted and 0 < row["acceptance_rate_in_reasoning"] <= 1


def request_of(*rounds, tokens):
    records = [
        RoundRecord(proposed, proposed, accepted, accepted + 1, None, 1.0 + place, 1.0)
        for place, (proposed, accepted) in enumerate(rounds)
    ]
    return RequestRecord("a", "", 0, 0, 1, 3, tokens, FinishReason.eos, 0.0, tuple(records))


@pytest.mark.parametrize(
    ("accepted", "free", "reasoning"),
    [(3, [0, 2, 0], 3), (1, [0, 3, 0], 3)],
    ids=["the marker was drafted and accepted", "the marker took the place of a draft"],
)
def test_draft_tokens_are_told_apart_at_the_marker(accepted, free, reasoning):
    """Would catch accepted answer tokens that are counted as reasoning, and the other way round."""
    check = AnswerCheck(constraint_of("mask", kind=GrammarKind.regex, grammar=".*"), Tokenizer())
    tokens = (9, 8, END_THINK, 20, 21, 30) if accepted == 3 else (9, 8, END_THINK, 30)
    found = with_reasoning(request_of((0, 0), (3, accepted), (3, 0), tokens=tokens), check, ".*")
    assert [item.num_free_tokens for item in found.rounds] == free
    assert found.num_reasoning_tokens == reasoning and found.answer_is_valid


class Tokenizer(SimpleNamespace):
    """Has the marker alone."""

    def get_vocab(self):
        return {"</think>": END_THINK}

    def decode(self, token_ids, **_):
        return " ".join(map(str, token_ids))


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        ({"constraint": "commit"}, "constraint: expected free_text or none or mask"),
        ({"server": "sglang"}, "constraint: expected free_text with server=sglang"),
        ({"constraint.parser": "harmony"}, "parser zoo, qwen3, glm, none"),
        ({"server.command": "'serve {target}'"}, r"server\.command: expected \{reasoning\}"),
    ],
)
def test_what_a_server_cannot_do_is_refused_before_it_starts(overrides, expected):
    """Would catch answers without a grammar that are recorded as held to one."""
    with pytest.raises(SettingsError, match=expected):
        compose_plan([f"{key}={value}" for key, value in {**ON_VLLM, **overrides}.items()])
    assert compose_plan([f"{key}={value}" for key, value in ON_VLLM.items()]).cells
