"""Where greedy answers part, a near tie is told from a wrong token by the target's logits in float32."""

import shutil
from dataclasses import replace

import pytest

from experiments.partings import main
from experiments.run import main as run_cells
from harness.analysis.results import read_results
from harness.checks.partings import attribute
from harness.records.files import write_cell
from harness.records.finished import CHECKPOINTS
from harness.records.partings import PARTINGS, read_partings
from harness.report.tables.partings import partings_tables
from tests.support.prompt_files import write_lines


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run at temperature 0 with the two best log-probabilities of every token, some of which are near."""
    return greedy_run(tmp_path_factory.mktemp("greedy"), "workload.num_prompts=6")


def greedy_run(folder, *settings):
    small = ["drafter=ngram", "decoding.temperature=0", "decoding.logprobs=2", "backend.device=cpu"]
    small += ["workload.num_turns=1", "decoding.max_new_tokens=40", "measurement.num_warmup_requests=0"]
    assert run_cells([*small, *settings, "measurement.num_resamples=100", f"output.folder={folder}"]) == 0
    return folder


def altered(run, folder, choose, dtype):
    """Put the second best token into one answer, as cells of a dtype; returns the request's key and the place, from 1.

    The place is chosen among all by the gap of the two best log-probabilities there.
    """
    baseline, cell = (item.record for item in read_results(run).cells)
    gaps = {
        (number, place): best[0] - best[1]
        for number, request in enumerate(cell.requests)
        for place, best in enumerate(request.logprobs.top)
    }
    number, place = choose(gaps, key=gaps.__getitem__)
    requests = list(cell.requests)
    tokens = list(requests[number].output_token_ids)
    tokens[place] = requests[number].logprobs.top_token_ids[place][1]
    requests[number] = replace(requests[number], output_token_ids=tuple(tokens))
    # the digests of what the run wrote lie there
    shutil.copytree(run, folder, ignore=shutil.ignore_patterns(CHECKPOINTS))
    for record in (baseline, replace(cell, requests=tuple(requests))):
        write_cell(replace(record, config={**record.config, "dtype": dtype}), folder / "cells")
    return requests[number].key, place + 1, gaps[number, place]


def test_equal_answers_part_nowhere(run):
    assert attribute(read_results(run).cells) == []


@pytest.mark.parametrize(
    ("choose", "dtype", "is_near_tie"),
    [(min, "bfloat16", True), (max, "bfloat16", False), (min, "float32", False)],
    ids=["closest call", "clearest call", "closest call in float32"],
)
def test_another_token_is_a_near_tie_only_where_rounding_moves_the_gap_so_far(
    run, choose, dtype, is_near_tie, tmp_path, capsys
):
    """Would catch a fault that is laid to rounding, and logits behind another text than the one both answers share."""
    folder = tmp_path / "altered"
    key, place, gap = altered(run, folder, choose, dtype)
    assert main([str(folder)]) == (0 if is_near_tie else 1)
    (found,) = read_partings(folder)
    assert ((found.prompt_id, found.turn, found.sample), found.place) == (key, place)
    assert found.is_near_tie is is_near_tie and set(found.tokens) == set(found.best_tokens)
    assert found.gap == found.behind == pytest.approx(gap, abs=1e-3)
    assert f"partings: 1, near ties: {int(is_near_tie)}, others: {int(not is_near_tie)}" in capsys.readouterr().err
    (table,) = partings_tables(read_results(folder).cells, read_results(folder).partings)
    counted = dict(zip(table.header, table.texts[0], strict=True))
    assert (counted["near ties"], counted["no near tie"], counted["parted"]) == (
        str(int(is_near_tie)), str(int(not is_near_tie)), "1",
    )  # fmt: skip
    assert table.title in (folder / "tables" / "paired.md").read_text()


@pytest.mark.parametrize(("rounded", "num_found"), [("gptq weights, 4 bits", 0), ("GGUF Q8_0 weights", 1)])
def test_rounded_weights_are_looked_at_only_where_float32_is_exact(run, rounded, num_found, tmp_path):
    """Would catch near ties of a quantized checkpoint that are told as faults: its kernels round in every dtype."""
    folder, told = tmp_path / "altered", []
    altered(run, folder, min, "bfloat16")
    for item in read_results(folder).cells:
        write_cell(replace(item.record, rounded_weights=rounded), folder / "cells")
    assert len(attribute(read_results(folder).cells, tell=told.append)) == num_found
    assert [f"left out, {rounded}" in line for line in told] == [True] * (1 - num_found)


def test_what_was_found_of_other_answers_is_not_counted_and_a_damaged_file_is_named(run, tmp_path):
    """Would catch verdicts on answers that a later run has replaced."""
    folder = tmp_path / "altered"
    altered(run, folder, max, "bfloat16")
    main([str(folder)])
    found = read_results(folder).partings
    assert not partings_tables(read_results(run).cells, found)
    (folder / PARTINGS).write_text("[{}]")
    results = read_results(folder)
    assert results.partings == {} and str(folder / PARTINGS) in results.unreadable[0]


def test_prompts_that_are_no_longer_there_are_refused(tmp_path):
    path = write_lines(tmp_path / "mine.jsonl", "Say one.", "Say two.", "Say three.")
    run = greedy_run(tmp_path / "run", f"workload.path={path}")
    folder = tmp_path / "altered"
    altered(run, folder, max, "float32")
    write_lines(path, *(f"Say something longer than {number}." for number in ("one", "two", "three")))
    with pytest.raises(ValueError, match=r"expected the one that the run played, of \d+ tokens, found one of \d+"):
        attribute(read_results(folder).cells)
