"""The settings of a record that its cell uses: the others are defaults that determine nothing.

`harness.settings.identity` knows which settings a composed cell uses; this module knows it of a record, which may
be older than the settings of today and is not validated again. This module does not know how settings are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from harness.settings.identity import METHOD_PARAMETERS
from harness.settings.models import DRAFTERS_WITH_MODEL, DrafterKind, Weights

Config = Mapping[str, Any]
_WITH_MODEL = {kind.value for kind in DRAFTERS_WITH_MODEL}


def used_settings(config: Config) -> dict[str, Any]:
    """The settings of a record without those that its cell ignores.

    Args:
        config: of a record, sections as mappings.

    Returns:
        The same, nested likewise; a section of which nothing is used is left out.
    """
    unused = {name for names, uses in _USED_ONLY_BY if not uses(config) for name in names}
    kept = {section: _part(section, value, unused) for section, value in config.items() if section not in unused}
    return {section: value for section, value in kept.items() if value != {}}


def _part(section: str, value: Any, unused: set[str]) -> Any:
    """What is used of a section; a setting at the root as it is."""
    if not isinstance(value, Mapping):
        return value
    return {name: item for name, item in value.items() if f"{section}.{name}" not in unused}


def _value(config: Config, section: str, name: str) -> Any:
    """A setting; None where the record is older than it."""
    return config.get(section, {}).get(name)


def _kind(config: Config) -> str:
    return str(_value(config, "drafter", "kind"))


def _has_model(config: Config) -> bool:
    return _kind(config) in _WITH_MODEL


def _has_cache(config: Config) -> bool:
    return _has_model(config) and config.get("draft_sampling") != "greedy"


def _rounds(config: Config) -> bool:
    dtype = _value(config, "drafting", "cache_dtype")
    return _has_cache(config) and dtype not in (None, "auto", "float32", config.get("dtype"))


def _may_use_graphs(config: Config) -> bool:
    graphs = _value(config, "backend", "graphs")
    return bool(graphs) if graphs is not None else config.get("device") != "cpu"


def _is_sized_by_target(config: Config) -> bool:
    return _kind(config) == DrafterKind.mtp.value and _value(config, "drafter", "weights") == Weights.random.value


_USED_ONLY_BY: tuple[tuple[tuple[str, ...], Callable[[Config], bool]], ...] = (
    (("drafting", "verification", "draft_sampling"), lambda config: _kind(config) != DrafterKind.none.value),
    *(
        (
            tuple(f"verification.{name}" for name in names),
            lambda config, method=method: _value(config, "verification", "method") == method.value,
        )
        for method, names in METHOD_PARAMETERS.items()
    ),
    (("drafting.cache_dtype",), _has_cache),
    (("drafting.drawn_from",), _rounds),
    (("drafter.ngram_max", "drafter.ngram_min"), lambda config: _kind(config) == DrafterKind.ngram.value),
    (("drafter.preferred", "drafter.weights"), _has_model),
    (("drafter.path",), lambda config: _has_model(config) and not _is_sized_by_target(config)),
    (("drafter.shape",), lambda config: _kind(config) == DrafterKind.draft_model.value),
    (("drafter.revision",), lambda config: _has_model(config) and _value(config, "drafter", "path") is not None),
    (("target.revision", "target.trust_remote_code"), lambda config: _value(config, "target", "path") is not None),
    (
        ("workload.split", "workload.column", "workload.subset"),
        lambda config: _value(config, "workload", "dataset") is not None,
    ),
    (("workload.layout",), lambda config: _value(config, "workload", "path") is not None),
    (
        ("constraint.parser", "constraint.kind", "constraint.grammar"),
        lambda config: _value(config, "constraint", "policy") is not None,
    ),
    (("backend.prompt_tokens_beside_rounds",), _may_use_graphs),
)
"""Settings, or whole sections, that many cells ignore, and the cells that use them."""
