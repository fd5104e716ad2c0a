"""`transformers serve` with the zoo's target, a real server without drafts: it streams, and its tokens are counted."""

import shlex
import sys
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from harness.config.sections import DecodingConfig
from harness.config.server import Engine, server_of
from harness.models.zoo import zoo_path
from harness.records.counts import Knowledge
from tests.support.scripted_server import ScriptedServer
from tests.support.server_cells import cell_on, run_on

NEEDED = ("fastapi", "uvicorn", "openai", "accelerate")
MISSING = [name for name in NEEDED if find_spec(name) is None]


@pytest.mark.skipif(bool(MISSING), reason=f"transformers[serving] is not installed: {', '.join(MISSING)}")
def test_a_real_server_streams_what_is_recorded(tmp_path):
    """Would catch a client that only understands our own scripted server."""
    (tmp_path / "hub").mkdir()
    program = shlex.quote(str(Path(sys.executable).with_name("transformers")))
    server = server_of(
        Engine.plain,
        command=f"env HF_HOME={tmp_path} HF_HUB_OFFLINE=1 {program} serve {{target}} --device cpu --port {{port}}",
        model=str(zoo_path("target")),
        log_folder=str(tmp_path / "logs"),
    )
    cell = replace(cell_on(ScriptedServer("plain", port=1), num_requests=3), server=server)
    cell = replace(cell, decoding=DecodingConfig(temperature=0.0, max_new_tokens=6))
    (record,), frame = run_on(tmp_path, cell)
    assert not record.failures and len(record.requests) == 3 and record.knowledge is Knowledge.arrivals
    assert not any("other prompt tokens" in text or "did not say" in text for text in record.fallbacks)
    assert all(1 <= item.num_output_tokens <= 6 for item in record.requests)
    assert all(len(item.arrivals) >= item.num_output_tokens - 1 for item in record.requests)
    assert frame.iloc[0]["ttft_mean_ms"] > 0
