"""guides/target.md, followed as it stands there, in a copy of this checkout.

Would catch a table that a type of model needs and the guide does not name, and layers that compute something else.
"""

import re

import pytest

from harness.analysis import load_results
from tests.support.guide_pages import copy_of_checkout, follow


@pytest.fixture(scope="module")
def reader(tmp_path_factory):
    """The folder of the reader, and what the commands of the guide printed."""
    folder = tmp_path_factory.mktemp("reader")
    said = follow("target.md", folder, copy_of_checkout(tmp_path_factory.mktemp("checkout")))
    return folder / "results" / "runs", said


@pytest.mark.parametrize(("run", "whose"), [("theirs", True), ("own", False), ("tree", False)])
def test_its_model_runs_by_layers_of_transformers_and_by_our_own(reader, run, whose):
    runs, _ = reader
    report = (runs / run / "report.md").read_text(encoding="utf-8")
    assert ("transformers' own (Qwen2ForCausalLM" in report) == whose
    cold = load_results(runs / run).query("drafter != 'none' and temperature == 0")
    assert (cold["num_answers_compared"] == 4).all() and (cold["num_other_answers"] == 0).all()


def test_greedy_tokens_are_those_of_transformers_and_vary(reader):
    """Would catch an example whose answers repeat one token, which any layers give."""
    _, said = reader
    found = re.search(r"(\d+) answers of (\d+) different tokens are those of transformers", said[-2])
    num_answers, num_tokens = map(int, found.groups())
    assert num_answers == 16 and num_tokens > 12


def test_its_shape_is_a_target(reader):
    _, said = reader
    assert "tiny_qwen2" in said[-1]
