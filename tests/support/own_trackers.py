"""Experiment trackers as a user writes them, in a module of their own."""

import json

from harness.report.trackers.tracker import Tracker

asked = []
"""What was asked of them."""


def _in_a_file(cells, folder):
    path = folder / "sent.json"
    path.write_text(json.dumps({cell.cell_id: (cell.name, dict(cell.settings), cell.numbers) for cell in cells}))
    return str(path)


def _is_away():
    raise OSError("the tracking server does not answer")


IN_A_FILE = Tracker(_in_a_file, check=lambda: asked.append("before the run"))
IS_AWAY = Tracker(_in_a_file, check=_is_away)
NEEDS_A_PACKAGE = Tracker(_in_a_file, package="package_that_is_nowhere")
