"""The built-in target reasons and answers in JSON: every policy through the local backend, with real drafters."""

import pytest

pytest.importorskip("llguidance", reason="needs the extra grammar")
pytest.importorskip("jsonschema", reason="needs the extra grammar")

from dataclasses import replace

from experiments import replay as replay_command
from experiments.zoo.reasoning_prompts import FILE, reasoning_prompts
from harness.analysis.reasoning_sums import boundary_values
from harness.analysis.results import read_results
from harness.backends.local import local
from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.constraint import AnswerDrafts, GrammarKind, PolicyKind, constraint_of
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.guarantee import guarantee
from harness.config.identity import determinants
from harness.config.sections import DecodingConfig
from harness.config.workload import Layout, WorkloadConfig
from harness.report.missing_values import masked_text
from harness.runner import run
from harness.workload.conversations import Conversation, conversations, load_prompts
from harness.workload.prompt import Prompt
from kernels.contract import Guarantee, VerificationMethod
from kernels.verification import Verification

WORKLOAD = WorkloadConfig(path=str(FILE), layout=Layout.plain, categories=["compare", "classification"], num_prompts=3)


@pytest.fixture(scope="module")
def store() -> ModelStore:
    return ModelStore()


def cell(
    policy: PolicyKind | str, drafter: DrafterKind = DrafterKind.eagle3, graphs: bool | None = None, **changes
) -> CellConfig:
    if policy not in (PolicyKind.free_text, PolicyKind.none):
        changes.setdefault("drafts", AnswerDrafts.masked)
    return CellConfig(
        drafter=drafter_of(drafter),
        drafting=DraftingConfig(4),
        decoding=changes.pop("decoding", DecodingConfig(temperature=0.0, max_new_tokens=80)),
        verification=changes.pop("verification", Verification(VerificationMethod.block)),
        workload=WORKLOAD,
        constraint=constraint_of(policy, **changes),
        backend=Local(device="cpu", dtype="float32", max_concurrency=3, graphs=graphs),
    )


def play(config: CellConfig, store: ModelStore, played=None):
    backend = LocalBackend(config, store)
    played = played or conversations(load_prompts(config.workload, config.seed), config.workload, config.seed)
    run = backend.generate(played)
    return {item.prompt_id: item for item in run.requests}, run, backend.facts().fallbacks


@pytest.fixture(scope="module")
def alone(store):
    """One token at a time, under the grammar."""
    return play(cell(PolicyKind.mask, DrafterKind.none), store)[0]


def test_the_prompts_are_what_their_script_writes():
    assert FILE.read_text(encoding="utf-8") == reasoning_prompts()


@pytest.mark.parametrize(
    ("policy", "drafter", "graphs"),
    [
        (PolicyKind.commit, DrafterKind.eagle3, None),
        (PolicyKind.mask, DrafterKind.ngram, None),
        (PolicyKind.mask, DrafterKind.eagle3, True),
        (PolicyKind.commit, DrafterKind.ngram, True),
    ],
    ids=["commit, EAGLE-3", "mask, n-gram", "mask, EAGLE-3, in parts", "commit, n-gram, in parts"],
)
def test_a_lossless_policy_gives_the_text_of_one_token_at_a_time(policy, drafter, graphs, alone, store):
    found, _, fallbacks = play(cell(policy, drafter, graphs), store)
    assert any("no step is launched ahead" in note for note in fallbacks) == bool(graphs)
    assert {key: item.output_token_ids for key, item in found.items()} == {
        key: item.output_token_ids for key, item in alone.items()
    }
    assert all(item.answer_is_valid for item in found.values())
    assert all(item.finish_reason.value == "grammar" for item in found.values())


def test_late_doubles_the_beginning_of_the_answer(alone, store):
    found, _, _ = play(cell(PolicyKind.late), store)
    assert not all(item.answer_is_valid for item in found.values())
    for key, item in found.items():
        same = item.output_token_ids[: item.num_reasoning_tokens]
        assert same == alone[key].output_token_ids[: alone[key].num_reasoning_tokens]


def test_a_policy_of_the_users_own_rules_the_round_in_which_reasoning_ends(alone, store):
    """Would catch one that runs as a built-in policy, or without its own settings."""
    cuts, keeps = (play(cell("tests.support.own_policies:Switched", cuts=cuts), store)[0] for cuts in (True, False))
    assert {key: item.output_token_ids for key, item in cuts.items()} == {
        key: item.output_token_ids for key, item in alone.items()
    }
    assert not all(item.answer_is_valid for item in keeps.values())


def test_policy_none_is_judged_and_watched_afterwards_only(alone, store):
    found, run, _ = play(cell(PolicyKind.none), store)
    assert all(item.finish_reason.value == "eos" and item.answer_is_valid for item in found.values())
    for key, item in found.items():
        assert item.num_reasoning_tokens == alone[key].num_reasoning_tokens
        free = [each.num_free_tokens for each in item.rounds]
        assert free[1] == 4 and free[-1] == 0 and all(each.host_us == 0 for each in item.rounds)
    sums = boundary_values(run.requests)
    assert sums["boundary_num_valid"].sum() == 3 and sums["boundary_host_us_after"].sum() == 0
    emitted = sum(sums[f"boundary_num_tokens_{phase}"].sum() for phase in ("before", "boundary", "after"))
    assert emitted == sum(len(item.output_token_ids) for item in found.values())


def test_without_a_policy_nothing_of_it_is_recorded(store):
    found, run, _ = play(cell(PolicyKind.free_text, decoding=DecodingConfig(temperature=0.0, max_new_tokens=8)), store)
    assert all(item.num_reasoning_tokens is None and item.answer_is_valid is None for item in found.values())
    assert boundary_values(run.requests) == {}


def test_an_answer_without_reasoning_follows_a_regular_expression(store):
    config = cell(
        PolicyKind.mask, DrafterKind.ngram, parser="none", kind=GrammarKind.regex, grammar=r"[0-9]{3} (yes|no)"
    )
    found, _, _ = play(config, store, [Conversation(Prompt("digits", "test", ("Say something.",)), 0, 7)])
    assert found["digits"].num_reasoning_tokens == 0 and found["digits"].answer_is_valid


def test_a_prompt_whose_schema_cannot_be_followed_is_left_out_and_said(store):
    hard = Prompt("hard", "test", ("Say something.",), '{"type": "array", "uniqueItems": true}')
    easy = Prompt("easy", "test", ("Say something.",), '{"type": "integer"}')
    config = cell(PolicyKind.mask, DrafterKind.ngram, decoding=DecodingConfig(max_new_tokens=4))
    _, run, fallbacks = play(config, store, [Conversation(hard, 0, 1), Conversation(easy, 0, 2)])
    assert run.num_skipped_turns == 0 and [item.prompt_id for item in run.requests] == ["easy"]
    (note,) = [note for note in fallbacks if "schema llguidance cannot follow" in note]
    assert note.startswith("1 prompts") and "prompt hard: " in note and "uniqueItems" in note


def test_nothing_but_unusable_schemas_is_not_called_a_matter_of_length(store):
    """Would catch the advice to take shorter prompts where a schema is at fault."""
    hard = Conversation(Prompt("hard", "test", ("Say something.",), '{"type": "array", "uniqueItems": true}'), 0, 1)
    long = Conversation(Prompt("long", "test", ("word " * 2000,), '{"type": "integer"}'), 0, 1)
    backend = LocalBackend(cell(PolicyKind.mask, DrafterKind.ngram), store)
    with pytest.raises(ValueError, match=r"found none among 1; 1 have an unusable schema \(prompt hard: .*uniqueItems"):
        backend.prepare([hard])
    with pytest.raises(ValueError, match=r"found none among 2; 1 are longer: .*; 1 have an unusable schema"):
        backend.prepare([hard, long])


def test_a_grammar_for_every_answer_that_cannot_be_followed_is_refused_at_once(store):
    with pytest.raises(ValueError, match=r"constraint\.grammar: .*unclosed character class.*; found '\[0-9'"):
        LocalBackend(cell(PolicyKind.mask, kind=GrammarKind.regex, grammar="[0-9"), store)


def test_a_prompt_without_a_schema_is_refused(store):
    plain = Conversation(Prompt("plain", "test", ("Say something.",)), 0, 7)
    with pytest.raises(ValueError, match="expected a JSON schema, found none"):
        play(cell(PolicyKind.mask), store, [plain])


def test_a_prompt_without_a_schema_is_refused_before_another_one_runs(store):
    """Would catch a run that ends when its second prompt's turn comes, after others have run for an hour."""
    first = Conversation(Prompt("first", "test", ("Say something.",), '{"type": "integer"}'), 0, 7)
    plain = Conversation(Prompt("plain", "test", ("Say something.",)), 0, 7)
    with pytest.raises(ValueError, match="prompt plain: expected a JSON schema, found none"):
        LocalBackend(cell(PolicyKind.mask), store).fit_slots([first, plain])


@pytest.mark.parametrize(
    ("policy", "top_k", "expected"),
    [
        (PolicyKind.mask, 5, Guarantee.lossless),
        (PolicyKind.commit, 0, Guarantee.lossless),
        (PolicyKind.commit, 5, Guarantee.lossy),
        (PolicyKind.late, 0, Guarantee.biased),
        (PolicyKind.free_text, 5, Guarantee.lossless),
    ],
    ids=["mask with top-k", "commit", "commit with top-k", "late", "no policy"],
)
def test_what_a_policy_promises(policy, top_k, expected):
    config = replace(cell(policy), decoding=DecodingConfig(top_k=top_k))
    assert guarantee(config) is expected
    assert guarantee(replace(config, drafter=drafter_of("none"))) is Guarantee.lossless


def test_a_policy_is_part_of_what_identifies_a_cell():
    found = [determinants(cell(policy)) for policy in PolicyKind]
    assert all(first != second for number, first in enumerate(found) for second in found[:number])


def test_policies_that_are_compared_share_an_engine(store):
    """Would catch a cell that pays for another place of its graphs and caches, and memory that is counted twice."""
    played = conversations(load_prompts(WORKLOAD, 0), WORKLOAD, 0)
    cells = [cell(policy, graphs=True) for policy in PolicyKind]
    cells += [cell(PolicyKind.mask, DrafterKind.ngram, graphs=True), cell(PolicyKind.mask, graphs=False)]
    backends = [LocalBackend(config, store) for config in cells]
    LocalBackend.prepare_together(backends, played)
    engines = [backend.engine_of_cell.engine() for backend in backends]
    assert len({id(engine) for engine in engines[1:5]}) == 1
    assert len({id(engine) for engine in engines}) == 4
    # a cell whose requests are not checked for the end of reasoning has the plain engine
    assert [engine.settings.constrained for engine in engines] == [False, True, True, True, True, True, True]
    assert backends[1].engine_of_cell.engine() is engines[1] and backends[-1].engine_of_cell.engine() is not engines[-1]
    outputs = [{item.prompt_id: item for item in backend.generate(played).requests} for backend in backends[1:5]]
    anew = [play(config, store, played)[0] for config in cells[1:5]]
    for together, apart in zip(outputs, anew, strict=True):
        assert {key: item.output_token_ids for key, item in together.items()} == {
            key: item.output_token_ids for key, item in apart.items()
        }


def test_memory_of_a_shared_engine_is_counted_once(store, monkeypatch):
    played = conversations(load_prompts(WORKLOAD, 0), WORKLOAD, 0)
    counted = []
    monkeypatch.setattr(local, "check_memory", lambda cells, device: counted.append(len(cells)))
    for graphs in (True, False):
        cells = [cell(policy, graphs=graphs) for policy in (PolicyKind.none, PolicyKind.commit, PolicyKind.mask)]
        LocalBackend.prepare_together([LocalBackend(config, store) for config in cells], played)
    assert counted == [1, 3]


def test_terms_are_kept_of_rounds_without_masks_and_the_report_says_so(tmp_path, capsys):
    """With reasoning before the answer and without it. Would catch a run that ends in an error after all its cells are
    measured and whose report can never be made, and numbers of some rounds that stand for all."""
    settings = ["workload=reasoning_json", "drafter=draft_model", "constraint=commit", "constraint.parser=zoo,none"]
    settings += ["workload.num_prompts=2", "decoding.max_new_tokens=60", "measurement.round_terms=true"]
    settings += ["measurement.baseline=false", "measurement.num_warmup_requests=0", f"output.folder={tmp_path}"]
    run(*settings)
    results = read_results(tmp_path)
    partly, never = results.recording.cells
    assert not results.unreadable and partly.num_masked_drafts and len(partly.terms.request)
    assert never.num_masked_drafts and not len(never.terms.request)
    page = (tmp_path / "report.md").read_text()
    assert all(f"- terms: {masked_text(item)}" in page for item in (partly, never))
    capsys.readouterr()
    assert replay_command.main([str(tmp_path)]) == 0
    told = capsys.readouterr().err
    assert all(f"note: {masked_text(item)}: " in told for item in (partly, never))
    assert replay_command.main([str(tmp_path / "cells" / f"{never.cell.record.cell_id}.json.gz")]) == 2
    assert "verified under a grammar's masks" in capsys.readouterr().err
