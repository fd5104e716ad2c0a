"""A drafter whose file names fewer positions than the context has tokens: from its file to the report."""

from __future__ import annotations

from dataclasses import replace
from math import isnan
from shutil import copytree

import pytest

from harness.analysis.beyond_positions import drafts_beyond
from harness.analysis.results import Results
from harness.backends.local.local import LocalBackend
from harness.backends.local.model_store import ModelStore
from harness.config.backend import Local
from harness.config.cell import CellConfig
from harness.config.drafter import DrafterKind, drafter_of
from harness.config.sections import DecodingConfig
from harness.models.zoo import zoo_path
from harness.report.warnings import warnings
from harness.workload.conversations import Conversation
from harness.workload.prompt import Prompt
from tests.support.synthetic_cells import analysed, cell_record, request_record, round_record, row_of
from tests.support.tiny_models import edit_config


def record(positions):
    """Prompts of 7 and 20 tokens, whose rounds begin at 7 (no draft), 8 and 11, and at 20 and 21."""
    first = [round_record(0, 0, 0.1), round_record(3, 2, 0.2), round_record(3, 0, 0.3)]
    second = [round_record(0, 0, 0.1), round_record(3, 0, 0.2)]
    requests = [
        request_record(first, "a", num_prompt_tokens=7),
        request_record(second, "b", num_prompt_tokens=20),
    ]
    return replace(cell_record(requests), drafter_positions=positions)


@pytest.mark.parametrize(("positions", "share"), [(7, 1.0), (8, 2 / 3), (11, 1 / 3), (20, 1 / 3), (21, 0.0)])
def test_the_share_is_of_drafts_that_began_with_more_tokens(positions, share):
    """Would catch rounds without drafts that count, and a length that leaves out what rounds emitted."""
    assert drafts_beyond(record(positions)) == share
    assert row_of(record(positions))["drafts_beyond_positions"] == share


def test_a_report_says_it_where_it_is_so_and_nowhere_else():
    def said(positions):
        return [text for text in warnings(Results((), analysed(record(positions)))) if text.startswith("positions")]

    (told,) = said(11)
    assert told.startswith("positions: 33% of the drafts began with more than 11 tokens, the positions that the dra")
    assert said(21) == said(0) == [] and isnan(row_of(record(0))["drafts_beyond_positions"])


def test_the_positions_of_a_head_are_those_that_its_file_names(tmp_path):
    """Would catch the default of a class taken for what a file says."""
    stated = {}
    for name, changes in (("few", {"max_position_embeddings": 40}), ("silent", {})):
        folder = copytree(zoo_path("eagle"), tmp_path / name)
        edit_config(folder, drop=("max_position_embeddings",), **changes)
        cell = CellConfig(
            drafter=drafter_of(DrafterKind.eagle, path=str(folder)),
            decoding=DecodingConfig(max_new_tokens=4),
            backend=Local(device="cpu", dtype="float32", max_concurrency=1),
        )
        backend = LocalBackend(cell, ModelStore())
        backend.generate([Conversation(Prompt("one", "test", ("Name a colour.",)), 0, 7)])
        stated[name] = backend.facts().drafter_positions
    assert stated == {"few": 40, "silent": 0}
