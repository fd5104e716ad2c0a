"""Which cells use which setting: one table, for composed cells and for records.

The command line refuses a setting that no cell uses, reports leave it out, and the normal form of a cell has its
default. A record may be older than a setting and is not validated again. This module does not know how settings are
shown, nor what identifies a cell.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

from harness.config.cell import UNIONS, CellConfig
from harness.config.depth import PLANNER
from harness.config.drafter import DrafterKind
from harness.config.drafting import OF_CHAINS
from harness.config.models import with_shown_paths
from harness.config.tree import is_chain
from harness.config.union import Union
from harness.config.view import SettingsView
from harness.config.workload import Layout
from kernels.methods import DraftSampling

_WITH_A_MODEL = "with a drafter that is a model, such as drafter=eagle3"
USED_ONLY_WITH: tuple[tuple[tuple[str, ...], Callable[[SettingsView], bool], str], ...] = (
    (
        ("drafting", "verification", "draft_sampling"),
        lambda view: view.value("drafter.kind") != DrafterKind.none.value,
        "with a drafter, such as drafter=eagle3",
    ),
    (
        ("drafting.cache_dtype",),
        lambda view: view.has_draft_cache,
        "with sampled or coupled drafts of a drafter that has a distribution, such as drafter=eagle3",
    ),
    (
        ("measurement.multi_draft_terms",),
        lambda view: view.has_draft_cache and not view.drafts_tree,
        "with sampled or coupled drafts of a drafter that has a distribution, such as drafter=eagle3, that are chains",
    ),
    (("measurement.round_terms",), lambda view: not view.drafts_tree, "without drafting.tree"),
    (
        ("drafting.num_speculative_tokens",),
        lambda view: not view.drafts_tree or is_chain(view.value("drafting.tree")),
        "without drafting.tree, or with drafting.tree=chain: another tree has as many draft tokens as nodes",
    ),
    (
        ("drafting.num_speculative_tokens",),
        lambda view: view.drafts_tree or view.value("drafting.depth") in (None, PLANNER),
        "without a table as drafting.depth, whose largest depth is K",
    ),
    (("drafting.siblings",), lambda view: view.drafts_tree, "with drafting.tree, such as drafting.tree=2-2"),
    (
        ("drafting.siblings",),
        lambda view: view.draft_sampling == DraftSampling.sampled.value,
        "with sampled drafts",
    ),
    (OF_CHAINS, lambda view: not view.drafts_tree, "without drafting.tree, since a tree has one depth"),
    (OF_CHAINS, lambda view: not view.is_served, "with backend=local; what serves drafts as deep in each round"),
    (("drafting.min_confidence",), lambda view: view.has_network, _WITH_A_MODEL),
    (
        ("drafter.confidence",),
        lambda view: (view.value("drafting.min_confidence") or 0) > 0,
        "with drafting.min_confidence above 0, which is compared with it",
    ),
    (
        ("drafting.depth",),
        lambda view: view.has_network or view.value("drafting.min_confidence") == 0,
        f"{_WITH_A_MODEL}, where it is a confidence",
    ),
    (("drafting.step_times",), lambda view: view.value("drafting.depth") == PLANNER, "with drafting.depth=planner"),
    (
        ("drafting.drawn_from",),
        lambda view: view.rounds_draft_logits,
        "with a draft-logit cache that rounds, such as drafting.cache_dtype=bfloat16 with backend.dtype=float32",
    ),
    (
        ("drafter.path",),
        lambda view: view.takes_checkpoint,
        f"{_WITH_A_MODEL}, other than an MTP layer of random weights",
    ),
    (
        ("drafter.revision",),
        lambda view: view.takes_checkpoint and view.value("drafter.path") is not None,
        "with drafter.path",
    ),
    (
        ("target.revision", "target.trust_remote_code"),
        lambda view: view.value("target.path") is not None,
        "with target.path",
    ),
    (
        ("target.accept_unknown",),
        lambda view: view.value("target.path") is not None and not view.is_served,
        "with target.path and backend=local; what serves says itself what it reads",
    ),
    (("target.layers",), lambda view: not view.is_served, "with backend=local; what serves says this itself"),
    (
        ("drafter.accept_unknown",),
        lambda view: view.reads_drafter_files and not view.is_served,
        "with backend=local and a drafter that is read from files of yours: drafter.path, or the MTP layer of "
        "target.path",
    ),
    (
        ("workload.split", "workload.subset", "workload.files"),
        lambda view: view.value("workload.dataset") is not None,
        "with workload.dataset (workload=hf)",
    ),
    (
        ("workload.column",),
        lambda view: (
            view.value("workload.dataset") is not None and view.value("workload.layout") in (None, Layout.auto.value)
        ),
        "with workload.dataset (workload=hf) and without workload.layout, which reads whole rows",
    ),
    (
        ("constraint.drafts",),
        lambda view: view.has_network and not view.is_served,
        f"with backend=local, {_WITH_A_MODEL}",
    ),
    (
        ("decoding.logprobs_mode",),
        lambda view: view.value("decoding.logprobs") is not None,
        "with decoding.logprobs",
    ),
    (
        ("decoding.min_tokens",),
        lambda view: not view.value("decoding.ignore_eos") or bool(view.value("decoding.stop")),
        "with decoding.ignore_eos=false or decoding.stop: nothing ends a request early else",
    ),
    (("server",), lambda view: view.is_served, "with backend=server"),
    (
        ("drafter.aux_layers", "drafter.anchor", "drafter.confidence"),
        lambda view: not view.is_served,
        "with backend=local; what serves reads the files of a head itself",
    ),
    (
        ("drafter.ngram_match",),
        lambda view: not view.is_served,
        "with backend=local; an engine that serves has its own",
    ),
    (
        ("server.command", "server.environment", "server.start_timeout_s", "server.log_folder", "server.max_running"),
        lambda view: view.is_served and view.value("server.url") is None,
        "with backend=server that starts a server, and not with server.url",
    ),
    (
        ("backend.max_length",),
        lambda view: not view.is_served or view.sets_context,
        "with backend=local, or a server.command that names {context}; what serves says this itself",
    ),
    (
        ("workload.history", "workload.layout"),
        lambda view: view.value("workload.path") is not None or view.value("workload.dataset") is not None,
        "with workload.path or workload.dataset",
    ),
    (
        ("backend.prompt_tokens_beside_rounds",),
        lambda view: view.may_use_graphs,
        "with backend.graphs=true, which is so by itself on a GPU",
    ),
)
"""Settings, or whole sections, that many cells ignore: the cells that use them, and those cells in words. In records,
draft_sampling stands beside the sections."""


def unused_settings(view: SettingsView) -> set[str]:
    """The settings and sections that a cell ignores."""
    return {key for keys, uses, _ in USED_ONLY_WITH if not uses(view) for key in keys}


def used_settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a record without those that its cell ignores.

    Args:
        config: of a record, sections as mappings.

    Returns:
        The same, nested likewise; a section of which nothing is used is left out, and paths are those of tables.
    """
    kept = with_shown_paths(without_settings(config, unused_settings(SettingsView.of_record(config))))
    return {section: value for section, value in kept.items() if value != {}}


def without_settings(config: Mapping[str, Any], left_out: Collection[str], prefix: str = "") -> dict[str, Any]:
    """Nested settings without some sections (`verification`) and settings (`drafting.sampling`)."""
    return {
        name: without_settings(item, left_out, f"{prefix}{name}.") if isinstance(item, Mapping) else item
        for name, item in config.items()
        if f"{prefix}{name}" not in left_out
    }


def without_effect(keys: Iterable[str], cells: Sequence[CellConfig]) -> tuple[str, str] | None:
    """The first of some settings that none of the cells uses, and with what it would be used; None if all are used."""
    views = [SettingsView.of_cell(cell) for cell in cells]
    for key in keys:
        rules = [
            (uses, words) for names, uses, words in USED_ONLY_WITH if {key, key.partition(".")[0]}.intersection(names)
        ]
        if not any(all(uses(view) for uses, _ in rules) for view in views):
            # one that no cell keeps; all of them, where each is kept by another cell
            unkept = [words for uses, words in rules if not any(uses(view) for view in views)]
            return key, unkept[0] if unkept else " and ".join(words for _, words in rules)
        with_member = _of_other_members(key, cells)
        if with_member is not None:
            return key, with_member
    return None


def _of_other_members(key: str, cells: Sequence[CellConfig]) -> str | None:
    """With which members of a union a setting would be used, or with which drafts; None if some cell uses it."""
    section, _, name = key.partition(".")
    if not name or section not in UNIONS:
        return None
    union, having = UNIONS[section], [cell for cell in cells if UNIONS[section].has(getattr(cell, section), name)]
    with_member = union.with_members(name)
    if not having:
        return with_member
    unused = [union.unused(getattr(cell, section), cell.drafts_tree) for cell in having]
    return None if any(name not in found for found in unused) else f"{with_member} and {unused[0][name]}"


def normal_form(cell: CellConfig) -> CellConfig:
    """The cell with the default of every setting that it ignores: equal for cells that cannot differ in their result.

    A draft-logit cache of the drafter's own type is `auto`, which is the same; a method keeps what its drafts use.
    """
    view = SettingsView.of_cell(cell)
    unused = unused_settings(view)
    if view.value("drafting.cache_dtype") == view.dtype:
        unused.add("drafting.cache_dtype")
    normal: CellConfig = _reset(cell, CellConfig(), unused)
    rule = normal.verification.rule.for_drafts(normal.drafting.num_speculative_tokens, normal.drafts_tree)
    return replace(normal, verification=normal.verification.with_rule(rule))


def _reset(settings: Any, default: Any, unused: Collection[str], prefix: str = "") -> Any:
    """A copy of a dataclass of settings, and of those in it, with the defaults of the unused ones."""
    values = {}
    for item in fields(default):
        key, value, reset = f"{prefix}{item.name}", getattr(settings, item.name), getattr(default, item.name)
        if key in unused:
            value = reset
        elif key in UNIONS:
            value = _reset_member(UNIONS[key], value, unused)
        elif is_dataclass(value):
            value = _reset(value, reset, unused, f"{key}.")
        values[item.name] = value
    return replace(settings, **values)


def _reset_member(union: Union, value: Any, unused: Collection[str]) -> Any:
    """The same member with the defaults of the settings that it does not use."""
    name, fields_of = union.parts(value)
    kept = {key: item for key, item in fields_of.items() if f"{union.section}.{key}" not in unused}
    return value if len(kept) == len(fields_of) else union.build(name, kept)
