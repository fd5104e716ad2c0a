"""Notebooks: they run on the tracked results or a sweep of their own, and are kept without outputs."""

import os
from pathlib import Path

import nbformat
import pytest

from tests.support.synthetic_cells import simulated_run

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
NAMES = ["acceptance", "losslessness", "sweep", "throughput"]


def read(name):
    return nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)


def test_the_notebooks_are_those_that_are_tested():
    assert [path.stem for path in NOTEBOOKS] == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_kept_without_outputs_and_without_a_machine(name):
    """Would catch outputs, timings and names of environments, which differ with every run."""
    notebook = read(name)
    nbformat.validate(notebook)
    assert notebook.metadata == {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code and not any(cell.outputs or cell.execution_count for cell in code)
    assert not any(cell.metadata for cell in notebook.cells)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_a_clean_checkout(name, monkeypatch, tmp_path):
    """Would catch a column that a table does not have, a cell that shows nothing, and a sweep that does not run."""
    from jupyter_client.manager import AsyncKernelManager
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.delenv("MPLBACKEND", raising=False)
    notebook = read(name)
    # by sockets in a folder, which need no port
    kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=str(tmp_path / "kernel.json"))
    resources = {"metadata": {"path": str(ROOT / "notebooks")}}
    NotebookClient(notebook, km=kernel, timeout=120, resources=resources).execute()
    shown = [kind for cell in notebook.cells for output in cell.get("outputs", []) for kind in output.get("data", {})]
    assert shown.count("text/html") >= 2 and shown.count("image/png") >= 1
    texts = [output.text for cell in notebook.cells for output in cell.get("outputs", []) if "text" in output]
    assert not any("Warning" in text for text in texts)


@pytest.mark.parametrize("name", ["acceptance", "throughput"])
def test_a_notebook_runs_on_a_fresh_run(name, monkeypatch, tmp_path):
    """Would catch a notebook that fits the tracked sweeps only."""
    import matplotlib as mpl

    folder = simulated_run(tmp_path / "run", depths=(1, 3), methods=("strict", "block"), num_prompts=3)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    mpl.use("Agg")
    values = {"display": lambda item: None}
    source = "\n".join(cell.source for cell in read(name).cells if cell.cell_type == "code")
    tracked = [line for line in source.splitlines() if line.startswith("RESULTS = ")]
    assert len(tracked) == 1
    with mpl.rc_context():
        path = f"Path({os.fspath(folder)!r})"
        exec(source.replace(tracked[0], f"RESULTS = {f'[{path}]' if '[' in tracked[0] else path}"), values)
    assert len(values["frame"]) == 10 and len(values["drafted"]) == 8
