"""Fields of a drafter's config.json that nobody reads: said aloud, because one may change what the drafter computes."""

from __future__ import annotations

import warnings
from collections.abc import Collection
from typing import Any

from transformers import PreTrainedConfig

OLDER_NAMES = {"rope_scaling", "rope_theta", "torch_dtype"}
"""Names in older files of fields that configuration classes keep under another one."""


def layer_field_names(config: PreTrainedConfig) -> set[str]:
    """The fields that a configuration's class knows, under the names of old files and new ones."""
    return set(type(config)().to_dict()) | OLDER_NAMES


def warn_of_unknown(fields: dict[str, Any], known: Collection[str], source: object) -> None:
    """Warn about fields that are not known; null asks for nothing."""
    unknown = sorted(name for name, value in fields.items() if value is not None and name not in known)
    if unknown:
        warnings.warn(f"{source}: fields that this version does not know: {', '.join(unknown)}", stacklevel=3)
