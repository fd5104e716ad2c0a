"""Medusa heads: what the original code computed, and the layouts that lie about."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.config.drafter import drafter_of
from harness.config.models import TargetConfig
from harness.config.schema import SettingsError
from harness.config.tree import branching
from harness.drafters.chain import DrafterShape
from harness.drafters.draft_tree import DraftTree
from harness.drafters.medusa_run import MedusaDrafter, MedusaTreeDrafter
from harness.models.check_files import check_drafter_files
from harness.models.checkpoint import CheckpointError
from harness.models.cost import Cost
from harness.models.eagle import load_eagle
from harness.models.medusa import MedusaHead, load_medusa
from kernels.contract import DraftSampling, SiblingDraws
from tests.support.tiny_models import TOLERANCE, VOCAB_SIZE, random_target, save_target_folder

pytestmark = pytest.mark.fast
RECORDED = Path(__file__).parents[1] / "data" / "medusa"
CONFIG = {"medusa_num_heads": 2, "medusa_num_layers": 2, "base_model_name_or_path": "tiny", "transformers_version": "4"}
OF_VLLM = {
    **{"model_type": "medusa", "architectures": ["MedusaModel"], "hidden_size": 24, "vocab_size": 61},
    **{"num_heads": 2, "num_hidden_layers": 2, "truncated_vocab_size": 61, "medusa_fc_bias": True, "topk": 10},
}


@pytest.fixture(scope="module")
def target():
    return random_target(seed=3, num_hidden_layers=2)


@pytest.fixture(scope="module")
def runs():
    return load_file(RECORDED / "runs.safetensors")


def write(folder, weights, config, file="medusa_lm_head.safetensors"):
    save_file({name: tensor.contiguous() for name, tensor in weights.items()}, folder / file)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def recorded():
    return load_file(RECORDED / "weights.safetensors")


def as_vllm():
    """The same weights under the names of vLLM."""
    found = {}
    for name, tensor in recorded().items():
        head, place, *rest = name.split(".")
        is_output = rest == ["weight"]
        found[f"lm_heads.{head}.weight" if is_output else f"blocks.{head}.layers.{place}.{rest[1]}"] = tensor
    return found


@pytest.mark.parametrize("layout", ["original", "vllm", "vllm, prefixed"])
def test_rows_equal_what_the_original_code_computed(layout, tmp_path, target, runs):
    """Would catch a norm, an activation or a residual too many, heads in another order, and blocks run once."""
    if layout == "original":
        head = load_medusa(write(tmp_path, recorded(), CONFIG), target)
    else:
        prefix = "medusa_heads." if layout.endswith("prefixed") else ""
        weights = {prefix + name: tensor for name, tensor in as_vllm().items()}
        head = load_medusa(write(tmp_path, weights, OF_VLLM, "model.safetensors"), target)
    torch.testing.assert_close(head.rows(runs["hidden"], 2).transpose(0, 1), runs["logits"], **TOLERANCE)
    torch.testing.assert_close(head.rows(runs["hidden"], 1)[:, 0], runs["logits"][0], **TOLERANCE)
    assert head.assumptions == () and not any(parameter.requires_grad for parameter in head.parameters())
    check_drafter_files(drafter_of("medusa", path=str(tmp_path)), TargetConfig(path=str(tmp_path / "none")))


def test_heads_of_version_2_go_through_the_targets_output_matrix(tmp_path, target, runs):
    blocks = {name: tensor for name, tensor in recorded().items() if "linear" in name}
    head = load_medusa(write(tmp_path, blocks, CONFIG | {"version": "2"}), target)
    states = runs["hidden"]
    for place in range(2):
        weight, bias = blocks[f"1.{place}.linear.weight"], blocks[f"1.{place}.linear.bias"]
        states = states + torch.nn.functional.silu(states @ weight.T + bias)
    torch.testing.assert_close(head.rows(runs["hidden"], 2)[:, 1], target.logits(states), **TOLERANCE)
    assert head.num_parameters == sum(tensor.numel() for tensor in blocks.values())


def test_a_copy_of_the_targets_output_matrix_must_be_one(tmp_path, target):
    """vLLM's original_lm_head."""
    blocks = {name: tensor for name, tensor in as_vllm().items() if "blocks" in name}
    config = OF_VLLM | {"original_lm_head": True}
    same = blocks | {"lm_heads.0.weight": target.output_matrix.clone()}
    head = load_medusa(write(tmp_path, same, config, "model.safetensors"), target)
    assert not head.config.has_own_output
    other = blocks | {"lm_heads.0.weight": target.output_matrix + 1}
    with pytest.raises(CheckpointError, match=r"expected lm_heads.0.weight to be that of target tiny, .* another one"):
        load_medusa(write(tmp_path, other, config, "model.safetensors"), target)


@pytest.mark.parametrize("is_whole", [False, True], ids=["rows of these tokens", "rows of all tokens"])
def test_a_token_map_names_the_tokens_that_are_drafted(is_whole, tmp_path, target, runs):
    """Also with a scale of the logits. Would catch rows in the order of the ids."""
    ids = torch.tensor([50, 3, 17, 4])
    weights = {n: t[ids] if "lm_heads" in n and not is_whole else t for n, t in as_vllm().items()}
    config = OF_VLLM | {"truncated_vocab_size": 4, "logit_scale": 0.5}
    head = load_medusa(write(tmp_path, weights | {"token_map": ids}, config, "model.safetensors"), target)
    assert head.draft_to_target.tolist() == ids.tolist() and head.vocab_size == 4
    torch.testing.assert_close(head.rows(runs["hidden"], 1)[:, 0], 0.5 * runs["logits"][0][:, ids], **TOLERANCE)


def test_a_token_map_of_a_vocabulary_of_no_stated_size_is_refused(tmp_path, target):
    weights = as_vllm() | {"token_map": torch.tensor([50, 3])}
    config = {name: value for name, value in OF_VLLM.items() if name != "vocab_size"}
    with pytest.raises(CheckpointError, match="expected vocab_size, the target's token ids, of which token_map names"):
        load_medusa(write(tmp_path, weights, config, "model.safetensors"), target)


def test_what_the_files_leave_open_is_told(tmp_path, target):
    """The first public heads state 2 heads and hold 5; vLLM leaves biases out that it is not told of."""
    head = load_medusa(write(tmp_path, recorded(), CONFIG | {"medusa_num_heads": 1}), target)
    assert head.assumptions == ("its file states 1 heads, and all 2 that it holds are taken",)
    (tmp_path / "medusa_lm_head.safetensors").unlink()
    config = {name: value for name, value in OF_VLLM.items() if name != "medusa_fc_bias"}
    head = load_medusa(write(tmp_path, as_vllm(), config, "model.safetensors"), target)
    assert any("while vLLM leaves them out" in text for text in head.assumptions) and head.config.has_bias


@pytest.mark.parametrize(
    ("changes", "dropped", "message"),
    [
        ({"medusa_num_heads": 3}, (), "expected 2 heads of 2 blocks, which its tensors are, found 3 of 2"),
        ({"medusa_num_layers": 1}, (), "found 2 of 1"),
        ({"hidden_size": 32}, (), "Medusa head: expected hidden_size 24, that of target tiny, found 32"),
        ({"medusa_choices": 3}, (), "medusa_choices = 3 in config.json, which this version does not know"),
        ({}, ("0.0.linear.weight", "0.0.linear.bias"), "of heads and blocks from 0 on, as many blocks in each head"),
        ({}, ("1.2.weight",), r"an output matrix of each of 2 heads, or of none, found those of \[0\]"),
    ],
)
def test_files_that_contradict_themselves_or_the_target_are_refused(changes, dropped, message, tmp_path, target):
    weights = {name: tensor for name, tensor in recorded().items() if name not in dropped}
    with pytest.raises(CheckpointError, match=message):
        load_medusa(write(tmp_path, weights, CONFIG | changes), target)


def test_a_head_of_one_kind_given_as_another_is_told_apart(tmp_path, target):
    folder = write(tmp_path, recorded(), CONFIG)
    with pytest.raises(SettingsError, match=r"expected an EAGLE head, found a Medusa head .*drafter=medusa runs it"):
        check_drafter_files(drafter_of("eagle", path=str(folder)), TargetConfig())
    with pytest.raises(CheckpointError, match=r"of a Medusa head.*; run it with drafter=medusa"):
        load_eagle(folder, target)
    other = tmp_path / "model"
    save_target_folder(other, target.causal_lm)
    with pytest.raises(SettingsError, match="expected a Medusa head, found a language model"):
        check_drafter_files(drafter_of("medusa", path=str(other)), TargetConfig())


@pytest.fixture
def head(tmp_path, target) -> MedusaHead:
    return load_medusa(write(tmp_path, recorded(), CONFIG), target)


def test_a_round_reads_each_head_once(head):
    """Two heads of two blocks with biases, of three slots; nothing after verification."""
    size, output = 24, VOCAB_SIZE * 24
    shape = DrafterShape(3, 16, 2, VOCAB_SIZE)
    cost = MedusaDrafter(head, DraftSampling.greedy, shape).cost(3, 2, 10)
    assert cost.draft == Cost(
        weight_bytes=4 * 2 * 2 * (size * size + size),
        output_bytes=4 * 2 * output,
        num_linear=2 * 3 * 2 * 2 * size * size,
        num_output=2 * 3 * 2 * output,
    )
    assert cost.extend == Cost()


def test_no_more_positions_are_drafted_than_there_are_heads(head):
    shape = DrafterShape(3, 16, 3, VOCAB_SIZE)
    with pytest.raises(ValueError, match=r"num_speculative_tokens: expected at most 2 positions .* found 3"):
        MedusaDrafter(head, DraftSampling.greedy, shape)
    tree = DraftTree(branching(1, 1, 1), SiblingDraws.distinct)
    with pytest.raises(ValueError, match=r"drafting.tree: expected at most 2 positions .* found 3"):
        MedusaTreeDrafter(head, DraftSampling.greedy, shape, tree)
