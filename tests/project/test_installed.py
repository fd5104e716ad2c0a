"""The package as pip installs it: a wheel that works from any folder, without the checkout."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.small_run import SMALL

ROOT = Path(__file__).parents[2]
SOURCES = ("kernels", "harness", "experiments", "conf", "pyproject.toml", "setup.py", "README.md", "LICENSE", "NOTICE")
BUILD = "import sys; from setuptools.build_meta import build_wheel as build; build(sys.argv[1])"
LOOK = """
import json
import harness
from harness.models.shape import shape_names
from harness.models.zoo import ZOO
from harness.records.provenance import ROOT, git_state
from harness.config.schema import CONF
from harness.workload.conversations import BUILTIN_PROMPTS
files = [path for path in (CONF / "config.yaml", ZOO / "target" / "config.json", BUILTIN_PROMPTS) if path.is_file()]
print(json.dumps([harness.__file__, git_state(ROOT), len(shape_names()), [str(path) for path in files]]))
"""


OWN = """
from harness.drafters.protocol import StatelessDrafter

def lost(batch):
    return batch.nothing

class Raises(StatelessDrafter):
    def __init__(self, setup): ...

    def propose(self, batch):
        return lost(batch)
"""


def python(*arguments, folder, path=None, code=0):
    """What a Python process that starts in a folder prints, with nothing on its path but one more folder."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {} if path is None else {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == code, done.stderr
    return done.stdout if code == 0 else done.stderr


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """The folder that a wheel, built from a copy of the sources, is unpacked into."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(ROOT / name, source)
    python("-c", BUILD, str(target), folder=source)
    (wheel,) = target.glob("*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(target)
    return target


def test_the_commands_work_from_any_folder(installed, tmp_path):
    """Would catch settings that lie in the checkout alone, and a module that is not installed with what imports it."""
    assert "--dry-run" in python("-m", "experiments.run", "--help", folder=tmp_path, path=installed)
    cells = python("-m", "experiments.run", "experiment=quickstart", "--list", folder=tmp_path, path=installed)
    assert len(cells.splitlines()) > 10 and "eagle3" in cells


def test_the_program_finds_modules_of_ones_own_in_the_current_folder(installed, tmp_path):
    """Would catch a console script that knows its own folder alone, workers that know less than it does, and an error
    of a user's function without its place. A whole run, since a worker is what imports them."""
    (points,) = installed.glob("*.dist-info/entry_points.txt")
    module, _, function = points.read_text().partition("rejection-lab = ")[2].split()[0].partition(":")
    script = tmp_path / "bin" / "rejection-lab"
    script.parent.mkdir()
    script.write_text(
        f"import sys\nfrom {module} import {function}\nif __name__ == '__main__':\n    sys.exit({function}())\n"
    )
    here = tmp_path / "here"
    here.mkdir()
    (here / "my_drafters.py").write_text(OWN)
    errors = python(
        script,
        "run",
        "drafter.kind=my_drafters:Raises",
        "measurement.baseline=false",
        *SMALL,
        folder=here,
        path=installed,
        code=1,
    )
    assert "object has no attribute 'nothing' (my_drafters.py, line 5, in lost)" in errors
    (here / "my_drafters.py").write_text("\nnothing.at_all\n")
    listed = ("run", "drafter.kind=my_drafters:Raises", "--list")
    errors = python(script, *listed, folder=here, path=installed, code=2)
    assert "NameError: name 'nothing' is not defined (my_drafters.py, line 2)" in errors


def test_data_lies_in_the_package_and_no_commit_is_claimed(installed, tmp_path):
    module, state, num_shapes, files = json.loads(python("-c", LOOK, folder=tmp_path, path=installed))
    assert Path(module).is_relative_to(installed) and state is None
    assert len(files) == 3 and all(Path(path).is_relative_to(installed) for path in files) and num_shapes >= 3
    assert {path.name for path in (installed / "harness" / "report" / "html").glob("page.*")} >= {"page.css", "page.js"}


def test_training_is_not_installed(installed):
    names = {path.name for path in (installed / "experiments").iterdir()}
    assert "run.py" in names and not {"zoo", "train_zoo.py"} & names
