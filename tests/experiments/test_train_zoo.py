"""Training of the built-in models: text, tokenizer, chains of heads, sampling, and one tiny run of every stage."""

from __future__ import annotations

import gzip
import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from experiments.train_zoo import chosen_stages, main
from experiments.zoo.assemble import install
from experiments.zoo.corpus import dialogue_turns, documents
from experiments.zoo.generated import CATEGORIES, CHAT_GROUP, JSON_GROUP, chat_turns, generated
from experiments.zoo.json_text import TASKS, json_turns, schema_of
from experiments.zoo.settings import SMOKE_SIZES
from experiments.zoo.target_training import llama
from experiments.zoo.tokenizer import END_OF_TEXT_ID, SPECIAL_TOKENS, chat_text, save_tokenizer, train_tokenizer
from harness.models.eagle import EagleConfig, EagleHead
from harness.models.eagle3 import Eagle3Config, Eagle3Head
from harness.models.mtp import MtpConfig, MtpHead
from harness.models.packed_weights import PACKED, unpack
from harness.models.peagle import PEagleConfig, PEagleHead, load_peagle
from harness.models.target import TargetModel, load_target, load_tokenizer
from harness.models.zoo import KINDS
from harness.training.sampler import Sampler, Segments
from harness.training.schedule import Schedule
from harness.training.unrolled import HeadChain, ParallelChain, StepTerms, accepted, step_terms

BUILTIN = Path(__file__).parents[2] / "harness" / "workload" / "prompts" / "builtin.jsonl"


class EndlessTokenizer:
    """Stands in for a tokenizer where only its end token is asked for."""

    eos_token_id = None


@pytest.fixture(scope="module")
def target() -> TargetModel:
    torch.manual_seed(0)
    model = llama(SMOKE_SIZES.target, 64, 64).eval().requires_grad_(False)
    return TargetModel(model, EndlessTokenizer())


def heads(target: TargetModel) -> list[torch.nn.Module]:
    torch.manual_seed(1)
    eagle3 = Eagle3Config.for_target(target, 32, aux_layers=(1, 2, 3))
    return [
        EagleHead(EagleConfig.for_target(target), target),
        Eagle3Head(eagle3, target, draft_token_ids=torch.arange(0, 64, 2)),
        MtpHead(MtpConfig.for_target(target), target),
    ]


def test_tokenizer_renders_the_chat_template_as_the_training_text(tmp_path: Path) -> None:
    turns = ["Say  hi.", '<think>easy</think>{"a": 1}', "Again?"]
    save_tokenizer(train_tokenizer([chat_text(turns)] * 3, 300), tmp_path, 64)
    tokenizer = load_tokenizer(tmp_path)
    roles = ("user", "assistant", "user")
    messages = [{"role": role, "content": turn} for role, turn in zip(roles, turns, strict=True)]
    text = chat_text(turns, open_end=True)
    assert tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True) == text
    ids = tokenizer.encode(text, add_special_tokens=False)
    assert tokenizer.decode(ids) == text
    assert tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)) == list(range(len(SPECIAL_TOKENS)))
    assert tokenizer.eos_token == "<|end|>"
    assert "<think>easy</think>" in tokenizer.decode(ids, skip_special_tokens=True)


def test_dialogue_turns_join_repeated_speakers_and_end_with_the_assistant() -> None:
    text = "User: Hi.\nUser: Anyone?\nAssistant: Yes.\nUser: Good."
    assert dialogue_turns(text) == ["Hi.\nAnyone?", "Yes."]
    assert dialogue_turns("A story about a User: nobody.") == []


def test_generated_text_is_the_same_for_the_same_seed_and_distinct() -> None:
    texts = [list(generated(200, "seed")) for _ in range(2)]
    assert texts[0] == texts[1]
    assert len({document.text for document in texts[0]}) == 200
    assert {document.group for document in texts[0]} == {CHAT_GROUP, JSON_GROUP}


@pytest.mark.parametrize("category", CATEGORIES)
def test_chat_turns_alternate_and_leave_no_template_field_open(category: str) -> None:
    rng = random.Random(category)
    for _ in range(100):
        turns = rng.choice(CATEGORIES[category])(rng)
        assert len(turns) % 2 == 0
        assert all(turn == turn.strip() and turn for turn in turns)
        assert not any(field in turn for turn in turns for field in ("{n}", "{t}", "{w}", "{thing}", "{day}"))


def test_json_answers_follow_the_schema_their_task_states() -> None:
    rng = random.Random(5)
    for make in TASKS:
        for _ in range(30):
            task = make(rng)
            schema = schema_of(task)
            assert list(task.answer) == schema["required"] == list(schema["properties"])
            for key, allowed in task.enums.items():
                assert task.answer[key] in allowed
    for _ in range(200):
        thought, answer = json_turns(rng)[1].split("</think>")
        assert thought.startswith("<think>")
        assert isinstance(json.loads(answer), dict)


def test_generated_text_holds_none_of_the_built_in_prompts() -> None:
    if not BUILTIN.is_file():
        pytest.skip("the built-in prompts are not there")
    prompts = {turn for line in BUILTIN.read_text().splitlines() for turn in json.loads(line)["turns"]}
    rng = random.Random(7)
    asked = {turn for _ in range(5000) for turn in chat_turns(rng)[::2]}
    assert not {prompt for prompt in prompts if len(prompt.split()) > 6} & asked


def test_schedule_warms_up_then_falls_to_zero_with_the_steps() -> None:
    schedule = Schedule(0.0, 100, num_warmup_steps=10, decay_from=0.5, peak=2.0)
    rates = [schedule.learning_rate(step, schedule.fraction(step)) for step in range(101)]
    assert rates[0] == pytest.approx(0.2)
    assert rates[9] == rates[50] == 2.0
    assert rates[75] == pytest.approx(1.0)
    assert rates[100] == 0.0


@pytest.mark.parametrize("index", range(3), ids=["eagle", "eagle3", "mtp"])
def test_training_chain_equals_the_chain_run_over_a_cache(target: TargetModel, index: int) -> None:
    head, num_steps, length = heads(target)[index], 3, 20
    token_ids = torch.randint(64, (2, length))
    positions = torch.arange(length)[None].expand(2, -1)
    with torch.no_grad():
        features = head.features(target.forward(token_ids, positions, None, head.aux_layers))
        states = HeadChain(head, length, num_steps)(token_ids, features)
        for pair in (0, 5, 15):
            cache = head.new_cache(2, length)
            view = cache.view(slice(0, 2), positions[:, : pair + 1], pair + 1)
            known = token_ids[:, 1 : pair + 2], features[:, : pair + 1], positions[:, : pair + 1]
            output = head(*known, view)
            for step in range(num_steps):
                torch.testing.assert_close(states.hidden[step][:, pair], output.hidden[:, -1], atol=1e-5, rtol=1e-4)
                at = pair + step + 1
                view = cache.view(slice(0, 2), positions[:, at : at + 1], at + 1)
                output = head(
                    token_ids[:, at + 1 : at + 2], output.next_features[:, -1:], positions[:, at : at + 1], view
                )


def test_a_parallel_chain_equals_the_masked_pairs_of_one_forward(target: TargetModel) -> None:
    """Would catch training with text that drafting does not know, or at other positions than it drafts."""
    torch.manual_seed(2)
    config = PEagleConfig.for_target(target, 32, aux_layers=(1, 2, 3), mask_token_id=3)
    head, num_steps, length = PEagleHead(config, target, draft_token_ids=torch.arange(0, 64, 2)), 4, 20
    torch.nn.init.normal_(head.mask_hidden)
    token_ids = torch.randint(64, (2, length))
    positions = torch.arange(length)[None].expand(2, -1)
    with torch.no_grad():
        features = head.features(target.forward(token_ids, positions, None, head.aux_layers))
        states = ParallelChain(head, length, num_steps)(token_ids, features)
        masks, masked = torch.full((2, num_steps - 1), 3), head.mask_features().expand(2, num_steps - 1, -1)
        for pair in (0, 5, 15):
            tokens = torch.cat((token_ids[:, 1 : pair + 2], masks), dim=1)
            joined = torch.cat((features[:, : pair + 1], masked), dim=1)
            hidden = head(tokens, joined, positions[:, : pair + num_steps], None).hidden[:, pair:]
            for step in range(num_steps):
                torch.testing.assert_close(states.hidden[step][:, pair], hidden[:, step], atol=1e-5, rtol=1e-4)


def test_step_terms_are_the_overlap_and_its_unbiased_estimate() -> None:
    torch.manual_seed(3)
    target_logits, draft_logits = torch.randn(1, 1, 7), torch.randn(1, 1, 7)
    target_prob, draft_prob = target_logits.softmax(-1), draft_logits.softmax(-1)
    lse = target_logits.logsumexp(-1)
    kept = 0.0
    for token in range(7):
        terms = step_terms(draft_logits, target_logits, lse, torch.tensor([[token]]))
        kept += float(target_prob[0, 0, token] * terms.kept)
    expected = float(torch.minimum(target_prob, draft_prob).sum())
    assert float(terms.overlap) == pytest.approx(expected, rel=1e-5)
    assert kept == pytest.approx(expected, rel=1e-5)
    unknown = step_terms(draft_logits, target_logits, lse, torch.tensor([[-1]]))
    assert float(unknown.kept) == 0.0


def test_accepted_multiplies_what_was_kept_before() -> None:
    terms = [StepTerms(torch.zeros(1), torch.tensor([0.5]), torch.tensor([0.25]), torch.ones(1)) for _ in range(3)]
    assert [float(chance) for chance in accepted(terms)] == [0.5, 0.125, 0.03125]


def test_sampled_rows_begin_with_their_prompt_and_get_another_after_the_end(target: TargetModel) -> None:
    torch.manual_seed(4)
    prompts = torch.randint(1, 64, (6, 3))
    rows = [prompt[:size].tolist() for prompt, size in zip(prompts, (3, 2, 3, 1, 3, 2), strict=True)]
    segments = Segments.of(rows, following=[4, 5, 0, 1, 2, 3])
    sampler = Sampler(target, segments, (END_OF_TEXT_ID,), num_rows=4, length=60)
    tokens, given, _ = sampler.sample(torch.arange(4))
    for row, size in enumerate([3, 2, 3, 1]):
        assert given[row, : size + 1].tolist() == [True] * size + [False]
        assert torch.equal(tokens[row, :size], prompts[row, :size])
    ends = [(row, at) for row, at in ((tokens == END_OF_TEXT_ID) & ~given).nonzero().tolist() if at < 59]
    assert ends, "expected a row that ends a document; lengthen the rows"
    for row, at in ends:
        assert given[row, at + 1]


def test_sampled_tokens_follow_the_target_law(target: TargetModel) -> None:
    torch.manual_seed(5)
    num_rows = 4096
    sampler = Sampler(target, Segments.of([[9, 17]], following=[0]), (), num_rows=num_rows, length=4)
    tokens = sampler.sample(torch.zeros(num_rows, dtype=torch.int64)).tokens
    counts = torch.bincount(tokens[:, 2], minlength=64).double()
    with torch.no_grad():
        hidden = target.forward(torch.tensor([[9, 17]]), torch.arange(2)[None], None).hidden[0, -1]
        expected = target.logits(hidden).double().softmax(-1) * num_rows
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 124  # 63 degrees of freedom, p about 1e-5


def test_an_unknown_stage_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="found nonsense"):
        chosen_stages("target,nonsense")
    assert chosen_stages("card,target") == ["target", "card"]


def write_corpus(folder: Path) -> None:
    folder.mkdir()
    rng = random.Random(1)
    for split, count in (("train", 24), ("heldout", 4)):
        with gzip.open(folder / f"corpus_{split}.jsonl.gz", "wt") as lines:
            for _ in range(count):
                words = " ".join(rng.choice(["one", "two", "the", "tree", "runs", "far"]) for _ in range(120))
                for source, text in (("peps", words), ("self_dialogue", f"User: {words[:40]}\nAssistant: {words}")):
                    lines.write(json.dumps({"source": source, "text": text}) + "\n")


def test_documents_of_an_unknown_source_are_refused(tmp_path: Path) -> None:
    with gzip.open(tmp_path / "corpus_train.jsonl.gz", "wt") as lines:
        lines.write(json.dumps({"source": "elsewhere", "text": "x"}) + "\n")
    with pytest.raises(ValueError, match="elsewhere"):
        list(documents(tmp_path, "train", 0))


def test_every_stage_runs_on_a_cpu_and_leaves_a_loadable_zoo(tmp_path: Path) -> None:
    write_corpus(tmp_path / "corpus")
    out, packed = tmp_path / "zoo", tmp_path / "packed"
    common = ["--corpus", str(tmp_path / "corpus"), "--out", str(out), "--smoke", "--steps", "3"]
    main([*common, "--stages", "tokenizer,data,target,sample"])
    main([*common, "--stages", "eagle,eagle3,mtp,draft_model,peagle,card", "--pack", str(packed)])
    target = load_target(out / "target")
    assert target.vocab_size == replace(SMOKE_SIZES).vocab_size
    assert target.eos_token_ids == {0, 4}
    assert target.dtype == torch.bfloat16
    card = (out / "README.md").read_text()
    assert "CC-BY-4.0" in card
    assert "| EAGLE-3 |" in card and "| P-EAGLE |" in card
    assert load_peagle(out / "peagle", target).mask_hidden.std() > 0.5
    sizes = json.loads((out / "metrics" / "sizes.json").read_text())
    assert set(sizes["num_parameters"]) == {"target", "eagle", "eagle3", "mtp", "draft_model", "peagle"}
    assert (packed / "zoo.tar.00").stat().st_size > 0
    install(out, tmp_path / "installed")
    for kind in KINDS:
        assert unpack(tmp_path / "installed" / kind / PACKED) == (out / kind / "model.safetensors").read_bytes()
        assert not (tmp_path / "installed" / kind / "model.safetensors").exists()
