"""Random weights: the rule, states that keep their size through many layers, and that nothing is made elsewhere."""

from __future__ import annotations

import math

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from harness.config.drafter import DrafterKind, drafter_of
from harness.config.models import Weights
from harness.drafters.registry import load_head
from harness.models.random_head import (
    random_dflash,
    random_dflash2,
    random_dspark,
    random_eagle,
    random_eagle3,
    random_mtp,
    random_peagle,
    spread_ids,
)
from harness.models.random_target import random_target
from harness.models.random_weights import LOGIT_DEVIATION, RandomWeights, made_on
from tests.support.tiny_models import positions_from
from tests.support.tiny_shapes import SHAPE, shape_folder

NUM_TOKENS = 48
# The standard deviation of n normal draws is off by 1 / sqrt(2 n) of itself; six of these happen once in 1e9 times.
SIX_SIGMA = 6.0


def off(num_draws: int) -> float:
    return SIX_SIGMA / math.sqrt(2 * num_draws)


def tokens() -> torch.Tensor:
    """[2, T] int64 ids of the zoo's tokenizer."""
    return torch.randint(6144, (2, NUM_TOKENS), generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("model.embed_tokens.weight", 1.0),
        ("lm_head.weight", LOGIT_DEVIATION / 8),
        ("model.layers.46.shared_head.head.weight", LOGIT_DEVIATION / 8),
        ("model.layers.3.self_attn.q_proj.weight", 1 / 8),
        ("model.layers.3.self_attn.o_proj.weight", 1 / 8 / math.sqrt(2 * 10)),
        ("model.layers.3.mlp.down_proj.weight", 1 / 8 / math.sqrt(2 * 10)),
        ("fc.weight", 1 / 8),
        ("model.layers.3.mlp.gate.weight", 1 / 8),
    ],
)
def test_a_matrix_has_the_deviation_of_the_rule(name, expected):
    weight = RandomWeights("target", 10, device="cpu", dtype=torch.float32).take(name, (200, 64))
    assert weight.std().item() == pytest.approx(expected, rel=off(200 * 64))


def test_experts_that_lie_in_one_tensor_count_their_own_inputs():
    weight = RandomWeights("target", 2, device="cpu", dtype=torch.float32).take("mlp.experts.down_proj", (5, 40, 64))
    assert weight.std().item() == pytest.approx(1 / math.sqrt(2 * 2 * 64), rel=off(5 * 40 * 64))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.norm.weight", 1),
        ("layers.0.post_attention_layernorm.weight", 1),
        ("model.layers.0.self_attn.q_norm.weight", 1),
        ("fc_norm.1.weight", 1),
        ("fc.bias", 0),
        ("mlp.gate.e_score_correction_bias", 0),
    ],
)
def test_norms_are_one_and_biases_zero(name, value):
    taken = RandomWeights("target", 2, device="cpu", dtype=torch.bfloat16).take(name, (7,))
    assert taken.dtype is torch.bfloat16 and bool((taken == value).all())


def test_a_tensor_depends_on_the_seed_and_its_name_and_on_nothing_else():
    def take(seed, name, before=0):
        torch.manual_seed(before)
        weights = RandomWeights(seed, 2, device="cpu", dtype=torch.float32)
        for index in range(before):
            weights.take(f"other.{index}", (3, 3))
        return weights.take(name, (5, 4))

    first = take("target", "a.weight")
    assert torch.equal(first, take("target", "a.weight", before=3))
    assert not torch.equal(first, take("drafter", "a.weight"))
    assert not torch.equal(first, take("target", "b.weight"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"model_type": "qwen3"}, {"tie_word_embeddings": True}],
    ids=["llama", "qwen3", "tied"],
)
def test_states_neither_vanish_nor_explode_through_many_layers(tmp_path, changes, dtype):
    """Each layer adds a variance of at most (1 + E[silu(g)^2]) / (2 L) = 1.36 / (2 L), so all of them at most .68.

    They start at 1, or at 2 / sqrt(H) where the embedding is tied; means over tokens only lower what attention adds.
    """
    num_layers = 40
    target = random_target(shape_folder(tmp_path, num_hidden_layers=num_layers, **changes), dtype=dtype)
    with torch.inference_mode():
        output = target.forward(tokens(), positions_from([0, 0], NUM_TOKENS), None, tuple(range(num_layers + 1)))
        logits = target.logits(output.hidden).float()
    deviations = [state.float().std().item() for state in output.aux]
    start = LOGIT_DEVIATION / 8 if changes.get("tie_word_embeddings") else 1.0
    num_draws = 2 * NUM_TOKENS * SHAPE["hidden_size"]
    assert deviations[0] == pytest.approx(start, rel=off(num_draws))
    assert min(deviations) > 0.9 * start and max(deviations) < math.sqrt(start**2 + 0.68) * 1.1
    assert logits.isfinite().all()
    assert logits.std().item() == pytest.approx(LOGIT_DEVIATION, rel=0.1)


@pytest.mark.parametrize("kind", [DrafterKind.eagle, DrafterKind.eagle3, DrafterKind.mtp, DrafterKind.peagle])
def test_a_long_chain_of_a_random_head_stays_finite_and_sensible(tmp_path, kind):
    """An EAGLE head has no norm: a step multiplies its features' variance by at most .75, and adds at most .93."""
    target = random_target(shape_folder(tmp_path), dtype=torch.bfloat16)
    head = load_head(drafter_of(kind, weights=Weights.random), target).head
    positions, deviations = positions_from([0, 0], NUM_TOKENS), []
    with torch.inference_mode():
        features = head.features(target.forward(tokens(), positions, None, head.aux_layers))
        for _ in range(8):
            output = head(tokens(), features, positions, None)
            features = output.next_features
            deviations.append(head.logits(output.hidden).float().std().item())
    assert min(deviations) > 1.5 and max(deviations) < LOGIT_DEVIATION * math.sqrt(0.93 / 0.25) * 1.1


class Float32Made(TorchDispatchMode):
    """Remembers the largest float32 tensor that was made outside the meta device."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype is torch.float32 and result.device.type != "meta":
            self.largest = max(self.largest, result.numel())
        return result


def test_nothing_is_made_in_float32_on_the_way(tmp_path):
    """Would catch 32 GB for an 8B model in bfloat16, and a head that is initialized before it is drawn."""
    folder = shape_folder(tmp_path)
    with Float32Made() as made:
        target = random_target(folder)
        kinds = (random_eagle, random_eagle3, random_mtp, random_peagle, random_dflash, random_dspark, random_dflash2)
        heads = [make(target) for make in kinds]
    assert made.largest <= SHAPE["hidden_size"]
    for model in (target.causal_lm, *heads):
        assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}
        assert not any(parameter.requires_grad for parameter in model.parameters())
    assert {head.rotary.inv_freq.dtype for head in heads} == {torch.float32}


def test_the_default_dtype_is_put_back():
    with pytest.raises(RuntimeError, match="stopped"), made_on(torch.device("cpu"), torch.bfloat16):
        raise RuntimeError("stopped")
    assert torch.get_default_dtype() is torch.float32


def test_ids_are_spread_over_the_vocabulary():
    ids = spread_ids(32_000, 128_256)
    assert ids.unique().numel() == 32_000 and torch.equal(ids, ids.sort().values)
    assert int(ids[0]) == 0 and int(ids[-1]) == 31_999 * 128_256 // 32_000 == 128_251
