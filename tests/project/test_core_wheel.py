"""The wheel rejection-lab-core: built from this repository, imported without it, beside another package `kernels`."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]
PACKAGING = Path("harness", "plugins", "packaging")
BUILD = "import sys; from setuptools.build_meta import build_wheel as build; build(sys.argv[1])"
ALONE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "editable" not in repr(finder)]
"""
"""An editable install of this repository is found by a finder of its own."""
USE = """
import importlib.util, sys, torch
from importlib import metadata
assert importlib.util.find_spec("harness") is None
(entry,) = metadata.entry_points(group="vllm.general_plugins", name="rejection_lab")
entry.load()()
(entry,) = metadata.entry_points(group="sglang.srt.plugins", name="rejection_lab")
entry.load()()
from rejection_lab_core import custom_ops
from rejection_lab_core.contract import Draft, Sampling, Streams, Verification, VerificationMethod
from rejection_lab_core.core import reference_core, triton_core
from rejection_lab_vllm import WorkerExtension
generator = torch.Generator().manual_seed(1)
target, cache = torch.randn(8, 37, generator=generator), torch.randn(2, 3, 37, generator=generator)
draft = Draft(torch.randint(37, (2, 3), generator=generator), torch.tensor([3, 3]), cache)
sampling, numbers = Sampling.same_for_all(2, 0.9, 0, 1.0, 0.0), torch.arange(2)
call = (target, draft, sampling, Verification(VerificationMethod.block), Streams(numbers, numbers + 5, numbers))
expected = reference_core().verify(*call)
for found in (triton_core().verify(*call), custom_ops.verify(*call)):
    assert torch.equal(expected.token_ids, found.token_ids) and not bool(expected.invalid.any())
loaded = sorted({name.split(".")[0] for name in sys.modules})
print(*[name for name in loaded if name in ("kernels", "harness", "transformers", "pandas", "hydra", "scipy")], "end")
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory):
    """A folder with the unpacked wheel, and in it what another distribution calls kernels."""
    source, target = (tmp_path_factory.mktemp(name) for name in ("source", "target"))
    for name in ("kernels", "harness/plugins"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    run("-c", BUILD, str(target), folder=source / PACKAGING)
    (wheel,) = target.glob("rejection_lab_core-*.whl")
    with ZipFile(wheel) as archive:
        archive.extractall(target)
    (target / "kernels").mkdir()
    (target / "kernels" / "__init__.py").write_text("raise ImportError('the other package was imported')\n")
    return target


def run(*arguments, folder, path=None, **more):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | more
    environment |= {} if path is None else {"PYTHONPATH": str(path)}
    done = subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_core_and_plugins_run_without_the_repository(installed, tmp_path):
    """The kernels under Triton's interpreter give the reference's tokens; nothing is taken from another name."""
    assert run("-c", ALONE + USE, folder=tmp_path, path=installed, TRITON_INTERPRET="1").split() == ["end"]


def test_no_import_keeps_a_name_of_the_repository(installed):
    text = "".join(path.read_text() for path in installed.glob("rejection_lab_*/**/*.py"))
    lines = [line.strip() for line in text.splitlines()]
    assert not [line for line in lines if line.startswith(("from kernels", "import kernels", "from harness"))]
    assert {path.name for path in installed.iterdir()} >= {"rejection_lab_core", "rejection_lab_vllm"}
