"""The order of the packages, and what each may know; read from the source, so that nothing has to be imported."""

import ast
import sys
from functools import cache
from importlib.util import resolve_name
from pathlib import Path

import pytest

from harness.config.drafter import DrafterKind

pytestmark = pytest.mark.fast

ROOT = Path(__file__).parents[2]
ORDER = (
    "kernels",
    "harness.plugins",
    "harness.records",
    "harness.config",
    "harness.config.cli",
    "harness.workload",
    "harness.models",
    "harness.drafters",
    "harness.analysis",
    "harness.analysis.replay",
    "harness.report",
    "harness.report.replay",
    "harness.engine.constraint",
    "harness.engine",
    "harness.engine.compile_ahead",
    "harness.backends",
    "harness.runner.plan",
    "harness.runner",
    "harness.training",
    "harness.checks",
    "harness.checks.timing",
    "harness.checks.agreement",
    "harness.checks.certification",
    "harness.checks.kernel_bench",
    "harness.checks.compile_check",
    "harness.checks.server_certification",
    "harness.checks.profiling",
    "harness.checks.doctor",
    "harness.checks.head",
    "experiments",
)
"""Lowest first: a module imports from its own package, which is the longest name here that it begins with, and from
those before it."""
PACKAGES = tuple(dict.fromkeys(".".join(name.split(".")[:2]) for name in ORDER))
"""Those of a page of the map: kernels, the packages of harness, experiments."""
READ_RECORDS = (
    "harness.records",
    "harness.analysis",
    "harness.analysis.replay",
    "harness.report",
    "harness.report.replay",
)
"""Packages that a laptop without torch can use."""
HEAVY = {
    "torch",
    "triton",
    "transformers",
    "tokenizers",
    "safetensors",
    "datasets",
    "llguidance",
    "jsonschema",
    "hydra",
    "omegaconf",
}
SAYS_NOTHING = {"utils", "util", "helpers", "helper", "common", "base", "misc"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for package in ("kernels", "harness", "experiments")
    for path in sorted((ROOT / package).rglob("*.py"))
    if path.name != "setup.py"
}


class Imports(ast.NodeVisitor):
    """Collects every imported name of a module, except what only type checkers read; relative ones in full."""

    def __init__(self, module: str) -> None:
        is_package = MODULES[module].stem == "__init__"
        self.package = module if is_package else module.rpartition(".")[0]
        self.everywhere: set[str] = set()
        self.at_import: set[str] = set()
        self.by_full_name: set[str] = set()
        self.is_relative = False
        self.depth = 0

    def add(self, name: str) -> None:
        self.everywhere.add(name)
        if self.depth == 0:
            self.at_import.add(name)

    def visit_If(self, node: ast.If) -> None:
        type_checking = "TYPE_CHECKING" in ast.unparse(node.test)
        for child in node.orelse if type_checking else ast.iter_child_nodes(node):
            self.visit(child)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.depth += 1
        self.generic_visit(node)
        self.depth -= 1

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.add(alias.name)
            self.by_full_name.add(alias.name)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        source = resolve_name("." * node.level + (node.module or ""), self.package)
        self.is_relative |= node.level > 0
        if node.level == 0:
            self.by_full_name.add(source)
        for alias in node.names:
            submodule = f"{source}.{alias.name}"
            self.add(submodule if submodule in MODULES else source)


@cache
def imports_of(module: str) -> Imports:
    found = Imports(module)
    found.visit(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return found


def package_of(module: str) -> str | None:
    holding = [name for name in ORDER if module == name or module.startswith(f"{name}.")]
    return max(holding, key=len, default=None)


def in_packages(*packages: str) -> list[str]:
    return [module for module in MODULES if package_of(module) in packages]


def parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def reachable(module: str, at_import_only: bool) -> dict[str, str]:
    """Every module that `module` imports, directly or through ours, with the module of ours that imports it."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        # a verification rule imports torch where it runs, not where its traits are read
        runs_later = at_import_only or current.startswith("kernels.methods")
        names = imports_of(current).at_import if runs_later else imports_of(current).everywhere
        # Importing a module imports the packages it lies in.
        for name in {each for imported in names for each in (imported, *parents(imported))} - found.keys():
            found[name] = current
            if name in MODULES:
                waiting.append(name)
    return found


def heavy_imports(module: str, at_import_only: bool) -> list[str]:
    """The heavy libraries that `module` reaches, each with the module that imports it."""
    found = reachable(module, at_import_only)
    return sorted(f"{name} (imported by {by})" for name, by in found.items() if name.split(".")[0] in HEAVY)


def test_every_module_lies_in_a_package_of_the_order():
    homeless = [name for name in MODULES if name != "harness" and package_of(name) is None]
    assert not homeless, f"expected every module in a package of ORDER, found {homeless}"


def test_packages_import_only_from_those_before_them():
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        if module != "harness"
        for name in imports_of(module).everywhere & MODULES.keys() - {"harness"}
        if ORDER.index(str(package_of(name))) > ORDER.index(str(package_of(module)))
    ]
    assert not wrong


def test_every_package_says_what_belongs_in_it():
    silent = [
        name for name in ORDER if name != "experiments" and not ast.get_docstring(ast.parse(MODULES[name].read_text()))
    ]
    assert not silent


def test_the_sampling_core_knows_torch_and_triton_only():
    allowed = {"kernels", "torch", "triton", "__future__"} | sys.stdlib_module_names
    wrong = [
        f"{module} imports {name}"
        for module in in_packages("kernels")
        for name in imports_of(module).everywhere
        if name.split(".")[0] not in allowed
    ]
    assert not wrong


def test_plugins_need_the_sampling_core_only():
    """They run in other engines' processes, whose own modules they import when they are called from there."""
    allowed = {"kernels", "harness", "torch", "triton", "numpy", "__future__"} | sys.stdlib_module_names
    names = {module: imports_of(module).everywhere for module in in_packages("harness.plugins")}
    assert not [f"{module} imports {name}" for module in names for name in names[module]
                if name.split(".")[0] not in allowed]  # fmt: skip


def test_only_the_plan_knows_hydra():
    wrong = [
        module
        for module in MODULES
        if package_of(module) != "harness.runner.plan"
        and {name.split(".")[0] for name in imports_of(module).everywhere} & {"hydra", "omegaconf"}
    ]
    assert not wrong


@pytest.mark.parametrize("module", in_packages(*READ_RECORDS))
def test_results_are_read_without_torch_transformers_or_hydra(module):
    assert not heavy_imports(module, at_import_only=False)


def test_recordings_of_other_engines_are_read_without_torch():
    packages = "harness.backends.recordings", "harness.plugins.recording"
    modules = [name for name in MODULES if name.startswith(packages)]
    assert modules and not [line for name in modules for line in heavy_imports(name, at_import_only=False)]


def test_settings_are_read_without_torch():
    modules = [*in_packages("harness.config", "harness.config.cli"), *(kind.path.split(":")[0] for kind in DrafterKind)]
    assert not [line for module in modules for line in heavy_imports(module, at_import_only=True)]


def test_imports_are_absolute_except_in_the_sampling_core():
    """The core must not name itself: it is also imported as rejection_lab_core, beside another package `kernels`."""
    assert not [name for name in MODULES if package_of(name) != "kernels" and imports_of(name).is_relative]
    names = {module: imports_of(module).by_full_name for module in in_packages("kernels")}
    assert not [module for module in names if any(name.split(".")[0] == "kernels" for name in names[module])]


def test_no_file_has_a_name_that_says_nothing():
    names = [path for path in [*MODULES.values(), *(ROOT / "tests").rglob("*.py")] if path.stem != "__init__"]
    wrong = [path.name for path in names if SAYS_NOTHING & {path.stem, path.stem.split("_")[-1], path.parent.name}]
    assert not wrong


def test_tests_lie_in_the_folder_of_a_package():
    """tests/core is that of kernels/, guides of their examples, project of the whole, support of what tests share."""
    folders = {name.rpartition(".")[2] for name in PACKAGES[1:]} | {"core", "guides", "project", "support"}
    places = [path.relative_to(ROOT / "tests") for path in (ROOT / "tests").rglob("*.py") if path.name != "conftest.py"]
    assert not [str(place) for place in places if len(place.parts) != 2 or place.parts[0] not in folders]


def test_packages_form_few_floors_without_a_circle():
    """Would catch two packages that need each other though none of their modules do."""
    below: dict[str, set[str]] = {name: set() for name in PACKAGES}

    def page(module: str) -> str:
        return ".".join(module.split(".")[:2]) if module.startswith("harness.") else module.split(".", maxsplit=1)[0]

    for module in MODULES.keys() - {"harness"}:
        for name in imports_of(module).everywhere & MODULES.keys() - {"harness"}:
            below[page(module)].add(page(name))
    floors: dict[str, int] = {}
    while len(floors) < len(below):
        ready = [name for name in below if name not in floors and below[name] - {name} <= floors.keys()]
        assert ready, f"a circle among {sorted(below.keys() - floors.keys())}"
        floors |= {name: 1 + max((floors[each] for each in below[name] - {name}), default=0) for name in ready}
    assert len(PACKAGES) == 15 and max(floors.values()) <= len(("kernels", "experiments")) + 9, floors


def test_files_stay_short():
    """One concept a file: 600 lines, of kernels 400."""
    files = [*MODULES.values(), *(ROOT / "tests").rglob("*.py")]
    limits = {path: 400 if path.is_relative_to(ROOT / "kernels") else 600 for path in files}
    assert not [path for path, limit in limits.items() if len(path.read_text(encoding="utf-8").splitlines()) > limit]
