"""The settings columns of a cell, read from its record; knows no metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.analysis.flat_settings import distinct_values, flattened
from harness.analysis.sessions import sessions_label
from harness.config.constraint import AnswerDrafts, PolicyKind
from harness.config.drafter import DRAFTER, drafter_traits
from harness.config.drafting import DraftingConfig, SiblingsChoice, siblings_of
from harness.config.guarantee import rounding_labels, weights_label
from harness.config.identity import key_without
from harness.config.models import Confidence, Weights, shown_path
from harness.config.recorded import check_recorded
from harness.config.tree import is_chain
from harness.config.usage import used_settings
from harness.config.view import SettingsView
from harness.records.schema import CellRecord
from harness.records.strict_json import at
from kernels.methods import NAMED_METHODS


def settings_columns(record: CellRecord, run: str) -> dict[str, Any]:
    """The settings columns of a cell, but for other_settings.

    Raises:
        ValueError: the record lacks a setting, or one has another type.
    """
    setting = SettingReader(record)
    at(f"cell {record.cell_id}: its configuration", check_recorded, record.config)
    setting("verification")
    # a tree and a table of depths are texts with a form of their own
    forms = {name: value for name, value in setting("drafting").items() if name in _FORMS}
    at(f"cell {record.cell_id}: its configuration", lambda: DraftingConfig(**forms))
    drafter = setting("drafter.kind")
    baseline = drafter == "none"
    guarantee = "lossless" if baseline else setting("guarantee")
    target_weights = _weights(setting("target"))
    drafter_weights = _weights(setting("drafter")) if drafter_traits(drafter).has_model else ""
    # whatever the record's own labels say
    labels = [
        *record.labels,
        "" if guarantee == "lossless" else guarantee,
        weights_label(target_weights, drafter_weights),
        record.rounded_weights,
        _failed(record),
        sessions_label(record),
    ]
    decoding = ("temperature", "top_k", "top_p", "min_p", "max_new_tokens", "ignore_eos")
    return {
        "run": run,
        "cell_id": record.cell_id,
        "target": setting("target.name"),
        "target_weights": target_weights,
        "drafter": drafter,
        "drafter_path": shown_path(setting("drafter").get("path") or setting("drafter").get("shape") or ""),
        "drafter_weights": drafter_weights,
        "num_speculative_tokens": 0 if baseline else setting("drafting.num_speculative_tokens"),
        "draft_sampling": "" if baseline else setting("draft_sampling"),
        "depth": _depth(record),
        **_tree(record),
        **_draft_cache(record),
        "verification": "" if baseline else _verification(setting("verification.method"), setting("verification")),
        "guarantee": guarantee,
        "labels": "; ".join(dict.fromkeys(label for label in labels if label)),
        **{name: setting(f"decoding.{name}") for name in decoding},
        "workload": _workload(setting("workload")),
        "knowledge": record.knowledge.value,
        "constraint": _constraint(record.config),
        "prompt_tokens": setting("workload").get("prompt_tokens") or 0,
        "max_concurrency": setting("backend.max_concurrency"),
        "engine": _engine(record.config),
        "device": setting("device"),
        "dtype": setting("dtype"),
        "ranks": _ranks(record.config),
        "rounding": ", ".join(rounded(record)),
        "seed": setting("seed"),
    }


def rounded(record: CellRecord) -> tuple[str, ...]:
    """What of a cell's target takes fewer bits than its dtype, as labels."""
    backend = record.config.get("backend", {})
    chosen = rounding_labels(backend.get("weight_dtype"), backend.get("kv_cache_dtype"))
    return (*([record.rounded_weights] if record.rounded_weights else []), *chosen)


_FORMS = ("num_speculative_tokens", "depth", "tree")


def _engine(config: Mapping[str, Any]) -> str:
    """The kind of backend; of a server what serves. Older records do not name it: it was this engine."""
    kind = str(config.get("backend", {}).get("kind", "local"))
    return str(config["server"]["engine"]) if kind == "server" else kind


def _ranks(config: Mapping[str, Any]) -> str:
    """How many ranks compute the target; records that do not name them have one."""
    return "" if _engine(config) != "local" else str(config.get("backend", {}).get("tensor_parallel", 1))


def _failed(record: CellRecord) -> str:
    """The label of a cell with failures."""
    if not record.failures:
        return ""
    if record.has_failed:
        return "failed"
    num_lost = record.num_failed_requests
    others = dict.fromkeys(item.error for item in record.failures if item.request is None)
    return ", ".join([*([f"{num_lost} requests failed"] if num_lost else []), *others])


def _draft_cache(record: CellRecord) -> dict[str, str]:
    """Type of the draft-logit cache and what is drawn from; records that do not name them are of the drafter's own."""
    if not SettingsView.of_record(record.config).has_draft_cache:
        return {"draft_cache_dtype": "", "drawn_from": ""}
    drafting = SettingReader(record)("drafting")
    dtype = drafting.get("cache_dtype", "auto")
    return {
        "draft_cache_dtype": SettingReader(record)("dtype") if dtype == "auto" else dtype,
        "drawn_from": drafting.get("drawn_from", "stored"),
    }


_CONFIDENCES = {
    Confidence.row.value: "confidence",
    Confidence.head.value: "predicted confidence",
    Confidence.survival.value: "predicted survival",
}


def _depth(record: CellRecord) -> str:
    """What decides about drafts beside K; records whose rounds all draft K tokens need not name it."""
    view = SettingsView.of_record(record.config)
    if view.value("drafter.kind") == "none" or view.drafts_tree or view.is_served:
        return ""
    by_step, least = view.value("drafting.depth"), view.value("drafting.min_confidence") if view.has_network else 0
    name = _CONFIDENCES[view.value("drafter.confidence") or Confidence.row.value]
    return ", ".join([*([by_step] if by_step else []), *([f"{name} {least:g}"] if least else [])])


def _tree(record: CellRecord) -> dict[str, str]:
    """The shape of the drafts and how siblings are drawn; empty for chains."""
    view = SettingsView.of_record(record.config)
    if view.value("drafter.kind") == "none" or not view.drafts_tree:
        return {"tree": "", "siblings": ""}
    tree = view.value("drafting.tree")
    if is_chain(tree) or view.draft_sampling == "greedy":
        return {"tree": tree, "siblings": ""}
    siblings = view.value("drafting.siblings")
    if siblings == SiblingsChoice.auto.value:
        siblings = siblings_of(NAMED_METHODS[view.value("verification.method")].traits).value
    return {"tree": tree, "siblings": siblings}


@dataclass(frozen=True)
class SettingReader:
    """Reads `group.name` from a record's configuration."""

    record: CellRecord

    def __call__(self, name: str) -> Any:
        value: Any = self.record.config
        for part in name.split("."):
            if not isinstance(value, Mapping) or part not in value:
                raise ValueError(f"cell {self.record.cell_id}: its configuration lacks {name}; run the cell again")
            value = value[part]
        return value


def _verification(method: str, config: Mapping[str, Any]) -> str:
    """The method, with the parameters that it uses; a profile stands for its rates."""
    of_profile = ("rates", "tree_rates") if config.get("profile") else ()
    given = {name: value for name, value in config.items() if name not in ("method", *of_profile)}
    text = ", ".join(f"{name}={_plain(value)}" for name, value in given.items() if value not in (None, []))
    return f"{method}({text})" if text else method


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list) and value and isinstance(value[0], list):
        return " ".join(map(_plain, value))
    return "/".join(f"{item:g}" for item in value) if isinstance(value, list) else f"{value:g}"


def _weights(config: Mapping[str, Any]) -> str:
    """Older records do not name the source: it was a checkpoint."""
    return str(config.get("weights", Weights.checkpoint.value))


def _constraint(config: Mapping[str, Any]) -> str:
    """The policy with what it applies to; empty in older records, which have no constraint."""
    section = config.get("constraint", {})
    if section.get("policy") in (None, PolicyKind.free_text.value):
        return ""
    is_free = used_settings(config)["constraint"].get("drafts") == AnswerDrafts.free.value
    return f"{section['policy']} ({section.get('parser')}, {section.get('kind')}{', free drafts' if is_free else ''})"


def _workload(config: Mapping[str, Any]) -> str:
    if config.get("dataset"):
        return str(config["dataset"])
    given = config.get("path") or []
    paths = [Path(path) for path in ([given] if isinstance(given, str) else given)]
    return ", ".join("/".join(part for part in (path.parent.name, path.name) if part) for path in paths) or "builtin"


_IN_NAMES = {
    f"drafter.{name}"
    for kind in DRAFTER.names
    for name in DRAFTER.field_names(kind)
    if f"{{{name}}}" in drafter_traits(kind).name
}
"""No column holds these, but the name of the drafter does."""


def other_settings(columns: Sequence[Mapping[str, Any]], configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What tells the cells of a run apart beside their columns.

    Args:
        columns: the settings columns of each cell.
        configs: of the records of the same cells, sections as mappings.

    Returns:
        For each cell `section.name=value` of every setting that it uses and that differs between cells with the same
        columns, separated by commas; empty where there is none.
    """
    used = [used_settings(config) for config in configs]
    alike: dict[str, list[dict[str, Any]]] = {}
    for shown, config in zip(columns, used, strict=True):
        alike.setdefault(key_without(shown, "cell_id"), []).append(config)
    differing = {
        name: None
        for group in alike.values()
        for name, values in distinct_values(group).items()
        if len(values) > 1 and name not in _IN_NAMES
    }
    texts = [flattened(config) for config in used]
    return [", ".join(f"{name}={text[name]}" for name in differing if name in text) for text in texts]
