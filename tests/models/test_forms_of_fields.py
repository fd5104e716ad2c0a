"""What a field of a checkpoint may be at all: text is never taken for true or false, nor a list for an object."""

from __future__ import annotations

import json
import shutil

import pytest

from harness.config.drafter import drafter_of
from harness.config.models import TargetConfig
from harness.config.schema import SettingsError
from harness.models.assumptions import assumed_of_drafter, assumed_of_target
from harness.models.check_files import check_drafter_files, check_target_files
from harness.models.checkpoint import CheckpointError
from harness.models.decoder_layer import config_class
from harness.models.eagle3_config import Eagle3Config
from harness.models.field_forms import ACTIVATIONS, FLAG, FORMS
from harness.models.known_fields import model_layout, tokenizer_layout
from harness.models.known_head_fields import HEAD_LAYOUTS
from harness.models.model_types import MODEL_TYPES
from harness.models.target import load_target
from tests.support.filed_models import ROLES, account, file_models, folder_of, load, put
from tests.support.tiny_heads import LOADERS
from tests.support.tiny_models import random_target


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """A target and a head of every kind that fits it, as folders by name."""
    root = tmp_path_factory.mktemp("models")
    file_models(root)
    return root


@pytest.fixture
def copied(models, tmp_path):
    """A copy of one of them, by name."""
    return lambda name: shutil.copytree(models / name, tmp_path / name)


def flags_of(layout):
    return [name for name in layout if FORMS.get(name) is FLAG]


def fields_of(models, role):
    return json.loads((models / folder_of(role) / "config.json").read_text())


@pytest.mark.parametrize("wrong", ["false", "no", 0])
@pytest.mark.parametrize("role", ROLES)
def test_a_flag_is_true_or_false(models, role, wrong):
    """Would catch "false", which counts as true: a head or a layer that computes the opposite of what its file says."""
    data = fields_of(models, role)
    places: list = [(data, "", model_layout("llama", runs_code=False))]
    if role not in ("target", "draft model"):
        kind = role.split()[0]
        places = [(data, "", HEAD_LAYOUTS[kind](data))]
        for within in ("transformer_layer_config", "eagle_config", "dflash_config"):
            known = places[0][2].get(within)
            if known is not None:
                inner = data.setdefault(within, {})
                places.append((inner, f"{within}.", known.layout(inner)))
    for place, prefix, layout in places:
        for name in flags_of(layout):
            changed = json.loads(json.dumps(data))
            (changed if place is data else changed[prefix[:-1]])[name] = wrong
            with pytest.raises(
                CheckpointError, match=rf"{prefix}{name} = {wrong!r} in config\.json, where true or false"
            ):
                account(role, changed)
    assert all(flags_of(layout) for _, prefix, layout in places if prefix != "dflash_config.")


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_what_a_configuration_takes_for_true_or_false_is_a_flag(model_type):
    """Would catch a field that is used, and whose text "false" would count as true."""
    defaults, layout = config_class(model_type)().to_dict(), model_layout(model_type, runs_code=False)
    used = [name for name, known in layout.items() if not known.note and type(defaults.get(name)) is bool]
    assert used and set(used) <= {*flags_of(layout)}
    own = [name for name, kind in Eagle3Config.__annotations__.items() if kind == "bool"]
    assert own and {*own} <= {*flags_of(HEAD_LAYOUTS["eagle3"]({}))}


@pytest.mark.parametrize("name", flags_of(tokenizer_layout(runs_code=False)))
def test_a_flag_of_a_tokenizer_is_true_or_false(copied, name):
    folder = copied("target")
    put(folder, "tokenizer_config.json", None, name, "false")
    with pytest.raises(CheckpointError, match=rf"{name} = 'false' in tokenizer_config\.json, where true or false"):
        load("target", folder, name)


def test_an_object_is_an_object(models):
    """Would catch a list in the place of an object, which counts as read."""
    for role in ROLES:
        data = fields_of(models, role)
        layout = (
            model_layout("llama", runs_code=False)
            if folder_of(role) == "target"
            else HEAD_LAYOUTS[role.split()[0]](data)
        )
        for name in [name for name, known in layout.items() if known.layout is not None]:
            with pytest.raises(
                CheckpointError, match=rf"{name} = \['x'\] in config\.json, where an object is expected"
            ):
                account(role, data | {name: ["x"]})


def test_activations_are_those_that_transformers_knows():
    """Would catch one that only a worker finds."""
    from transformers.activations import ACT2CLS

    assert {*ACTIVATIONS} == {*ACT2CLS}


WRONG = ("x", -1, [1])


@pytest.mark.parametrize("role", ["target", "eagle", "eagle3", "dflash", "dflash original"])
def test_what_a_loader_refuses_is_refused_before_a_worker_starts(copied, role):
    """Every field that a file states, with values that it cannot have; a worker would take seconds to find each."""
    folder, target_folder = copied(folder_of(role)), copied("target") if role != "target" else None
    target, path = random_target(), folder / "config.json"
    data = json.loads(path.read_text())
    late = []
    for name, wrong in ((name, wrong) for name, value in data.items() for wrong in WRONG if wrong != value):
        path.write_text(json.dumps(data | {name: wrong}))
        try:
            if target_folder is None:
                check_target_files(TargetConfig(path=str(folder)))
                assumed_of_target(TargetConfig(path=str(folder)))
            else:
                drafter = drafter_of(role.split()[0], path=str(folder))
                check_drafter_files(drafter, TargetConfig(path=str(target_folder)))
                assumed_of_drafter(drafter, TargetConfig(path=str(target_folder)))
        except (SettingsError, CheckpointError):
            continue
        try:
            load_target(folder) if target_folder is None else LOADERS[role.split()[0]](folder, target)
        except ValueError:
            late.append((name, wrong))
    assert not late
