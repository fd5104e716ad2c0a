"""Settings that take a built-in name or PACKAGE.MODULE:NAME, an object of the user's own.

Does not know what the objects must be like.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from hashlib import sha256
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from harness.config.own_code import import_place, note_own_file

FORM = "PACKAGE.MODULE:NAME"
_brought = set[str]()


class ImportPath(str):
    """PACKAGE.MODULE:NAME, in the place of a member of the setting's Enum: `value` is the text of either."""

    @property
    def value(self) -> str:
        return str(self)

    def load(self, key: str, kind: type = object) -> Any:
        """The object that the path names.

        Args:
            key: of the setting, for the message.
            kind: class that the object must be of.

        Raises:
            ValueError: there is no such module or object, the module fails while it is imported, or the object is of
                another class.
        """
        module, _, name = self.partition(":")
        try:
            found = getattr(_imported(module), name)
        except Exception as error:
            raise ValueError(
                f"{key}: expected an object {FORM} that can be imported, found {self} "
                f"({type(error).__name__}: {error}{import_place(error)}); Python looks for it from the current folder "
                "and in PYTHONPATH"
            ) from error
        if not isinstance(found, kind):
            raise ValueError(f"{key}: expected {self} to be a {kind.__module__}.{kind.__qualname__}, found {found!r}")
        return found

    def source_digest(self) -> str | None:
        """SHA-256 of the source file of its module, as hexadecimal digits; None for a module without one.

        Raises:
            ImportError: there is no such module.
        """
        source = getattr(_imported(self.partition(":")[0]), "__file__", None)
        return None if source is None else sha256(Path(source).read_bytes()).hexdigest()


def _imported(module: str) -> ModuleType:
    before = {*sys.modules}
    try:
        found = import_module(module)
        note_own_file(getattr(found, "__file__", None))
        return found
    finally:
        _brought.update(sys.modules.keys() - before)


def was_brought(module: str) -> bool:
    """Whether a module of the user's own brought another one that the process did not have."""
    return module in _brought


Ours = TypeVar("Ours")
if TYPE_CHECKING:
    OrImported: TypeAlias = Ours | ImportPath
    TextOrTexts: TypeAlias = str | list[str] | None
else:  # OmegaConf takes a union with str, but none with a class of it, nor with a list
    OrImported = Ours | str
    TextOrTexts = Any
"""`OrImported[SomeEnum]` is the type of a field that `named` resolves in `__post_init__`. `TextOrTexts` is that of a
text, a list of texts, or null."""


def is_import_path(name: str) -> bool:
    """Whether a name has the form PACKAGE.MODULE:NAME."""
    return re.fullmatch(r"\w+(\.\w+)*:\w+", name) is not None


def named(key: str, ours: Mapping[str, Ours], name: Ours | str) -> Ours | ImportPath:
    """What a setting names; nothing is imported yet.

    Args:
        key: of the setting, for the message.
        ours: what it takes by name; `SomeEnum.__members__` for an Enum.
        name: as it was given; one of the values of `ours` stays as it is.

    Raises:
        ValueError: it is neither a built-in name nor of the form PACKAGE.MODULE:NAME.
    """
    if not isinstance(name, str):
        return name
    if is_import_path(name):
        return ImportPath(name)
    if name not in ours:
        raise ValueError(f"{key}: expected one of {', '.join(ours)}, or {FORM}, found {name}")
    return ours[name]
