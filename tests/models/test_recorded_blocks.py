"""DSpark and DFlash2 heads draft from the laws of their public code, as tests/support/record_blocks.py recorded it."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from harness.config.drafter import drafter_of
from harness.config.models import AS_FILED, Confidence, HeadChoices, TargetConfig
from harness.config.schema import SettingsError
from harness.models.check_files import check_drafter_files
from harness.models.checkpoint import CheckpointError
from harness.models.head_fits import NAMES
from harness.models.target import TargetModel, TargetOutput
from harness.models.tree_places import TreePlaces
from tests.support.tiny_heads import LOADERS
from tests.support.tiny_models import TOLERANCE, positions_from, random_causal_lm, word_tokenizer

pytestmark = pytest.mark.fast
RECORDED = Path(__file__).parents[1] / "data" / "blocks"
CASES: dict[str, Any] = json.loads((RECORDED / "cases.json").read_text())["cases"]


@cache
def runs():
    return load_file(RECORDED / "runs.safetensors")


@cache
def target():
    causal_lm = random_causal_lm(vocab_size=24, hidden_size=16, num_attention_heads=4)
    causal_lm.model.embed_tokens.weight.data.copy_(runs()["target_embedding"])
    causal_lm.lm_head.weight.data.copy_(runs()["target_output"])
    return TargetModel(causal_lm, word_tokenizer(24), name="recorded")


def load(case, folder, choices=AS_FILED, **changes):
    """The head of a case from the files as its code wrote them; `changes` are fields of config.json."""
    weights = load_file(RECORDED / "weights.safetensors")
    save_file({key.split()[0]: weights[key] for key in CASES[case]["tensors"]}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(CASES[case]["config"] | changes))
    return LOADERS[case.split()[0]](folder, target(), choices=choices)


def drafted(head, token_ids):
    """[K, V] probabilities of a block behind the recorded context, whose draft tokens are given."""
    rows = head.rows(places(head, len(token_ids)))
    return torch.cat([rows.row(step, *before) for step, before in enumerate(befores(token_ids))]).softmax(-1)


def befores(token_ids):
    """What a row is asked with: the token before it, and no memory."""
    return [(previous, None) for previous in (runs()["token_ids"][-1:], *token_ids[:-1, None])]


def places(head, num_drafts):
    """[1, K, H] the states of the places that draft, of a block behind the recorded context."""
    states, known = runs()["aux_states"][None], runs()["token_ids"]
    num_read, num_places = states.shape[1], head.config.num_places(num_drafts)
    cache, positions = head.new_cache(1, num_read + num_places), positions_from([0], num_read)
    view = cache.view(slice(0, 1), positions, num_read)
    head.read(head.features(TargetOutput(states[..., :0], states.chunk(3, dim=-1))), positions, view)
    block = torch.full((1, num_places), head.config.mask_token_id)
    block[0, 0] = known[-1]
    sees = torch.ones(num_places, num_places, dtype=torch.bool)
    tree = TreePlaces(torch.tensor([num_read]), torch.arange(num_places), sees)
    view = cache.view(slice(0, 1), tree.absolute, num_read + num_places, tree)
    return head.fill_block(block, tree.absolute, view)[:, -num_drafts:]


@pytest.mark.parametrize("case", CASES)
@torch.inference_mode()
def test_what_each_token_is_drawn_from_equals_the_recorded(case, tmp_path):
    """Would catch a bias of another token or place, a state of the recurrence that is lost, candidates of another
    place, a convolution that reaches into the context, and a window that is a place too long."""
    head = load(case, tmp_path)
    token_ids, probabilities = runs()[f"{case}/token_ids"], runs()[f"{case}/probabilities"]
    found = drafted(head, token_ids)
    torch.testing.assert_close(found, probabilities, **TOLERANCE)
    assert torch.equal(found == 0, probabilities == 0) and head.config.most_drafts == len(token_ids)


@pytest.mark.parametrize("case", ["dspark vanilla", "dspark gated"])
@torch.inference_mode()
def test_what_a_confidence_head_predicts_equals_the_recorded(case, tmp_path):
    """Would catch the embedding of another token, a head of states alone that gets one, and a product that begins
    late."""
    token_ids, expected = runs()[f"{case}/token_ids"], runs()[f"{case}/confidence"]
    for choice, values in ((Confidence.head, expected), (Confidence.survival, expected.cumprod(0))):
        head = load(case, tmp_path, HeadChoices(confidence=choice))
        predicted = head.confidence(places(head, len(token_ids)))
        found = torch.cat([predicted.at(step, previous) for step, (previous, _) in enumerate(befores(token_ids))])
        torch.testing.assert_close(found, values, **TOLERANCE)
        assert head.assumptions == ()


def test_a_confidence_head_that_is_not_asked_is_told_and_one_that_is_missing_refused(tmp_path):
    """Would catch weights that are left out in silence, and rows that decide where a head was asked for."""
    head = load("dspark vanilla", tmp_path)
    assert head.confidence(torch.zeros(1, 5, 16)) is None
    assert ["its confidence head decides nothing: drafter.confidence=head" in text for text in head.assumptions] == [
        True
    ]
    for case in ("dspark rnn", "dspark without"):
        assert load(case, tmp_path).assumptions == ()
        with pytest.raises(CheckpointError, match=r"expected a DSpark head with a confidence head .* found none"):
            load(case, tmp_path, HeadChoices(confidence=Confidence.survival))


def test_the_recorded_cases_differ_from_each_other():
    """Each field of a case reaches its rows: otherwise a head that ignored the field would pass."""
    for kind in ("dspark", "dflash2"):
        rows = [runs()[f"{case}/probabilities"] for case in CASES if case.startswith(kind)]
        assert all((rows[one] - rows[other]).abs().max() > 0.05 for one in range(len(rows)) for other in range(one))


def as_nested(config, *names):
    """The fields of blocks in dflash_config, as SpecForge writes them."""
    nested = {name: config[name] for name in ("mask_token_id", "target_layer_ids", *names)}
    return {name: value for name, value in config.items() if name not in nested} | {"dflash_config": nested}


def as_speculators(config, kind, *names):
    """The same in the layout of speculators."""
    own = config | config.get("dflash_config", {})
    layers = {name: value for name, value in config.items() if name in SIZES}
    kept = {name: own[name] for name in ("block_size", "mask_token_id", *names) if name in own}
    ids = [index + 1 for index in own["target_layer_ids"]]
    found = {"speculators_model_type": kind, "transformer_layer_config": layers, "aux_hidden_state_layer_ids": ids}
    return kept | found | {"draft_vocab_size": 24, "sliding_window_non_causal": True}


SIZES = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps", "rope_parameters", "layer_types"),
    *("sliding_window", "use_sliding_window"),
)
MARKOV = ("markov_rank", "markov_head_type", "enable_confidence_head", "confidence_head_with_markov")
SELECTOR = ("conv_kernel_size", "conv_group_size", "selector_rank", "selector_top_k")
LAYOUTS = {
    "DSpark of SpecForge": ("dspark gated", lambda config: as_nested(config, *MARKOV)),
    "DSpark of speculators": ("dspark rnn", lambda config: as_speculators(config, "dspark", *MARKOV)),
    "DFlash2 of speculators": ("dflash2 windows", lambda config: as_speculators(config, "dflash2", *SELECTOR)),
}


@pytest.mark.parametrize(("case", "change"), LAYOUTS.values(), ids=LAYOUTS)
@torch.inference_mode()
def test_other_layouts_say_the_same(case, change, tmp_path):
    """Would catch a field that is read in one place alone, and layers counted otherwise."""
    load(case, tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(change(CASES[case]["config"])))
    head = LOADERS[case.split()[0]](tmp_path, target())
    found = drafted(head, runs()[f"{case}/token_ids"])
    torch.testing.assert_close(found, runs()[f"{case}/probabilities"], **TOLERANCE)
    assert head.aux_layers == (1, 3, 5)


@pytest.mark.parametrize("case", ["dspark vanilla", "dspark without", "dflash2 plain"])
def test_a_head_given_as_another_kind_is_refused_with_the_drafter_that_runs_it(case, tmp_path):
    """Would catch DSpark measured as DFlash, by a file whose Markov head has rank 0 too."""
    load(case, tmp_path)
    kind = case.split()[0]
    for other in ({"dflash", "dspark", "dflash2", "eagle3"}) - {kind}:
        with pytest.raises(SettingsError, match=f"found a {NAMES[kind]} head in .*; drafter={kind} runs it"):
            check_drafter_files(drafter_of(other, path=str(tmp_path)), TargetConfig())


REFUSED = {
    "no rank": ("dspark vanilla", {"markov_rank": None}, "expected markov_rank as one number, found None"),
    "a rank below 0": ("dspark vanilla", {"markov_rank": -1}, "expected markov_rank 0 or more, found -1"),
    "no type": ("dspark vanilla", {"markov_head_type": None}, "expected markov_head_type vanilla, gated or rnn, found"),
    "another type": (
        "dspark vanilla",
        {"markov_head_type": "lstm"},
        "markov_head_type vanilla, gated or rnn, found .lstm.",
    ),
    "a confidence head of unknown inputs": (
        "dspark gated",
        {"confidence_head_with_markov": None},
        "expected confidence_head_with_markov beside enable_confidence_head, found none",
    ),
    "a confidence head of embeddings that there are not": (
        "dspark without",
        {"enable_confidence_head": True, "confidence_head_with_markov": True},
        "expected markov_rank above 0 beside confidence_head_with_markov true",
    ),
    "a confidence head that is not stated": (
        "dspark vanilla",
        {"enable_confidence_head": False},
        "2 tensors that nothing reads: confidence_head.proj.bias, confidence_head.proj.weight",
    ),
    "a confidence head without tensors": (
        "dspark rnn",
        {"enable_confidence_head": True, "confidence_head_with_markov": True},
        "confidence_head.proj.weight",
    ),
    "a recurrence behind the anchor": (
        "dspark rnn",
        {"sample_from_anchor": False},
        "expected drafts that begin at the known token's place beside markov_head_type rnn",
    ),
    "groups that do not divide": (
        "dflash2 plain",
        {"dflash_config": {"conv_group_size": 5}},
        "expected conv_group_size to divide hidden_size 16, found 5",
    ),
    "more candidates than tokens": (
        "dflash2 plain",
        {"dflash_config": {"selector_top_k": 25}},
        "expected selector_top_k of at most 24, its vocabulary, found 25",
    ),
    "no taps": ("dflash2 plain", {"dflash_config": {"conv_kernel_size": 0}}, "conv_kernel_size 1 or more, found 0"),
    "drafts at the anchor": ("dflash2 plain", {"sample_from_anchor": True}, "begin behind the anchor, found sample"),
    "causal windows": (
        "dflash2 windows",
        {"is_causal": None},
        "expected is_causal false .* beside windows, found none",
    ),
    "a window of no size": ("dflash2 windows", {"sliding_window": 0}, "expected sliding_window as a number of places"),
    "windows of DSpark": (
        "dspark vanilla",
        {"layer_types": ["sliding_attention", "full_attention"]},
        "would change what the layers attend to",
    ),
}


@pytest.mark.parametrize(("case", "changes", "message"), REFUSED.values(), ids=REFUSED)
def test_files_that_say_what_is_not_run_are_refused(case, changes, message, tmp_path):
    nested = CASES[case]["config"].get("dflash_config", {})
    given = changes | ({"dflash_config": nested | changes["dflash_config"]} if "dflash_config" in changes else {})
    with pytest.raises(CheckpointError, match=message) as refused:
        load(case, tmp_path, **given)
    assert "\n" not in str(refused.value)


def test_windows_without_use_sliding_window_are_taken_and_told(tmp_path):
    """As in the files of its authors, whose layers transformers runs without windows."""
    (told,) = load("dflash2 windows", tmp_path, use_sliding_window=None).assumptions
    assert told.startswith("its layer_types ask for windows of 7 places, which are taken")
    assert load("dflash2 windows", tmp_path).assumptions == load("dflash2 plain", tmp_path).assumptions == ()


def test_layers_run_unfused_where_a_window_is_shorter_than_a_slot(tmp_path):
    """Would catch a fused layer that sees all of a slot, and a head that is slow for nothing."""
    for capacity, is_fused in ((7, True), (8, False)):
        head = load("dflash2 windows", tmp_path)
        assert head.fuse() is None
        assert (head.new_cache(1, capacity).rope_table is not None) is is_fused
        assert any("windows of 7 places, of slots of 8" in text for text in head.fallbacks) is not is_fused
