"""What the local backend makes of conversations: room, turns that do not fit, memory."""

import gc
import math
from dataclasses import replace

import pytest
import torch

from harness.backends.local import local
from harness.backends.local.local import ON_A_CPU, LocalBackend
from harness.backends.local.model_store import ModelStore, Wish
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.sampling import GivenSampling
from harness.config.sections import DecodingConfig
from harness.config.workload import TooLong, WorkloadConfig
from harness.models.target import TargetModel
from harness.records.request import FinishReason
from harness.runner.plan.compose import compose_plan
from harness.workload.chat import decode_answer, encode_prompt
from harness.workload.conversations import Conversation
from harness.workload.prompt import Prompt
from kernels.contract import VerificationMethod
from kernels.verification import Verification
from tests.support.tiny_shapes import GLM, shape_folder


@pytest.fixture(scope="module")
def store() -> ModelStore:
    return ModelStore()


def backend(store, *, too_long=TooLong.skip, max_length=None, max_new_tokens=8, drafter=DrafterKind.none, stop=()):
    cell = CellConfig(
        drafter=drafter_of(drafter),
        decoding=DecodingConfig(temperature=0.0, max_new_tokens=max_new_tokens, ignore_eos=True, stop=[*stop]),
        workload=WorkloadConfig(too_long=too_long),
        backend=Local(device="cpu", dtype="float32", max_concurrency=3, max_length=max_length),
    )
    return LocalBackend(cell, store)


def conversation(name: str, *turns: str) -> Conversation:
    return Conversation(Prompt(name, "test", turns), 0, 7)


SHORT = conversation("short", "Name a colour.", "And another?")
LONG = conversation("long", "word " * 200, "Shorter, please.")


def own_sampling(name: str, **given: float) -> Conversation:
    return Conversation(Prompt(name, "test", ("Name a colour.",), sampling=GivenSampling(**given)), 0, 7)


def test_prompts_with_sampling_of_their_own_are_answered_with_it(store):
    """Would catch parameters of the cell for such prompts; what the mixture costs is in the record."""
    subject = backend(store)
    run = subject.generate([SHORT, own_sampling("own", temperature=1.5), own_sampling("cut", temperature=1, top_k=2)])
    found = {item.prompt_id: item for item in run.requests if item.turn == 0}
    assert found["short"].sampling is None and found["own"].sampling["temperature"] == 1.5
    assert len({item.output_token_ids for item in found.values()}) > 1
    assert any("some requests cut" in note for note in subject.facts().fallbacks)


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_logits_that_are_no_distribution_end_the_run_and_name_the_request(store, wrong, monkeypatch):
    """Would catch tokens that look like an answer, and a NaN that stays in the engine for the next requests."""
    subject, logits, num_calls = backend(store), TargetModel.logits, 0
    before = subject.generate([SHORT])

    def poisoned(self, hidden):
        nonlocal num_calls
        num_calls += 1
        return logits(self, hidden) if num_calls != 4 else torch.full_like(logits(self, hidden), wrong)

    with monkeypatch.context() as patched:
        patched.setattr(TargetModel, "logits", poisoned)
        with pytest.raises(ValueError, match=r"request \(prompt, turn, sample\) = \('short', 0, 0\): expected finite"):
            subject.generate([SHORT])
    assert [item.output_token_ids for item in subject.generate([SHORT]).requests] == [
        item.output_token_ids for item in before.requests
    ]


def test_requests_that_all_cut_are_not_mixed(store):
    """Would catch a comparison with the cell, of whose sampling no request is; they must be answered all the same."""
    subject = backend(store)
    run = subject.generate([own_sampling("one", temperature=1, top_k=2), own_sampling("two", temperature=1, top_p=0.5)])
    assert len(run.requests) == 2 and not any("some requests cut" in note for note in subject.facts().fallbacks)


def test_sampling_that_breaks_the_promise_of_the_cell_is_refused(store):
    """Would catch temperature 1 under greedy verification, which is not defined there."""
    cell = CellConfig(
        drafter=drafter_of(DrafterKind.ngram),
        decoding=DecodingConfig(temperature=0.0, max_new_tokens=8),
        verification=Verification(VerificationMethod.greedy),
        backend=Local(device="cpu", dtype="float32"),
    )
    with pytest.raises(ValueError, match="prompt hot: its sampling does not fit the cell"):
        LocalBackend(cell, store).fit_slots([SHORT, own_sampling("hot", temperature=1.0)])


def test_a_prompt_that_does_not_fit_is_left_out_with_its_later_turns(store):
    run = backend(store, max_length=100).generate([SHORT, LONG])
    assert {(item.prompt_id, item.turn) for item in run.requests} == {("short", 0), ("short", 1)}
    assert run.num_skipped_turns == 2


def test_a_prompt_that_does_not_fit_can_be_an_error(store):
    with pytest.raises(ValueError, match="prompt long, turn 1: expected at most 92 tokens"):
        backend(store, max_length=100, too_long=TooLong.error).generate([SHORT, LONG])


def test_nothing_fits_is_refused_before_anything_runs(store):
    with pytest.raises(ValueError, match=r"expected a prompt of at most 92 tokens .* found none among 1"):
        backend(store, max_length=100).fit_slots([LONG])


def test_an_answer_longer_than_the_context_is_refused(store):
    with pytest.raises(ValueError, match=r"decoding.max_new_tokens: expected fewer than 1024"):
        backend(store, max_new_tokens=5000).prepare([SHORT])


def test_slots_hold_what_the_conversations_can_come_to_not_the_whole_context(store):
    """Would catch a cache of 131,072 positions a slot for a two-turn question to a large model."""
    subject = backend(store)
    subject.generate([SHORT])
    assert 20 < subject.requests.limit < 80


def test_draft_logit_cache_is_that_of_all_slots(store):
    """max_requests * K * (V * bytes + statistics), whatever the number of conversations in a block."""
    subject = backend(store, drafter=DrafterKind.eagle3)
    subject.generate([SHORT])
    assert subject.engine_of_cell.cache_bytes.draft_logits == 3 * 4 * (4096 * 4 + 16)


def test_no_collection_walks_over_what_existed_before_the_run(store):
    """Would catch a full pass over all modules and models, 0.1 to 0.5 s, in the latency of some request."""
    frozen = []
    backend(store).generate([SHORT], on_request=lambda record: frozen.append(gc.get_freeze_count()))
    assert min(frozen) > 10_000 and gc.get_freeze_count() == 0


def test_what_slows_the_target_down_is_reported(store, monkeypatch):
    monkeypatch.setattr(TargetModel, "round_fallbacks", lambda self, tokens: (f"slower in rounds of {tokens} tokens",))
    assert backend(store, drafter=DrafterKind.eagle3).facts().fallbacks == ("slower in rounds of 15 tokens",)


def test_what_stands_in_on_a_cpu_is_reported_where_it_was_asked_for(store):
    """Would catch a record whose settings say CUDA graphs and fused layers, where none ran."""

    def notes(**settings):
        cell = CellConfig(backend=Local(device="cpu", dtype="float32", max_concurrency=2, **settings))
        return LocalBackend(cell, store).facts().fallbacks

    assert notes() == notes(graphs=False, fused=False) == ()
    assert notes(graphs=True) == (ON_A_CPU["graphs"],)
    assert notes(graphs=True, fused=True) == tuple(ON_A_CPU.values())


def test_only_answers_that_another_turn_follows_are_decoded(store, monkeypatch):
    """Would catch unused text that is decoded while the clock runs."""
    decoded = []
    monkeypatch.setattr(local, "decode_answer", lambda tokenizer, ids, stop: decoded.append(len(ids)) or "An answer.")
    run = backend(store).generate([SHORT])
    assert len(decoded) == 1 and len(run.requests) == 2


@pytest.mark.parametrize("drafter", [DrafterKind.none, DrafterKind.eagle3], ids=lambda item: item.value)
def test_the_text_of_an_answer_ends_before_its_stop_string(store, drafter):
    """Would catch tokens that lie beyond it, and a next turn that reads them."""
    subject = backend(store, max_new_tokens=24)
    tokenizer = subject.requests.tokenizer
    whole = decode_answer(tokenizer, subject.generate([SHORT]).requests[0].output_token_ids)
    string = whole[11:19]
    stopped = backend(store, max_new_tokens=24, drafter=drafter, stop=["no such text", string])
    first, second = stopped.generate([SHORT]).requests
    assert (first.finish_reason, first.stop.string) == (FinishReason.stop, string)
    text = decode_answer(tokenizer, first.output_token_ids, first.stop)
    assert text == whole[: whole.index(string)]
    assert string not in decode_answer(tokenizer, first.output_token_ids[:-1])
    assert second.num_prompt_tokens == len(encode_prompt(tokenizer, SHORT.prompt, [text]).token_ids)
    own = replace(SHORT, prompt=replace(SHORT.prompt, stop=(whole[:3],)))
    assert stopped.generate([own]).requests[0].stop.string == whole[:3]
    until_then = GivenSampling(min_tokens=len(first.output_token_ids))
    later = replace(SHORT, prompt=replace(SHORT.prompt, sampling=until_then))
    (found, *_) = backend(store, max_new_tokens=24, drafter=drafter, stop=[string]).generate([later]).requests
    assert found.output_token_ids[: len(first.output_token_ids)] == first.output_token_ids != found.output_token_ids


@pytest.mark.parametrize(
    ("shape", "fused"), [("dynamic:32-9-8", True), ("dynamic:32-9-8", False), ("dynamic:32-8-9", True)]
)
def test_trees_that_fused_layers_of_a_drafter_cannot_read_are_refused_before_anything_is_loaded(shape, fused):
    """Would catch a run that ends in its first step; 64 nodes are one too many, 63 are not."""
    settings = ["drafter=eagle3", "verification=recursive", f"drafting.tree={shape}", "backend.device=cpu"]
    *_, cell = compose_plan([*settings, f"backend.fused={str(fused).lower()}"]).cells
    if fused and shape == "dynamic:32-9-8":
        with pytest.raises(ValueError, match=r"^drafting.tree: expected at most 63 nodes, .* found 64 .*fused=false$"):
            LocalBackend(cell, ModelStore())
    else:
        LocalBackend(cell, ModelStore())


@pytest.mark.parametrize("owner", ["target", "drafter"])
@pytest.mark.parametrize(("fused", "words"), [("true", "true"), ("null", "null, which fuses layers on this device")])
def test_trees_that_fused_latent_attention_cannot_read_are_refused_before_anything_is_loaded(
    owner, fused, words, tmp_path, monkeypatch
):
    """Would catch a drafter whose first step with a tree ends the run, and a message that names a value that was not
    set. Automatic fusion is that of a GPU."""
    if fused == "null":
        of_a_gpu = {None: Wish.where_possible, False: Wish.no}
        monkeypatch.setattr(Wish, "of", lambda is_fused, device: of_a_gpu[is_fused])
    shapes = {"target": {}, "drafter": {}} | {owner: GLM}
    settings = ["drafter=draft_model", "verification=recursive", "drafting.tree=2-1", "backend.device=cpu"]
    for section, changes in shapes.items():
        path = shape_folder(tmp_path / section, **changes)
        settings += [f"{section}.path={path}", f"{section}.weights=random"]
    *_, cell = compose_plan([*settings, f"backend.fused={fused}"]).cells
    message = f"^backend.fused: expected false with drafting.tree=2-1, because the {owner} has .*, found {words}$"
    with pytest.raises(ValueError, match=message):
        LocalBackend(cell, ModelStore())
    LocalBackend(replace(cell, backend=replace(cell.backend, fused=False)), ModelStore())
