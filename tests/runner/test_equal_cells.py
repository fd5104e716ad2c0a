"""Which settings make another cell, which do not, and the baselines that cells share."""

import json
from dataclasses import asdict, replace

import pytest

from harness.config.backend import Local
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.drafting import DraftingConfig
from harness.config.guarantee import labels
from harness.config.identity import determinants
from harness.config.models import Confidence, TargetConfig, Weights
from harness.config.sections import DecodingConfig, MeasurementConfig
from harness.config.usage import normal_form
from harness.config.verification import recorded_verification
from harness.config.workload import WorkloadConfig
from harness.records.files import identity
from harness.runner.plan.run_plan import with_baselines
from kernels.contract import VerificationMethod
from kernels.verification import Verification
from tests.config.test_config import PROFILE, RANDOM, cell, synthetic

pytestmark = pytest.mark.fast


def test_a_profile_and_its_rates_are_the_same_cell():
    by_name = cell(verification=synthetic(profile=PROFILE), num_tokens=3)
    by_rates = cell(verification=synthetic(rates=(0.6, 0.37, 0.23)), num_tokens=3)
    assert determinants(by_name) == determinants(by_rates)
    by_name, by_rates = (recorded_verification(each.verification, is_tree=False) for each in (by_name, by_rates))
    assert by_name == by_rates | {"profile": PROFILE}


def test_where_weights_come_from_makes_another_cell():
    drafters = [drafter_of(DrafterKind.eagle3, weights=weights) for weights in Weights]
    targets = [TargetConfig(weights=weights) for weights in Weights]
    cells = [replace(cell(), target=target, drafter=drafter) for target in targets for drafter in drafters]
    assert len({identity(determinants(item)) for item in cells}) == 4
    assert [labels(item) for item in cells] == [
        (),
        ("drafter weights: random",),
        ("target weights: random",),
        ("weights: random",),
    ]


def test_settings_of_weights_that_a_drafter_ignores_do_not_make_another_cell():
    mtp = [drafter_of(DrafterKind.mtp, weights=RANDOM, path=path) for path in (None, "unused")]
    assert determinants(replace(cell(), drafter=mtp[0])) == determinants(replace(cell(), drafter=mtp[1]))
    shaped = [drafter_of(DrafterKind.draft_model, weights=RANDOM, shape=shape) for shape in ("a", "b")]
    assert determinants(replace(cell(), drafter=shaped[0])) != determinants(replace(cell(), drafter=shaped[1]))


def test_what_ends_drafts_makes_another_cell_where_something_ends_them():
    """Would catch cells that differ in name alone, and ids of cells that were measured before there was a choice."""
    kinds = [drafter_of(DrafterKind.dspark, weights=RANDOM, confidence=choice) for choice in Confidence]
    for least, number in ((0.0, 1), (0.3, 3)):
        drafting = DraftingConfig(min_confidence=least)
        found = [determinants(replace(cell(), drafter=kind, drafting=drafting)) for kind in kinds]
        assert len({identity(item) for item in found}) == number
        assert "confidence" not in found[0]["drafter"]


def test_the_length_of_prompts_makes_another_cell():
    exact = [WorkloadConfig(num_turns=1, prompt_tokens=num_tokens) for num_tokens in (None, 8, 9)]
    found = [determinants(cell(workload=workload), "p", {"target": "a"}) for workload in exact]
    assert len({identity(item) for item in found}) == 3


def test_the_version_of_coupled_noise_is_in_the_identity_of_cells_that_draw_it_and_of_no_others(monkeypatch):
    """Would catch results of other noise that are taken for the same cell, and ids that change without need."""
    coupled = [cell(method="coupled"), cell(method="pr35461"), cell(method="strict", sampling="coupled")]
    others = [cell(), cell(method="block"), cell("none", "coupled")]
    before = [determinants(item) for item in (*coupled, *others)]
    monkeypatch.setattr("harness.config.identity.COUPLED_STREAM_VERSION", 99)
    after = [determinants(item) for item in (*coupled, *others)]
    assert [one != other for one, other in zip(before, after, strict=True)] == [True] * 3 + [False] * 3
    assert not any("version" in key for item in after[3:] for key in item)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (synthetic(length=2.5), synthetic(rates=(1.0, 0.5))),
        (synthetic(rates=(0.5,)), synthetic(rates=(0.5, 0.0))),
        (synthetic(rates=(0.5,)), synthetic(rates=(0.5,), tree_rates=((0.7,),))),
        (Verification(VerificationMethod.fly), Verification(VerificationMethod.fly, window_size=3)),
    ],
)
def test_what_the_core_takes_is_the_cell_however_it_was_written(one, other):
    """Would catch two records of cells that cannot differ in their result."""
    assert determinants(cell(verification=one)) == determinants(cell(verification=other))


def test_parameters_make_another_cell():
    lenient = [cell(verification=Verification(VerificationMethod.lenient, leniency=x)) for x in (0.3, 0.6)]
    assert determinants(lenient[0]) != determinants(lenient[1])


def test_settings_of_the_drafter_make_another_cell():
    ngram = [replace(cell("ngram"), drafter=drafter_of(DrafterKind.ngram, ngram_max=x)) for x in (4, 9)]
    assert determinants(ngram[0]) != determinants(ngram[1])


def test_the_baseline_ignores_drafting_and_verification():
    baselines = [cell("none", "block", num_tokens=1), cell("none", "strict", num_tokens=7)]
    assert determinants(baselines[0]) == determinants(baselines[1])


def test_auto_and_what_it_is_resolved_to_are_the_same_cell():
    assert determinants(cell(sampling="sampled")) == determinants(cell(sampling="auto"))
    assert determinants(cell(sampling="greedy")) != determinants(cell(sampling="auto"))


@pytest.mark.parametrize(
    "change",
    [
        {"decoding": DecodingConfig(top_p=0.9)},
        {"decoding": DecodingConfig(max_new_tokens=65)},
        {"drafting": DraftingConfig(3)},
        {"workload": WorkloadConfig(num_requests=7)},
        {"backend": Local(max_concurrency=3)},
        {"measurement": MeasurementConfig(num_blocks=3)},
        {"seed": 1},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_determines_the_result_changes_the_identity(change):
    fingerprints = ("prompts", {"target": "a", "drafter": "b"})
    changed = identity(determinants(replace(cell(), **change), *fingerprints))
    assert changed != identity(determinants(cell(), *fingerprints))


def test_labels_and_summaries_do_not_change_the_identity():
    changed = replace(
        cell(),
        target=TargetConfig(name="other label"),
        measurement=MeasurementConfig(baseline=False, num_resamples=100, confidence=0.9),
    )
    assert determinants(changed) == determinants(cell())


def test_fingerprints_stand_for_paths():
    here, there = (
        replace(cell(), drafter=drafter_of(DrafterKind.eagle3, path=path), workload=WorkloadConfig(path=path))
        for path in ("here", "there")
    )
    assert determinants(here) != determinants(there)
    assert determinants(here, "p", {"target": "a"}) == determinants(there, "p", {"target": "a"})
    assert determinants(here, "p", {"target": "a"}) != determinants(here, "p", {"target": "b"})


def test_determinants_are_plain_json():
    content = determinants(cell(method="synthetic"), "p", {"target": "a"})
    assert json.loads(json.dumps(content, allow_nan=False)) == content


def test_baselines_stand_first_and_once_per_decoding():
    cells = [cell(temperature=t, method=method) for t in (0.0, 1.0) for method in ("strict", "block")]
    planned = with_baselines(cells)
    assert [(item.is_baseline, item.decoding.temperature) for item in planned] == [
        (True, 0.0),
        (True, 1.0),
        (False, 0.0),
        (False, 0.0),
        (False, 1.0),
        (False, 1.0),
    ]


def test_the_baseline_can_be_left_out():
    without = MeasurementConfig(baseline=False)
    assert [item.is_baseline for item in with_baselines([cell(measurement=without)])] == [False]
    asked_for = [cell("none", measurement=without), cell(measurement=without)]
    assert [item.is_baseline for item in with_baselines(asked_for)] == [True, False]


def test_every_setting_of_a_canonical_cell_survives():
    given = cell(method="lenient", verification=Verification(VerificationMethod.lenient, leniency=0.4))
    assert asdict(normal_form(given)) == asdict(given)
