"""The identity of cells, which names their records: it never moves; and the settings that make two cells the same."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from harness.config.cell import CellConfig
from harness.config.drafting import CacheDtype, DraftingConfig
from harness.config.identity import determinants, key_without, plain_values
from harness.config.usage import normal_form, unused_settings, used_settings, without_settings
from harness.config.view import SettingsView
from harness.records.files import identity
from harness.runner.plan.from_records import recorded_cell

pytestmark = pytest.mark.fast

TABLE = (Path(__file__).parents[1] / "data" / "cell_ids.txt").read_text(encoding="utf-8").splitlines()[1:]
ROWS = [[part.strip() for part in line.split("|")] for line in TABLE]
CELLS = {used: (ignored, known) for known, used, ignored in ROWS}
"""Settings that a cell uses -> settings that it ignores, and the id that its record has for good."""


def cell(settings):
    config = {}
    for setting in settings.split():
        key, _, value = setting.partition("=")
        section, _, name = key.rpartition(".")
        (config.setdefault(section, {}) if section else config)[name] = yaml.safe_load(value)
    return recorded_cell(SimpleNamespace(config=config, cell_id="of the table"))


def recorded(settings):
    """The settings of a cell as its record holds them."""
    return plain_values(settings) | {
        "draft_sampling": settings.draft_sampling.value,
        "device": settings.backend.device,
        "dtype": settings.backend.dtype,
    }


def cell_id(settings):
    models = {"target": "t"} | ({"drafter": "d"} if settings.drafter.has_model else {})
    return identity(determinants(settings, "prompts", models))


@pytest.mark.parametrize("used", CELLS)
def test_ids_of_recorded_cells_never_move(used):
    """Would catch a new setting that is not left out at its default, and an ignored one that is not."""
    ignored, expected = CELLS[used]
    assert cell_id(cell(used)) == cell_id(cell(f"{used} {ignored}")) == expected


@pytest.mark.parametrize("used", CELLS)
def test_an_ignored_setting_is_neither_in_the_normal_form_nor_in_a_report(used):
    plain, odd = cell(used), cell(f"{used} {CELLS[used][0]}")
    assert normal_form(odd) == normal_form(plain) == plain
    assert used_settings(recorded(odd)) == used_settings(recorded(plain))


@pytest.mark.parametrize(
    "settings", [*CELLS, *(f"{used} {ignored}" for used, (ignored, _) in CELLS.items() if ignored)]
)
def test_a_cell_and_its_record_use_the_same_settings(settings):
    """Would catch a setting that the command line refuses as unused and a report lists, or the other way round."""
    views = SettingsView.of_cell(cell(settings)), SettingsView.of_record(recorded(cell(settings)))
    assert unused_settings(views[0]) == unused_settings(views[1])


@pytest.mark.parametrize("section", ["target", "drafter"])
def test_what_the_user_vouches_for_is_part_of_a_cell_where_its_files_are_read(section):
    """Would catch a record of a model whose field was left out that stands for one in which nothing was."""
    accepted = f"{section}.accept_unknown=[logit_scale]"
    plain = "drafter.kind=eagle3 drafter.path=owner/head target.path=owner/model"
    assert cell_id(cell(f"{plain} {accepted}")) != cell_id(cell(plain))
    assert cell_id(cell(f"drafter.kind=eagle3 {accepted}")) == cell_id(cell("drafter.kind=eagle3"))


@pytest.mark.parametrize("said", ["aux_layers=[1,4,6]", "anchor=first"])
def test_what_the_user_says_of_a_head_is_part_of_a_cell_that_reads_it(said):
    """Would catch a record of other states, or of drafts that begin elsewhere, that stands for the cell."""
    plain = "drafter.kind=dflash drafter.path=owner/head"
    assert cell_id(cell(f"{plain} drafter.{said}")) != cell_id(cell(plain))


def test_layers_of_transformers_are_another_cell_where_there_are_some_of_our_own():
    """Their sums have another order. What serves has layers of its own."""
    ids = {name: cell_id(cell(f"target.path=x target.layers={name}")) for name in ("auto", "own", "transformers")}
    assert ids["auto"] == ids["own"] != ids["transformers"]
    served = [cell(f"backend.kind=server target.path=x target.layers={name}") for name in ("auto", "transformers")]
    assert cell_id(served[0]) == cell_id(served[1])


def test_layers_that_are_not_compiled_are_no_other_cell():
    """Would catch a cell that is planned under one id and recorded under another, as what ran is filled in."""
    planned = cell("drafter.kind=none")
    found = {given: replace(planned, backend=replace(planned.local, compile=given)) for given in (None, False, True)}
    ids = {given: cell_id(each) for given, each in found.items()}
    assert ids[None] == ids[False] != ids[True]


@pytest.mark.parametrize("changed", ["presence_penalty=0.5", "min_tokens=4", "logit_bias=5:-2"])
def test_what_changes_logits_is_part_of_a_cell(changed):
    """Would catch a record of other logits that stands for the cell; ids without any are in the table above."""
    assert cell_id(cell(f"decoding.{changed}")) != cell_id(cell("decoding.temperature=1"))


def test_a_cache_of_the_drafters_own_type_is_no_other_cell():
    own = cell("drafter.kind=eagle3 backend.kind=local backend.dtype=bfloat16")
    named = replace(own, drafting=DraftingConfig(cache_dtype=CacheDtype.bfloat16))
    assert normal_form(named) == own and cell_id(named) == cell_id(own)


def test_a_record_older_than_a_section_is_read():
    older = without_settings(recorded(CellConfig()), ["constraint", "target.revision"])
    assert "constraint" not in used_settings(older) and used_settings(older)["drafter"] == {"kind": "none"}


def test_a_model_is_what_its_folder_in_a_cache_holds():
    """Would catch the same head in the caches of two users as two drafters, and two heads of one name as one."""
    tails = ("unpacked/0123456789abcdef/eagle3", "unpacked/0123456789abcdee/eagle3", "gguf/a.Q4_1-0123456789ab")
    tails += ("models--org--head/snapshots/0a1b", "models--org--head/snapshots/0a1c", "mine/eagle3")

    def keys(cache):
        paths = (f"{cache}/{tail}" for tail in tails)
        return [key_without(cell(f"drafter.kind=eagle3 drafter.path={path} target.path={path}")) for path in paths]

    one, other = keys("/one/cache"), keys("/two/cache")
    assert [a == b for a, b in zip(one, other, strict=True)] == [True] * 5 + [False], "a folder of the user's own"
    assert len({*one}) == len(tails)


def test_cells_that_differ_in_named_settings_alone_have_one_key():
    one, other = cell("drafter.kind=mtp verification.method=strict"), cell("drafter.kind=mtp drafting.sampling=greedy")
    named = "verification", "drafting.sampling"
    assert key_without(one, *named) == key_without(other, *named) != key_without(other)
    assert key_without(one, "verification") != key_without(other, "verification")
    assert key_without(one, "seed") == key_without(plain_values(one), "seed"), "a record's settings are as good"
