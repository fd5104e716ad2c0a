"""Our layers of Llama and Qwen3 are those of transformers, and a start imports none of its seconds."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers

from harness.models.decoder_layer import classes_of
from harness.models.llama_config import LlamaConfig
from harness.models.meta import META, WithoutValues, made_on_meta
from tests.support.tiny_models import LLAMA3_ROPE, SIZES, positions_from, random_causal_lm, random_tokens

KINDS = {"llama": "llama", "llama3_rope": "llama", "llama_tied": "llama", "qwen3": "qwen3"}
BIASES = {"attention_bias": True, "mlp_bias": True}


def both(kind, **changes):
    """A model of transformers, and ours with its weights."""
    theirs = random_causal_lm(kind, num_hidden_layers=2, **changes)
    ours = classes_of(KINDS[kind]).causal_lm(theirs.config)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("kind", "changes"),
    [*((kind, {}) for kind in KINDS), ("llama", BIASES), ("llama", {"hidden_act": "gelu"})],
    ids=[*KINDS, "biases", "gelu"],
)
def test_layers_are_bit_for_bit_those_of_transformers(kind, changes, dtype):
    """Would catch another order of operations, and a rounding left out."""
    ours, theirs = (model.to(dtype) for model in both(kind, **changes))
    theirs.config._attn_implementation = "sdpa"
    states, positions = theirs.model.embed_tokens(random_tokens(2, 5)), positions_from([0, 7], 5)
    angles = ours.model.rotary_emb(states, positions)
    for mine, other in zip(angles, theirs.model.rotary_emb(states, positions), strict=True):
        assert mine.dtype == dtype and torch.equal(mine, other)
    for mine, other in zip(ours.model.layers, theirs.model.layers, strict=True):
        expected = other(states, position_embeddings=angles, attention_mask=None)
        assert torch.equal(mine(states, position_embeddings=angles, attention_mask=None), expected)
        states = expected
    assert torch.equal(ours.model.norm(states), theirs.model.norm(states))


@pytest.mark.parametrize(
    "fields",
    [{}, SIZES, SIZES | {"rope_parameters": LLAMA3_ROPE}, {"rope_theta": 5e5, "torch_dtype": "bfloat16"}],
    ids=["defaults", "sizes", "RoPE", "older names"],
)
def test_the_configuration_of_a_llama_is_that_of_transformers(fields):
    """Would catch a default of another value, which a config.json that leaves it out would get."""
    assert LlamaConfig.from_dict(dict(fields)).to_dict() == transformers.LlamaConfig.from_dict(dict(fields)).to_dict()


@pytest.mark.parametrize(
    "fields", [{"hidden_size": 30, "num_attention_heads": 4}, {"rms_norm_eps": None}, {"vocab_size": "x"}], ids=str
)
def test_what_transformers_refuses_is_refused(fields):
    for kind in (LlamaConfig, transformers.LlamaConfig):
        with pytest.raises(Exception, match=r"hidden size|rms_norm_eps|vocab_size"):
            kind(**fields)


def test_what_is_made_without_values_has_the_shapes_and_types_of_what_has_them():
    """Would catch memory that is counted wrongly."""
    with made_on_meta():
        layer, places = torch.nn.Linear(3, 2), torch.arange(2, 9, 3)
    assert {tensor.device for tensor in (*layer.parameters(), places)} == {META}
    assert (places.shape, places.dtype) == ((3,), torch.int64)
    given = torch.ones(2, 3, dtype=torch.float16, device=META)
    with WithoutValues():
        like, wide = torch.zeros_like(given), torch.full_like(given, 2, dtype=torch.float64)
        assert torch.arange(3).tolist() == [0, 1, 2] and torch.zeros_like(torch.ones(1)).tolist() == [0]
    assert (like.shape, like.dtype, like.device) == ((2, 3), torch.float16, META)
    assert (wide.shape, wide.dtype, wide.device) == ((2, 3), torch.float64, META)


START = """
import sys
from harness.backends.local.local import LocalBackend
from harness.runner.plan.compose import compose_plan
from harness.runner.groups import groups_of

(group,) = groups_of(compose_plan(sys.argv[1:]).cells)
models = LocalBackend.Shared()
backends = [LocalBackend(cell, models) for cell in group.cells]
for backend in backends:
    backend.fit_slots(group.played)
    backend.engine_of_cell.memory
slow = "torch._dynamo", "torch._inductor", "torch.distributed.tensor", "sympy", "transformers.modeling_utils"
print(*(name for name in slow if name in sys.modules))
"""


@pytest.mark.parametrize("experiment", ["throughput_llama3_8b", "throughput_qwen3_8b"])
def test_getting_ready_imports_neither_a_compiler_nor_models_of_transformers(experiment, tmp_path):
    """Would catch an import, or an operation on the meta device, that adds seconds to every start."""
    settings = (f"experiment={experiment}", "backend.fused=true", "workload.num_requests=2")
    done = subprocess.run(
        [sys.executable, "-c", START, *settings],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "", done.stdout
    assert done.returncode == 0, done.stderr
