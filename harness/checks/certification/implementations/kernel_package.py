"""Take single modules, or single functions, from an engine's package without running the rest of it.

An engine's `__init__` files import all of it, and with it dozens of packages; the modules with the sampling kernels
need torch and triton. So the packages around them are made without running their `__init__`, and what the modules take
from those is handed in. The package may be installed, unpacked in a folder, or its wheel as it was downloaded: all
three are found through PYTHONPATH.
"""

from __future__ import annotations

import ast
import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib import metadata
from importlib.abc import InspectLoader
from importlib.machinery import ModuleSpec, PathFinder
from types import CodeType, ModuleType
from typing import Any

from harness.config.schema import SettingsError


class Excerpt(InspectLoader):
    """Loads a part of a module's code."""

    def __init__(self, code: CodeType) -> None:
        self.code = code

    def get_code(self, fullname: str) -> CodeType:
        return self.code

    def get_source(self, fullname: str) -> None:
        return None


class BareParents:
    """A finder for which every package of one distribution is empty: its `__init__` is not run."""

    def __init__(self, package: str) -> None:
        self.package = package

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name.partition(".")[0] != self.package:
            return None
        found = PathFinder.find_spec(name, path)
        if found is None or found.submodule_search_locations is None:
            return found
        bare = ModuleSpec(name, None, is_package=True)
        bare.submodule_search_locations = list(found.submodule_search_locations)
        return bare


@contextmanager
def bare_parents(package: str, stand_ins: Mapping[str, ModuleType]) -> Iterator[None]:
    """Import modules of a package without its `__init__` files, unless it has been imported before.

    Args:
        package: name of the top-level package.
        stand_ins: modules that are used instead of the package's own, by full name.
    """
    finder = BareParents(package)
    if package not in sys.modules:
        for name, module in stand_ins.items():
            sys.modules.setdefault(name, module)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def import_modules(
    package: str, names: Sequence[str], how: str, stand_ins: Mapping[str, ModuleType] | None = None
) -> list[ModuleType]:
    """Modules of a package.

    Args:
        package: name of the top-level package.
        names: full names of the modules.
        how: the command that gets the package, for the message.
        stand_ins: as of `bare_parents`.

    Raises:
        SettingsError: the package, or one of the modules, cannot be imported.
    """
    with bare_parents(package, stand_ins or {}):
        try:
            return [importlib.import_module(name) for name in names]
        except ImportError as error:
            raise SettingsError(
                f"--subject: expected {' and '.join(names)}, found {error}; {how}, and put it on PYTHONPATH"
            ) from error


def version_of(distribution: str) -> str:
    """The version of a package on the path, "unknown" where it has no metadata."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "unknown"


def take_functions(package: str, module: str, names: Sequence[str], given: Mapping[str, Any]) -> list[Any]:
    """Functions and constants of a module that is not imported itself, because what it imports is the whole engine.

    Args:
        package: name of the top-level package.
        module: full name of the module; only its text is read.
        names: of top-level functions and constants, in the order of the answer.
        given: what they find as globals.

    Raises:
        SettingsError: the module has no such name.
    """
    with bare_parents(package, {}):
        parent, _, _ = module.rpartition(".")
        importlib.import_module(parent)
        found = PathFinder.find_spec(module, sys.modules[parent].__path__)
    text = None if found is None or found.loader is None else found.loader.get_source(module)  # type: ignore[attr-defined]
    nodes = {} if text is None else {name: node for node in ast.parse(text).body for name in _names(node)}
    missing = [name for name in names if name not in nodes]
    if found is None or missing:
        raise SettingsError(f"--subject: expected {', '.join(missing)} in {module}, found none; try another version")
    chosen = ast.Module([nodes[name] for name in names], type_ignores=[])
    excerpt = ModuleType(module)
    vars(excerpt).update(given)
    Excerpt(compile(chosen, found.origin or module, "exec", annotations.compiler_flag)).exec_module(excerpt)
    return [getattr(excerpt, name) for name in names]


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.Assign):
        return [target.id for target in node.targets if isinstance(target, ast.Name)]
    return []
