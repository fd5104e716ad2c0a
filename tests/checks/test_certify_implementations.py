"""Other people's code as subjects: how single modules are taken from a package, and what a missing one says."""

import sys
import zipfile
from importlib.util import find_spec
from types import ModuleType

import pytest
import torch

from harness.checks.certification.implementations import NAMED
from harness.checks.certification.implementations.kernel_package import import_modules, take_functions, version_of
from harness.checks.certification.subject import load_subject
from harness.config.schema import SettingsError
from tests.support.certify_cases import PACKAGES

FILES = {
    "heavy_engine/__init__.py": "raise RuntimeError('the whole engine is imported')\n",
    "heavy_engine/tools/__init__.py": "raise RuntimeError('the whole engine is imported')\n",
    "heavy_engine/kernels/__init__.py": "",
    "heavy_engine/kernels/sampler.py": "from heavy_engine.tools import unit\n\n\ndef sample():\n    return unit + 1\n",
    "heavy_engine/worker.py": "import a_package_that_is_not_there\n\nSALT = 40\n\n\n"
    "def seeded(seed: Unknown):\n    return seed + SALT + given\n",
    "heavy_engine-3.1.dist-info/METADATA": "Metadata-Version: 2.1\nName: heavy-engine\nVersion: 3.1\n",
}


@pytest.fixture(params=["folder", "wheel"])
def engine(request, tmp_path, monkeypatch):
    """An engine that cannot be imported as a whole, unpacked or as a wheel."""
    if request.param == "wheel":
        place = tmp_path / "heavy_engine-3.1-py3-none-any.whl"
        with zipfile.ZipFile(place, "w") as archive:
            for name, text in FILES.items():
                archive.writestr(name, text)
    else:
        place = tmp_path
        for name, text in FILES.items():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            (place / name).write_text(text)
    monkeypatch.syspath_prepend(str(place))
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.startswith("heavy_engine"):
            del sys.modules[name]


def test_a_module_is_taken_without_the_rest_of_its_engine(engine):
    """Would catch an engine's `__init__` that runs, and a stand-in that is not used."""
    tools = ModuleType("heavy_engine.tools")
    tools.unit = 6
    (sampler,) = import_modules("heavy_engine", ["heavy_engine.kernels.sampler"], "get it", {tools.__name__: tools})
    assert sampler.sample() == 7
    assert version_of("heavy-engine") == "3.1"


def test_functions_are_taken_from_the_text_of_a_module(engine):
    _, seeded = take_functions("heavy_engine", "heavy_engine.worker", ["SALT", "seeded"], {"given": 2})
    assert seeded(100) == 142
    with pytest.raises(SettingsError, match=r"expected unseeded in heavy_engine\.worker"):
        take_functions("heavy_engine", "heavy_engine.worker", ["SALT", "unseeded"], {})


@pytest.mark.parametrize(
    ("name", "package"), [*((name, name) for name in ("vllm", "sglang", "flashinfer")), *PACKAGES.items()]
)
def test_a_package_that_is_missing_is_named_in_one_line(name, package):
    if name in PACKAGES and find_spec(package) is not None:
        pytest.skip(f"{package} is there")
    with pytest.raises(SettingsError, match=rf"expected {package}.*pip (download|install)") as error:
        load_subject(name, torch.device("cpu"))
    assert "\n" not in str(error.value)


def test_an_unknown_name_lists_those_that_there_are():
    with pytest.raises(SettingsError, match="found 'vlm'") as error:
        load_subject("vlm", torch.device("cpu"))
    assert all(name in str(error.value) for name in NAMED)
