"""Stand for the sweep of the run command, without a model."""

import json

from tests.support.synthetic_cells import simulated_run


def finished(folder, error=None):
    """Stands for the sweep: cells are written, and then something may stop it."""

    def run_plan(plan, finished_cells):
        simulated_run(folder, temperatures=(1.0,), methods=("strict", "block"), num_prompts=6)
        finished_cells += json.loads((folder / "run.json").read_text())["cells"]
        if error is not None:
            raise error

    return run_plan


def stop(error):
    def run_plan(plan, finished_cells):
        raise error

    return run_plan
