"""The replay of runs: on the built-in models, from the command, and what it refuses."""

import gzip
import io
import json
import math
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from experiments import replay as command
from experiments import run as run_command
from harness.analysis.replay.estimators import Estimator, reaching, recorded_rule, replayed_rules, rule_name
from harness.analysis.replay.replayed import num_ended_drafts, replay
from harness.analysis.results import read_results
from harness.records.acceptance_terms import COLUMNS, TERMS_SUFFIX
from harness.report.replay.tables import width_text
from harness.report.replay.write import read_replay
from kernels.contract import Verification, VerificationMethod
from tests.support.own_process import output_of
from tests.support.synthetic_cells import analysed, cell_record, config, request_record, round_record, simulated_run

ROOT = Path(__file__).parents[2]
STANDARD_ERRORS = 5


@pytest.fixture(scope="module")
def zoo_run(tmp_path_factory) -> Path:
    """A small run of two methods on the built-in models that recorded its terms."""
    folder = tmp_path_factory.mktemp("zoo") / "run"
    settings = ["drafter=eagle", "drafting.num_speculative_tokens=3", "verification=coupled,block"]
    settings += ["workload.num_prompts=8", "workload.num_turns=1", "decoding.max_new_tokens=14"]
    settings += ["backend.max_concurrency=8", "measurement.num_blocks=1", "measurement.num_warmup_requests=0"]
    settings += ["measurement.round_terms=true", "measurement.baseline=false", f"output.folder={folder}"]
    assert run_command.main(settings) == 0
    return folder


@pytest.fixture
def copied_run(zoo_run, tmp_path) -> Path:
    return shutil.copytree(zoo_run, tmp_path / "run")


def test_sampled_and_replayed_acceptance_agree_on_the_zoo(zoo_run):
    """The run's own accepted tokens less their expectation given the drafts, in standard errors of that excess."""
    recorded = read_results(zoo_run).recording.cells
    assert len(recorded) == 2 and not read_replay(zoo_run, []).without_terms
    for item in recorded:
        rounds = {request.key: request.rounds for request in item.cell.record.requests}
        terms = item.terms
        places = zip(terms.request, terms.round_index, strict=True)
        accepted = np.array([rounds[terms.keys[request]][index].num_accepted_tokens for request, index in places])
        rule = recorded_rule(item.cell.record.config["verification"])
        excess = accepted - reaching(terms, rule, Estimator.given).sum(axis=1)
        assert len(excess) > 20
        assert abs(excess.mean()) < STANDARD_ERRORS * excess.std() / math.sqrt(len(excess))


def test_replay_repeats_the_expected_lengths_of_the_record(zoo_run):
    """Which were computed by other code, in torch; and all intervals contain their value."""
    for item in read_results(zoo_run).recording.cells:
        replayed = replay(item, replayed_rules())
        for method in ("strict", "probabilistic", "block"):
            found = replayed.estimate(f"{method} given")
            np.testing.assert_allclose(found, item.cell.estimate(f"expected_length_{method}"), rtol=1e-9)
        assert replayed.estimate("sampled") == pytest.approx(item.cell.estimate("full_draft_length"))


def test_command_writes_tables_and_figure(zoo_run, copied_run, capsys):
    assert command.main([str(copied_run), "--leniency", "0.8", "--typical", "0.1", "0.4", "--pdf"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("- Drafts: those that count in full") == shown.count("- given the drafts: mean of") == 1
    assert shown.rindex("\n|") < shown.index("\n- ")
    assert shown == (copied_run / "tables" / "replay.md").read_text() + "\n"
    assert all((copied_run / "figures" / f"replay.{kind}").stat().st_size > 10_000 for kind in ("png", "pdf"))
    frame = pd.read_csv(copied_run / "tables" / "replay.csv")
    methods = [
        "strict",
        "coupled",
        "probabilistic",
        "block",
        "typical(epsilon=0.1, delta=0.4)",
        "lenient(leniency=0.8)",
    ]
    assert list(frame["verification"].unique()) == methods
    assert set(frame["recorded_verification"]) == {"coupled", "block"}
    own = frame[frame["is_own"]]
    assert (own["verification"] == own["recorded_verification"]).all() and own["width_ratio"].notna().all()
    assert frame[~frame["is_own"]]["sampled_length"].isna().all()
    sums = 1 + frame[[f"acceptance_per_pos_{position}" for position in (1, 2, 3)]].sum(axis=1)
    np.testing.assert_allclose(frame["length"], sums, rtol=1e-12)
    lengths = frame[frame["estimator"] == "given"].groupby("verification")["length"].mean()
    assert lengths["strict"] < lengths["coupled"] < lengths["probabilistic"] < lengths["lenient(leniency=0.8)"]


def test_differences_are_paired_and_beside_sampled_ones(copied_run):
    assert command.main([str(copied_run), "--leniency", "0.8"]) == 0
    frame = pd.read_csv(copied_run / "tables" / "replay.csv")
    differences = pd.read_csv(copied_run / "tables" / "replay_differences.csv")
    length = frame.set_index(["cell_id", "verification", "estimator"])["length"]
    for row in differences.itertuples():
        first, second = (length[row.cell_id, name, row.estimator] for name in (row.first, row.second))
        assert row.difference == pytest.approx(second - first)
    sampled = differences[differences["sampled_difference"].notna()]
    assert set(zip(sampled["first"], sampled["second"], strict=True)) == {("coupled", "block")}
    assert len(sampled) == 4 and (sampled["width_ratio"] > 1).all()
    assert sampled["sampled_difference"].nunique() == 1


def test_every_column_is_documented(copied_run):
    text = (ROOT / "harness" / "analysis" / "COLUMNS.md").read_text()
    assert command.main([str(copied_run)]) == 0
    for name in ("replay", "replay_differences"):
        for column in pd.read_csv(copied_run / "tables" / f"{name}.csv").columns:
            plain = re.sub(r"_(low|high)$", "", re.sub(r"per_pos_[0-9]+", "per_pos_<i>", column))
            assert f"`{plain}`" in text, column
    assert all(f"`{column}`" in text or f"`{column.rpartition('_')[0]}_<n>`" in text for column in COLUMNS)


def test_the_command_needs_no_torch(zoo_run, tmp_path):
    code = (
        "import sys; from experiments.replay import main; "
        f"assert main([{str(zoo_run)!r}, '--output', {str(tmp_path)!r}]) == 0; "
        "assert not {'torch', 'transformers', 'hydra'} & set(sys.modules)"
    )
    output_of(code)


def test_a_run_without_terms_is_refused(tmp_path, capsys):
    assert command.main([str(simulated_run(tmp_path / "run"))]) == 2
    assert "found none; run with measurement.round_terms=true" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"), [(["--leniency", "0"], "leniency must lie in"), (["--typical", "2", "1"], "epsilon must")]
)
def test_a_wrong_parameter_is_named(zoo_run, arguments, message, capsys):
    assert command.main([str(zoo_run), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_terms_that_contradict_their_record_are_left_out(copied_run, capsys):
    """Terms of another cell under a cell's name, and expected lengths that do not follow from the terms.

    Would also catch edited terms that are consistent in themselves and that the digests of their run could show, and
    one cell that costs the other its replay.
    """

    def left_out():
        """What standard error says of the first cell, where the other one is replayed."""
        assert command.main([str(copied_run)]) == 1
        replayed = pd.read_csv(copied_run / "tables" / "replay.csv")["cell_id"]
        assert set(replayed) == {cells[1].name.removesuffix(TERMS_SUFFIX)}
        told = capsys.readouterr().err
        assert "no terms recorded" not in told
        return told

    cells = sorted((copied_run / "cells").glob(f"*{TERMS_SUFFIX}"))
    content = cells[0].read_bytes()
    shutil.copy(cells[1], cells[0])
    assert f"{cells[0].name}: terms are of cell" in left_out()

    with np.load(io.BytesIO(content)) as terms:
        np.savez(cells[0], **terms)
    assert f"{cells[0].name}: expected the file as the run wrote it" in left_out()

    cells[0].write_bytes(content)
    shutil.rmtree(copied_run / "checkpoints")
    path = cells[0].with_name(cells[0].name.replace(TERMS_SUFFIX, ".json.gz"))
    record = json.loads(gzip.decompress(path.read_bytes()))
    for request in record["requests"]:
        expected = request["rounds"]["expected_accepted"]
        request["rounds"]["expected_accepted"] = [item and [0.9 * value for value in item] for item in expected]
    path.write_bytes(gzip.compress(json.dumps(record).encode()))
    assert "from the record, found" in left_out()


def test_a_cell_whose_terms_are_missing_is_named(copied_run, capsys):
    next((copied_run / "cells").glob(f"*{TERMS_SUFFIX}")).unlink()
    assert command.main([str(copied_run)]) == 0
    assert "note: no terms recorded: eagle" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("ratio", "text"),
    [
        (5.0, "5.00 times narrower"),
        (0.96, "1.04 times wider"),
        (1.004, "as wide"),
        (0.996, "as wide"),
        (math.nan, "n/a"),
        (0.0, "n/a"),
    ],
)
def test_a_wider_interval_is_called_wider(ratio, text):
    """Would catch "0.96 times narrower"."""
    assert width_text(ratio) == text


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"method": "lenient", "leniency": 0.8}, "lenient(leniency=0.8)"),
        ({"method": "typical", "epsilon": 0.2, "delta": 0.3}, "typical(epsilon=0.2, delta=0.3)"),
        ({"method": "greedy"}, "strict"),
        ({"method": "pr35461"}, None),
        ({"method": "synthetic"}, None),
    ],
)
def test_the_rule_of_a_cell(settings, expected):
    rule = recorded_rule(settings)
    assert (rule and rule_name(rule)) == expected


def test_rules_are_named_as_the_results_name_them():
    rule = Verification(VerificationMethod.lenient, leniency=0.8)
    record = cell_record(
        [request_record([round_record(2, 1, 0.1)])],
        1.0,
        config(verification__method="lenient", verification__leniency=0.8),
    )
    assert analysed(record)[0]["verification"] == rule_name(rule)


def test_ended_drafts_are_those_that_the_length_limit_does_not_explain():
    """Limit 8: after 1 + 2 tokens, 5 remain, so 4 drafts have room; after 6, 2 remain and only one draft token has."""
    rounds = [round_record(0, 0, 0.1), round_record(3, 1, 0.2), round_record(2, 2, 0.3, num_proposed=3)]
    rounds.append(round_record(1, 1, 0.4, num_proposed=3))
    record = cell_record([request_record(rounds)], 1.0, config(decoding__max_new_tokens=8))
    assert num_ended_drafts(analysed(record)[0]) == 1
