"""What a field of a checkpoint may be at all: text is never taken for true or false, nor a list for an object."""

from __future__ import annotations

import json
import shutil

import pytest

from harness.models.checkpoint import CheckpointError
from harness.models.decoder_layer import config_class
from harness.models.eagle3_config import Eagle3Config
from harness.models.known_fields import FLAG, model_layout, tokenizer_layout
from harness.models.known_head_fields import HEAD_LAYOUTS
from harness.models.model_types import MODEL_TYPES
from tests.support.filed_models import ROLES, account, file_models, folder_of, load, put


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
    return [name for name, known in layout.items() if known.form is FLAG]


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
