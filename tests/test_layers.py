"""The direction of imports, and what each side may know; read from the source, so that nothing has to be imported."""

import ast
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Lowest first. A module imports from its own layer and from lower ones of its own side; the two sides share the stem.
STEM = [
    ["kernels"],
    [
        "harness.acceptance_profiles",
        "harness.combinations",
        "harness.config",
        "harness.constraint_config",
        "harness.determinants",
        "harness.device_choice",
        "harness.kernel_case",
        "harness.kernel_records",
        "harness.labels",
        "harness.model_config",
        "harness.plain_settings",
        "harness.provenance",
        "harness.records",
        "harness.round_terms",
        "harness.run_config",
        "harness.settings",
    ],
]
MEASURING = [
    ["harness.agreement", "harness.certification"],
    [
        "harness.prompt",
        "harness.prompt_length",
        "harness.layouts",
        "harness.hub_dataset",
        "harness.workload",
        "harness.chat",
    ],
    ["harness.compile_check"],
    ["harness.kernel_bench"],
    ["harness.models"],
    ["harness.constraint"],
    ["harness.boundary_cost"],
    ["harness.drafters"],
    ["harness.engine"],
    ["harness.compiled_core", "harness.compiled_layers"],
    ["harness.backends"],
    ["harness.plan", "harness.progress", "harness.repeated_cells", "harness.sweep", "harness.round_profiles"],
    ["harness.round_floors"],
    ["harness.round_report"],
    [
        "harness.overrides",
        "harness.preferred",
        "harness.without_gpu",
        "harness.compose",
        "harness.command_line",
        "harness.recorded_plan",
    ],
    ["harness.plain_command"],
]
READING = [
    ["harness.boundary_sums"],
    [
        "harness.columns",
        "harness.definitions",
        "harness.highlight",
        "harness.intervals",
        "harness.plain_text",
        "harness.runs",
        "harness.same_tokens",
        "harness.sums",
        "harness.used_settings",
    ],
    ["harness.cell_tables", "harness.estimates", "harness.other_settings"],
    ["harness.metrics"],
    ["harness.block_drift"],
    ["harness.comparison", "harness.number_format"],
    ["harness.certification_results", "harness.frame_text", "harness.table"],
    ["harness.gap_notes", "harness.latex", "harness.tables"],
    ["harness.boundary_table"],
    ["harness.boundary_lines"],
    ["harness.axes", "harness.console", "harness.figures"],
    ["harness.concurrency_table", "harness.depth_table", "harness.drafting_table"],
    ["harness.replay.recorded", "harness.results", "harness.run_summary"],
    ["harness.lossy_table"],
    ["harness.draft_dtype_table"],
    ["harness.answers"],
    ["harness.cell_matching", "harness.notices", "harness.report_tables", "harness.run_comparison"],
    ["harness.report_page"],
    ["harness.html"],
    ["harness.report", "harness.replay"],
    ["harness.kernel_columns", "harness.kernel_goals", "harness.kernel_report", "harness.kernel_figure"],
]
SIDES = {"measuring": STEM + MEASURING, "reading": STEM + READING}
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
}


class Imports(ast.NodeVisitor):
    """Collects every imported name of a module, except what only type checkers read."""

    def __init__(self) -> None:
        self.everywhere: set[str] = set()
        self.at_import: set[str] = set()
        self.relative = False
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

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self.relative |= node.level > 0
        for alias in node.names:
            submodule = f"{node.module}.{alias.name}"
            self.add(submodule if submodule in MODULES else str(node.module))


@cache
def imports_of(module: str) -> Imports:
    found = Imports()
    found.visit(ast.parse(MODULES[module].read_text(encoding="utf-8")))
    return found


def level_in(layers: list[list[str]], module: str) -> int | None:
    for level, members in enumerate(layers):
        if any(module == member or module.startswith(f"{member}.") for member in members):
            return level
    return None


def parents(module: str) -> list[str]:
    parts = module.split(".")
    return [".".join(parts[:end]) for end in range(1, len(parts))]


def reachable(module: str, at_import_only: bool) -> dict[str, str]:
    """Every module that `module` imports, directly or through ours, with the module of ours that imports it."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        current = waiting.pop()
        names = imports_of(current).at_import if at_import_only else imports_of(current).everywhere
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


def side_of(module: str) -> str | None:
    return next((side for side, layers in SIDES.items() if level_in(layers, module) is not None), None)


READING_MODULES = [module for module in MODULES if level_in(READING, module) is not None]


def test_every_module_has_its_layer():
    homeless = [name for name in MODULES if name.split(".")[0] != "experiments" and name != "harness"]
    homeless = [name for name in homeless if side_of(name) is None]
    assert not homeless, f"expected every module to have a layer, found none for {homeless}; add them to this test"


@pytest.mark.parametrize("side", SIDES)
def test_a_lower_layer_never_imports_a_higher_one_or_the_other_side(side):
    layers = SIDES[side]
    wrong = []
    for module in MODULES:
        level = level_in(layers, module)
        if level is None:
            continue
        for name in imports_of(module).everywhere & MODULES.keys():
            target = level_in(layers, name)
            if target is None or target > level:
                wrong.append(f"{module} imports {name}")
    assert not wrong


def test_the_sampling_core_knows_torch_and_triton_only():
    allowed = {"kernels", "torch", "triton", "__future__"} | sys.stdlib_module_names
    wrong = [
        f"{module} imports {name}"
        for module in MODULES
        if module.split(".")[0] == "kernels"
        for name in imports_of(module).everywhere
        if name.split(".")[0] not in allowed
    ]
    assert not wrong


@pytest.mark.parametrize("module", READING_MODULES)
def test_results_are_read_without_torch_transformers_or_hydra(module):
    assert not heavy_imports(module, at_import_only=False)


def test_settings_and_records_are_read_without_torch():
    assert not [line for module in STEM[1] if module in MODULES for line in heavy_imports(module, at_import_only=True)]


def test_imports_are_absolute():
    assert not [module for module in MODULES if imports_of(module).relative]


def test_no_file_has_a_name_that_says_nothing():
    names = [path for path in [*MODULES.values(), *(ROOT / "tests").rglob("*.py")] if path.stem != "__init__"]
    wrong = [path.name for path in names if SAYS_NOTHING & {path.stem, path.stem.split("_")[-1], path.parent.name}]
    assert not wrong


def test_tests_are_flat():
    assert not [path for path in (ROOT / "tests").rglob("*.py") if path.parent != ROOT / "tests"]
