"""Whether the settings of a record have the types and choices of this version's; it may lack some and have others.

Ranges and combinations are not checked again: what was valid when the cell ran stays readable.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.config.cell import UNIONS, CellConfig
from harness.config.guarantee import Guarantee
from harness.config.imported import is_import_path
from harness.config.schema import settings_of
from harness.records.strict_json import Int64, at, typed
from kernels.methods import DraftSampling

_FOUND_BY_A_RUN = {"draft_sampling": DraftSampling, "guarantee": Guarantee, "device": str, "dtype": str}
"""What stands beside the sections."""
_OF_FILES: Mapping[Any, Any] = {int: Int64}
"""Types whose range a file must keep."""


def check_recorded(config: Mapping[str, Any]) -> None:
    """Raise ValueError where a setting of a record is of another type or none of its choices; it is named."""
    for setting in settings_of(CellConfig, ""):
        section, _, name = setting.key.rpartition(".")
        values = at(section, typed, Mapping[str, Any], config.get(section, {})) if section else config
        if setting.members and values.get(UNIONS[section].tag) not in setting.members:
            continue
        if name in values and not (setting.optional and values[name] is None):
            is_imported = setting.imports and isinstance(values[name], str) and is_import_path(values[name])
            at(setting.key, typed, str if is_imported else _OF_FILES.get(setting.type, setting.type), values[name])
    for name in config.keys() & _FOUND_BY_A_RUN.keys():
        at(name, typed, _FOUND_BY_A_RUN[name], config[name])
