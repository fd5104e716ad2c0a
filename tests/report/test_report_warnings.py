"""What a report says in front of its answers."""

from dataclasses import replace

from harness.analysis.results import Results
from harness.report.warnings import warnings
from tests.support.synthetic_cells import analysed, config, simulated_cell


def test_a_warning_says_whose_cell_it_is():
    """Would catch a fallback of one engine that reads as one of the other, whose cell has the same name."""
    own = simulated_cell(config(), [0.5], num_prompts=4)
    peer = simulated_cell(config(backend__kind="server", server__engine="vllm"), [0.5], num_prompts=4)
    found = analysed(own, replace(peer, fallbacks=("it waited",)))
    (told,) = [line for line in warnings(Results((), found)) if line.startswith("fallback: ")]
    assert told.endswith(" on vllm)")
    (alone,) = [line for line in warnings(Results((), found[1:])) if line.startswith("fallback: ")]
    assert told == alone[:-1] + " on vllm)"
