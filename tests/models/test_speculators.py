"""Heads compute what the package `speculators` computed, as tests/support/record_speculators.py recorded it."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from harness.models.target import TargetModel, TargetOutput
from harness.models.tree_places import TreePlaces
from tests.support.tiny_heads import LOADERS
from tests.support.tiny_models import TOLERANCE, positions_from, random_causal_lm, word_tokenizer


class RecordedSpeculators:
    """Those of one algorithm."""

    def __init__(self, algorithm: str) -> None:
        self._folder = Path(__file__).parents[1] / "data" / f"{algorithm}_speculators"
        self.cases: dict[str, Any] = json.loads((self._folder / "cases.json").read_text())["cases"]

    def runs(self) -> dict[str, Tensor]:
        """Inputs and outputs, as the docstring of the script lists them."""
        return load_file(self._folder / "runs.safetensors")

    def load(self, name: str, folder: Path, target: TargetModel, load_head: Callable[[Path, TargetModel], Any]) -> Any:
        """The head of a case from the files as the package wrote them, silently."""
        case, weights = self.cases[name], load_file(self._folder / "weights.safetensors")
        save_file({key: weights[key] for key in case["tensors"]}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps(case["config"]))
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            return load_head(folder, target)


NUM_STEPS = 4
# Another order of summation, in the last of four chained steps of about ten sums each, of up to 96 terms:
# 40 x sqrt(96) x 2^-24 = 2.3e-5 of the terms, which come to a few units. A norm left out changes the first digit.
TOLERANCES = {"eagle3": {"rtol": 1e-5, "atol": 3e-5}, "peagle": TOLERANCE, "dflash": TOLERANCE}
RECORDED = {kind: RecordedSpeculators(kind) for kind in TOLERANCES}
SIZES = {"eagle3": (56, 32), "peagle": (24, 16), "dflash": (24, 16)}
"""Vocabulary and hidden size of the recorded targets."""


@cache
def runs_of(kind):
    return RECORDED[kind].runs()


@cache
def target_of(kind):
    """Of a recorded target the matrices that a head takes matter: the states of its layers are recorded."""
    (vocab_size, hidden_size), runs = SIZES[kind], runs_of(kind)
    causal_lm = random_causal_lm(vocab_size=vocab_size, hidden_size=hidden_size, num_attention_heads=4)
    for matrix, name in ((causal_lm.model.embed_tokens, "target_embedding"), (causal_lm.lm_head, "target_output")):
        if name in runs:
            matrix.weight.data.copy_(runs[name])
    return TargetModel(causal_lm, word_tokenizer(vocab_size), name="recorded")


def features_of(head, runs, num_states=None):
    states = runs["aux_states"][None, :num_states]
    return head.features(TargetOutput(states[..., :0], states.chunk(3, dim=-1)))


def chained(head, runs):
    """Features entering each step [N, T, H] and logits [N, T, V_draft], every chain in a slot of its own.

    Slot t holds all pairs; its chain goes on at position t + 1, over the pairs that the slot holds from there.
    """
    features = features_of(head, runs)[:, :-1]
    num_pairs = features.shape[1]
    cache, slots = head.new_cache(num_pairs, num_pairs + NUM_STEPS), slice(0, num_pairs)
    positions = positions_from([0] * num_pairs, num_pairs)
    view = cache.view(slots, positions, num_pairs)
    each = torch.arange(num_pairs)
    output = head(runs["token_ids"][1:].expand(num_pairs, -1), features.expand(num_pairs, -1, -1), positions, view)
    entering, logits = [features[0]], [head.logits(output.hidden)[each, each]]
    following = output.next_features[each, each]
    for step in range(1, NUM_STEPS):
        entering.append(following)
        positions = each[:, None] + step
        view = cache.view(slots, positions, num_pairs + step)
        output = head(runs["step_ids"][step][:, None], following[:, None], positions, view)
        following = output.next_features[:, 0]
        logits.append(head.logits(output.hidden)[:, 0])
    return {"features": torch.stack(entering), "logits": torch.stack(logits)}


def drafts(head, runs):
    """Logits [N, V_draft] of drafts from each pair, the known pairs and the masked ones in one forward."""
    anchors, depths = runs["anchors"], runs["depths"]
    found = torch.empty_like(runs["logits"][0])
    for first in anchors.unique().tolist():
        of_draft = anchors == first
        num_masked = int(depths[of_draft].max())
        masks = torch.full((num_masked,), head.config.mask_token_id)
        tokens = torch.cat((runs["token_ids"][1 : first + 2], masks))[None]
        masked = head.mask_features().expand(1, num_masked, -1)
        joined = torch.cat((features_of(head, runs, first + 1), masked), dim=1)
        hidden = head(tokens, joined, positions_from([0], first + 1 + num_masked), None).hidden
        found[of_draft] = head.logits(hidden[0, first:])
    return {"logits": found}


def blocks(head, runs):
    """Logits [A, L, V_draft] of a block at each anchor, its first place, over a cache of what lies before it."""
    found, num_places = [], head.config.block_size
    for anchor in runs["anchors"].tolist():
        cache, positions = head.new_cache(1, anchor + num_places), positions_from([0], anchor)
        head.read(features_of(head, runs, anchor), positions, cache.view(slice(0, 1), positions, anchor))
        tokens = torch.full((1, num_places), head.config.mask_token_id)
        tokens[0, 0] = runs["token_ids"][anchor]
        all_see_all = torch.ones(num_places, num_places, dtype=torch.bool)
        tree = TreePlaces(torch.tensor([anchor]), torch.arange(num_places), all_see_all)
        view = cache.view(slice(0, 1), tree.absolute, anchor + num_places, tree)
        found.append(head.logits(head.fill_block(tokens, tree.absolute, view))[0])
    return {"logits": torch.stack(found)}


RUN = {"eagle3": chained, "peagle": drafts, "dflash": blocks}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in RUN for name in RECORDED[kind].cases])
@torch.inference_mode()
def test_what_a_head_computes_equals_the_recorded(kind, name, tmp_path):
    """Of EAGLE-3 a sequence and chains from each of its pairs, of P-EAGLE drafts from each pair, of DFlash blocks at
    each anchor. Would catch another position, feature, norm or mask of a masked pair than heads are trained with; a
    block that sees the state of its own first token, or its places in one direction alone; layers that share a cache.
    """
    case, runs = RECORDED[kind].cases[name], runs_of(kind)
    head = RECORDED[kind].load(name, tmp_path, target_of(kind), LOADERS[kind])
    for part, found in RUN[kind](head, runs).items():
        recorded = runs[part][case["row"]]
        if kind == "dflash":
            recorded = recorded[:, : case["block_size"], : head.vocab_size]
        torch.testing.assert_close(found, recorded, **TOLERANCES[kind])
    assert kind != "peagle" or head.assumptions == ()
    assert head.aux_layers == tuple(case.get("aux_layers", head.aux_layers))
    assert kind != "dflash" or head.config.block_size == case["block_size"]


@pytest.mark.parametrize("kind", RUN)
def test_the_recorded_cases_differ_from_each_other(kind):
    """Each field of a case reaches its outputs: otherwise a head that ignored the field would pass. Default layers are
    those of a case, and sizes given as a Llama's are the same sizes."""
    names = [name for name in RECORDED[kind].cases if name not in ("default layers", "sizes given as a Llama's")]
    rows = [runs_of(kind)["logits"][RECORDED[kind].cases[name]["row"]] for name in names]
    assert all((rows[one] - rows[other]).abs().max() > 0.1 for one in range(len(rows)) for other in range(one))
