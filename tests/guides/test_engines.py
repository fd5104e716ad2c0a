"""guides/engines.md, followed as it stands there, against `transformers serve`.

Would catch a comparison that no longer starts its server, and engines that did not play the same prompts in turns.
"""

from importlib.util import find_spec

import pytest

from harness.analysis.results import read_results
from tests.support.guide_pages import follow

NEEDED = ("fastapi", "uvicorn", "openai", "accelerate")
MISSING = [name for name in NEEDED if find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"transformers[serving] is not installed: {', '.join(MISSING)}")
def test_this_engine_and_a_real_server_take_turns(tmp_path):
    (tmp_path / "cache" / "hub").mkdir(parents=True)
    follow("engines.md", tmp_path, HF_HOME=str(tmp_path / "cache"), HF_HUB_OFFLINE="1")
    run = tmp_path / "results" / "runs" / "engines"
    cells = {cell["engine"]: cell.record for cell in read_results(run).cells}
    assert cells.keys() == {"local", "plain"} and not any(record.failures for record in cells.values())
    prompts = [sorted(item.key for item in record.requests) for record in cells.values()]
    assert prompts[0] == prompts[1] and len(prompts[0]) == 6
    turns = sorted((block.start_unix_s, engine) for engine, record in cells.items() for block in record.blocks)
    order = [engine for _, engine in turns]
    assert order[:2] == order[:1:-1], "the second block is played in the other order"
    assert "Engines side by side" in (run / "report.md").read_text(encoding="utf-8")
