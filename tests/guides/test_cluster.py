"""guides/cluster.md, followed as it stands there, with the jobs of SLURM as processes of this host.

Would catch settings of a launcher that the guide no longer names rightly, and groups that one worker ran alone.
"""

import pytest

from harness.records.runs import read_runs
from tests.support.guide_pages import follow


def test_two_workers_run_a_group_each(tmp_path):
    pytest.importorskip("submitit", reason="needs the extra slurm")
    (said,) = follow("cluster.md", tmp_path)
    assert "4 of 4 cells done, 0 failed, 0 left" in said
    (run,) = read_runs(tmp_path / "results" / "runs" / "cluster")
    sessions = {(cell.config["seed"], session) for cell in run.cells for session in cell.sessions}
    assert sorted(seed for seed, _ in sessions) == [0, 1] and len({session for _, session in sessions}) == 2
