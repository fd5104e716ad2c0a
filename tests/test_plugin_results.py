"""results/plugin_vllm_h200: the tables of its page are those of the tracked measurements."""

import importlib.util
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "results" / "plugin_vllm_h200"


def test_the_page_holds_the_tables_of_the_measurements():
    spec = importlib.util.spec_from_file_location("measure", FOLDER / "measure.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    page = (FOLDER / "README.md").read_text()
    found = module.tables(FOLDER / "measured.jsonl").split("\n\n")
    assert len(found) == 2 and all(table in page for table in found)
