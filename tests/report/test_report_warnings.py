"""What a report says in front of its answers."""

from dataclasses import replace

from harness.analysis.results import Results
from harness.report.warnings import warnings
from tests.support.synthetic_cells import analysed, baseline_settings, config, simulated_cell


def test_a_warning_says_whose_cell_it_is():
    """Would catch a fallback of one engine that reads as one of the other, whose cell has the same name."""
    own = simulated_cell(config(), [0.5], num_prompts=4)
    peer = simulated_cell(config(backend__kind="server", server__engine="vllm"), [0.5], num_prompts=4)
    found = analysed(own, replace(peer, fallbacks=("it waited",)))
    (told,) = [line for line in warnings(Results((), found)) if line.startswith("fallback: ")]
    assert told.endswith(" on vllm)")
    (alone,) = [line for line in warnings(Results((), found[1:])) if line.startswith("fallback: ")]
    assert told == alone[:-1] + " on vllm)"


def test_a_warning_about_many_cells_stays_short():
    """Would catch forty names in a line, and a mark of what a method guarantees as if something were wrong."""
    methods = [f"typical(delta=0.{number})" for number in range(1, 9)]
    records = [
        simulated_cell(
            config(verification__method="typical", verification__delta=number / 10, guarantee="lossy"),
            [0.5],
            num_prompts=20,
        )
        for number in range(1, 9)
    ]
    records.append(simulated_cell(baseline_settings(), [], num_prompts=20))
    waited = [replace(record, fallbacks=("it waited",)) for record in records]

    def told(records):
        lines = warnings(Results((), analysed(*records)))
        assert not any("lossy" in line.partition("(")[0] for line in lines)
        return next(line for line in lines if line.startswith("fallback: "))

    assert told(waited) == "fallback: it waited (all cells)"
    assert told([*waited[:-1], records[-1]]) == "fallback: it waited (all cells with drafts)"
    (some,) = [told([*waited[:-2], *records[-2:]])]
    num_named = sum(method.partition("(")[2] in some for method in methods)
    assert some.endswith(f"; {7 - num_named} more)") and 0 < num_named < 7
