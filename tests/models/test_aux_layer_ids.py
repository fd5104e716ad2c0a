"""Which layers of the target the ids in a head's file stand for, by place and dialect."""

from __future__ import annotations

import json
from shutil import copytree

import pytest

from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.sections import DecodingConfig
from harness.models.assumptions import assumed_of_cell
from harness.models.aux_layer_ids import aux_layers_of
from harness.models.check_model_configs import check_model_configs
from harness.models.zoo import zoo_path
from harness.workload.conversations import Conversation
from harness.workload.prompt import Prompt

pytestmark = pytest.mark.fast

NUM_LAYERS = 10
KEY = "eagle_aux_hidden_state_layer_ids"


@pytest.mark.parametrize(
    ("kind", "fields", "layers", "told"),
    [
        # as speculators and vLLM read them
        ("eagle3", {KEY: [2, 5, 7]}, (2, 5, 7), None),
        ("eagle3", {KEY: [1, 4, 6]}, (1, 4, 6), "as vLLM does; if their output was meant, which would be the usual"),
        ("eagle3", {KEY: [1, 4, 7]}, (1, 4, 7), None),
        ("peagle", {KEY: [2, 5, 7]}, (2, 5, 7), None),
        # as SpecForge, ModelOpt and SGLang read them
        ("eagle3", {"eagle_config": {KEY: [1, 4, 6]}}, (2, 5, 7), None),
        ("peagle", {"eagle_config": {KEY: [1, 4, 6]}}, (2, 5, 7), None),
        ("eagle3", {"eagle_config": {KEY: [3, 5, 7]}}, (3, 5, 7), "as SGLang does, while ModelOpt takes their output"),
        # the state after the last layer enters none
        ("eagle3", {"eagle_config": {KEY: [3, 5, 10]}}, (3, 5, 10), None),
        ("eagle3", {"eagle_config": {KEY: [1, 4, 6]}, KEY: [2, 5, 7]}, (2, 5, 7), None),
        ("eagle3", {"target_layer_ids": [1, 4, 6]}, (2, 5, 7), None),
        ("eagle3", {}, (2, 5, 7), "its file names no auxiliary layers, and [2, 5, 7] are taken"),
        ("eagle3", {"eagle_config": {KEY: None, "use_aux_hidden_state": True}, KEY: []}, (2, 5, 7), "names no auxil"),
        ("dflash", {"aux_hidden_state_layer_ids": [1, 4, 6]}, (1, 4, 6), None),
        ("dflash", {"dflash_config": {"target_layer_ids": [1, 4, 6]}}, (2, 5, 7), None),
        ("dflash", {"target_layer_ids": [1, 4, 6]}, (2, 5, 7), None),
        # z-lab's spread from the output of 1 to that of n - 3
        ("dflash", {"dflash_config": {}, "num_hidden_layers": 3}, (2, 5, 8), "its file names no auxiliary layers"),
        ("dflash", {"dflash_config": {}, "num_hidden_layers": 1}, (6,), "its file names no auxiliary layers"),
    ],
)
def test_the_place_and_the_first_id_tell_inputs_from_outputs(kind, fields, layers, told):
    """Would catch ids that are off by one layer, and a guess without a word."""
    found = aux_layers_of(kind, fields, NUM_LAYERS)
    assert found.layers == layers
    assert len(found.assumed) == (told is not None) and all(told in text for text in found.assumed)


def test_layers_that_the_user_gives_count_in_place_of_the_files():
    given = aux_layers_of("eagle3", {"eagle_config": {KEY: [1, 4, 6]}}, NUM_LAYERS, [1, 4, 6])
    told = f"drafter.aux_layers=[1, 4, 6] counts, and not eagle_config.{KEY} [1, 4, 6] of its file"
    assert given == ((1, 4, 6), (told,))
    assert aux_layers_of("eagle3", {KEY: [1, 4, 6]}, NUM_LAYERS, [1, 4, 6]).assumed == ()
    assert aux_layers_of("dflash", {}, NUM_LAYERS, [3]) == ((3,), ())


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("eagle3", {KEY: [1, 4, 6], "eagle_config": {KEY: [1, 4, 6]}}, r"found eagle_.* \[1, 4, 6\] and eagle_c"),
        ("eagle3", {KEY: "1,4,6"}, f"expected {KEY} as a list of layers, found '1,4,6'"),
        ("dflash", {"dflash_config": {"target_layer_ids": [True]}}, r"expected dflash_config\.target_layer_ids as a l"),
        ("eagle3", {"eagle_config": {KEY: [1, 10]}}, r"different layers from 0 to 10, .* found \[2, 11\]"),
        ("eagle3", {KEY: [2, 2]}, r"different layers from 0 to 10, .* found \[2, 2\]"),
        ("dflash", {"aux_hidden_state_layer_ids": [10]}, r"different layers from 0 to 9, .* found \[10\]"),
        ("dflash", {}, "expected aux_hidden_state_layer_ids as a list of layers, found none; name .*aux_layers"),
    ],
)
def test_ids_that_are_none_or_contradict_each_other_are_refused(kind, fields, message):
    with pytest.raises(ValueError, match=message):
        aux_layers_of(kind, fields, NUM_LAYERS)


def drafted(store, **fields):
    """(drafts accepted in each round, layers read, what was assumed) of the built-in target with a head."""
    cell = CellConfig(
        drafter=drafter_of(DrafterKind.eagle3, **fields),
        decoding=DecodingConfig(temperature=0.0, max_new_tokens=24, ignore_eos=True),
        backend=Local(device="cpu", dtype="float32", max_concurrency=1),
    )
    check_model_configs([cell])
    backend = LocalBackend(cell, store)
    (request,) = backend.generate([Conversation(Prompt("one", "test", ("Name a colour.",)), 0, 7)]).requests
    facts = backend.facts()
    assert assumed_of_cell(cell) == facts.assumptions
    return [item.num_accepted_tokens for item in request.rounds], facts.aux_layers, facts.assumptions


def test_a_head_of_the_original_layout_is_run_with_the_layers_that_it_was_trained_on(tmp_path):
    """The built-in head as SpecForge would write it. Would catch its ids taken for the layers that states enter, a
    setting that the loader does not see, and a loaded head that stands for one of other layers."""
    copytree(zoo_path("eagle3"), tmp_path / "head")
    fields = json.loads((tmp_path / "head" / "config.json").read_text())
    sizes = fields["transformer_layer_config"] | {"draft_vocab_size": fields["draft_vocab_size"]}
    nested = {"eagle_config": {KEY: [1, 4, 6], "use_aux_hidden_state": True}}
    (tmp_path / "head" / "config.json").write_text(json.dumps(sizes | nested))
    path, store = str(tmp_path / "head"), ModelStore()
    own, read = drafted(store), drafted(store, path=path)
    assert own == read == (own[0], (2, 5, 7), ())
    accepted, layers, (told,) = drafted(store, path=path, aux_layers=[1, 4, 6])
    assert layers == (1, 4, 6) and accepted != own[0]
    assert told == f"drafter: drafter.aux_layers=[1, 4, 6] counts, and not eagle_config.{KEY} [1, 4, 6] of its file"
