"""The settings that a report lists: those that some cell uses, and no defaults of drafters that nobody ran."""

from dataclasses import asdict

import pytest

from harness.compose.compose import compose_plan
from harness.metrics.results import read_results
from harness.report.write import write_results
from harness.settings.identity import USED_ONLY_WITH, plain_values
from harness.settings.used_settings import used_settings
from tests.synthetic_cells import baseline_settings, simulated_run

RUNS = {
    "methods": "drafter=eagle3 verification=strict,typical,lenient,block",
    "drafters": "drafter=mtp,draft_model,ngram verification=strict drafting.sampling=auto,greedy",
    "random weights": "target=llama3_8b drafter=mtp,eagle drafter.weights=random",
    "synthetic": "drafter=mtp verification=synthetic",
    "caches": "drafter=eagle3 backend.dtype=float32 drafting.cache_dtype=auto,float32,bfloat16",
    "data set": "drafter=mtp workload=hf target.path=owner/model",
    "constraint": "drafter=mtp workload=reasoning_json constraint=mask",
    "no graphs": "drafter=mtp backend.device=cpu",
    "graphs": "drafter=mtp backend.device=cpu backend.graphs=true",
}


def recorded(cell):
    """The settings of a cell as its record holds them."""
    return plain_values(asdict(cell)) | {
        "draft_sampling": cell.draft_sampling.value,
        "device": cell.backend.device,
        "dtype": cell.backend.dtype,
    }


@pytest.mark.parametrize("run", RUNS)
def test_what_is_left_out_is_what_the_cell_does_not_use(run):
    """Would catch a setting that the command line refuses as unused and a report lists, or the other way round."""
    for cell in compose_plan(RUNS[run].split()).cells:
        shown = used_settings(recorded(cell))
        names = {*shown, *(f"{section}.{name}" for section in shown for name in _names(shown[section]))}
        unused = {key for keys, uses, _ in USED_ONLY_WITH if not uses(cell) for key in keys}
        for key in (key for keys, _, _ in USED_ONLY_WITH for key in keys):
            assert (key in names) == (key not in unused and key.partition(".")[0] not in unused), key


def _names(value):
    return value if isinstance(value, dict) else ()


def test_the_baseline_has_no_drafter_settings():
    shown = used_settings(baseline_settings())
    assert shown["drafter"] == {"kind": "none"}
    assert not {"drafting", "verification", "draft_sampling"} & set(shown)


def test_a_record_older_than_a_section_is_read():
    older = baseline_settings()
    del older["constraint"], older["target"]["revision"]
    assert "constraint" not in used_settings(older)


def test_the_report_lists_no_setting_that_no_cell_uses(tmp_path):
    """Would catch the defaults of the baseline, and of methods that were not run, among the settings of a run."""
    folder = simulated_run(tmp_path / "run", temperatures=(1.0,), methods=("strict",), num_prompts=4)
    markdown, html = (path.read_text() for path in _pages(folder, tmp_path))
    assert "| drafting.num_speculative_tokens | 3 |" in markdown and "| drafter.kind | none, eagle3 |" in markdown
    for name in ("verification.epsilon", "drafter.ngram_max", "workload.split", "constraint.parser"):
        assert name not in markdown and name not in html
    names = [line.split(" | ")[0] for line in markdown.partition("## Settings")[2].splitlines()]
    start = names.index("| drafter.kind")
    assert names[start + 1] == "| drafter.path", "the drafter's settings stand together"
    for page in (markdown, html):
        assert "Settings that no cell uses are left out" in page


def _pages(folder, output):
    html, markdown = write_results(read_results(folder), output / "pages", html=True)[:2]
    return markdown, html
