"""Prompts from a column of a Hugging Face data set, or from whole rows of a layout of prompt files.

`datasets` and `huggingface_hub` are imported on the first call only, because that is slow. This module does not know
the order in which prompts are run.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.config.imported import ImportPath
from harness.config.schema import SettingsError
from harness.config.workload import History, Layout
from harness.workload.formats.record import Place
from harness.workload.hub_lookup import not_on_hub, offline
from harness.workload.line_keys import REFUSED, is_given, refused_beside, without_nulls
from harness.workload.messages import is_conversation, prompt_of
from harness.workload.prompt import Prompt
from harness.workload.prompt_files import json_lines, layout_name, prompt_of_record

PLACEHOLDER = "FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE"
"""How a prompt of nvidia/SPEED-Bench begins that must be fetched from its source first
(specdec_bench/datasets/speed.py of NVIDIA/Model-Optimizer)."""
FILL_IN = (
    "fill them in with examples/specdec_bench/prepare_data.py of NVIDIA/Model-Optimizer, which writes "
    "DIR/speed/qualitative/test.parquet, and give workload.dataset=DIR/speed/qualitative workload.subset=null; or with "
    "nemo_skills/dataset/speed-bench/prepare.py of NVIDIA-NeMo/Skills, which writes qualitative.jsonl: workload.path"
)


def read_hub_prompts(
    dataset: str,
    subset: str | None,
    split: str,
    column: str,
    files: str | None = None,
    history: History = History.generated,
    layout: Layout | ImportPath = Layout.auto,
) -> list[Prompt]:
    """Read every prompt of a split, in its order, or of some files, in the order of their names.

    With a layout a row is a record of it, as a line of a file is (harness.workload.formats), and of several files the
    ids of prompts begin with the name of their file. Without, a cell of the column holds a text (one turn), a list of
    texts (turns), or a list of messages (harness.workload.messages). Prompts are named split/row; a text column
    `category` gives the category, else it is the data set's name. Of files, their names stand for the split and the
    category. Columns that were not chosen are not read; one that would change a request, such as stop, context, or
    Alpaca's input beside an instruction, is refused where a row has something there.

    Args:
        dataset: id on the hub, or a local folder of data files. What lies in the local Hub cache is read offline.
        subset: configuration name, None for the default one.
        split: name of the split; the slices of `datasets` ("train[:100]") work too.
        column: the column that holds the prompt.
        files: pattern of the JSON Lines files to read instead of a split, such as *.jsonl.
        history: whose answers stand between the turns of messages.
        layout: of the rows; auto reads the column.

    Raises:
        SettingsError: the data set, split, files or column are not available, or a row holds something else, a
            placeholder of a prompt, or a part of its prompt in another column; there are no rows, or two have one id.
    """
    if files is not None:
        prompts, source = _of_files(dataset, files, column, history, layout), f"files {files}"
    else:
        prompts, source = _of_split(dataset, subset, split, column, history, layout), f"split {split}"
    if not prompts:
        raise SettingsError(f"{dataset}, {source}: expected at least one row, found none")
    prompt_id, number = Counter(prompt.prompt_id for prompt in prompts).most_common(1)[0]
    if number > 1:
        raise SettingsError(
            f"{dataset}, {source}: expected prompts whose ids differ, found {prompt_id!r} {number} times; give every "
            "prompt its own id, and every file its own name"
        )
    return prompts


def check_filled_in(prompts: Sequence[Prompt], source: str) -> None:
    """Raises SettingsError where a prompt of SPEED-Bench stands for one that must be fetched from its source."""
    num_missing = sum(any(turn.startswith(PLACEHOLDER) for turn in prompt.turns) for prompt in prompts)
    if num_missing:
        raise SettingsError(
            f"{source}: expected prompts, found placeholders in {num_missing} of the {len(prompts)}; {FILL_IN}"
        )


def _of_files(dataset: str, files: str, column: str, history: History, layout: Layout | ImportPath) -> list[Prompt]:
    folder = Path(dataset) if Path(dataset).is_dir() else _snapshot(dataset, files)
    paths = sorted(path for path in folder.glob(files) if path.is_file())
    if not paths:
        raise SettingsError(f"workload.files: expected files {files} in {dataset}, found none")
    prompts = []
    for path in paths:
        for line, row in json_lines(path):
            place = f"{dataset}, {path.name}:{line}"
            if layout is not Layout.auto:
                prompt = _prompt_of_row(row, layout, Place(line, path.stem), history, place)
                prompt_id = prompt.prompt_id if len(paths) == 1 else f"{path.stem}/{prompt.prompt_id}"
                prompts.append(replace(prompt, prompt_id=prompt_id))
                continue
            if not isinstance(row, dict) or column not in row:
                found = ", ".join(map(str, row)) if isinstance(row, dict) else type(row).__name__
                raise SettingsError(f"{place}: expected an object with {column} (workload.column), found {found}")
            for name in refused_beside(column, row):
                _check_absent(name, row[name], place)
            prompts.append(_prompt(f"{path.stem}/{line - 1}", path.stem, row[column], place, history))
    return prompts


def _of_split(
    dataset: str, subset: str | None, split: str, column: str, history: History, layout: Layout | ImportPath
) -> list[Prompt]:
    table = _load(dataset, subset, split)
    if layout is not Layout.auto:
        place = f"{dataset}, row {split}/"
        return [
            _prompt_of_row(row, layout, Place(index + 1, layout_name(layout)), history, f"{place}{index}")
            for index, row in enumerate(table)
        ]
    if column not in table.column_names:
        raise SettingsError(
            f"workload.column: expected a column of {dataset} ({', '.join(table.column_names)}), found {column!r}"
        )
    named = "category" in table.column_names and column != "category"
    for name in refused_beside(column, table.column_names):
        # as stored: an image is not decoded, and none is looked at behind the first
        for index, value in enumerate(itertools.chain.from_iterable(table.data.column(name).chunks)):
            _check_absent(name, value.as_py(), f"{dataset}, row {split}/{index}")
    prompts = []
    for index, cell in enumerate(table[column]):
        row = f"{split}/{index}"
        category = table[index]["category"] if named else None
        category = category if isinstance(category, str) and category else dataset.rstrip("/").rsplit("/", 1)[-1]
        prompts.append(_prompt(row, category, cell, f"{dataset}, column {column}, row {row}", history))
    return prompts


def _prompt_of_row(row: Any, layout: Layout | ImportPath, where: Place, history: History, place: str) -> Prompt:
    """The prompt of a whole row."""
    try:
        return prompt_of_record(without_nulls(row), layout, where, history)
    except ValueError as error:
        raise SettingsError(f"{place}: layout {layout.value}: {error}") from error


def _check_absent(name: str, value: Any, place: str) -> None:
    if is_given(value):
        raise SettingsError(f"{place}: expected nothing in column {name}: {REFUSED[name]}")


def _prompt(prompt_id: str, category: str, cell: Any, place: str, history: History) -> Prompt:
    try:
        if is_conversation(cell):
            return prompt_of(prompt_id, category, cell, history)
        return Prompt(prompt_id, category, _turns(cell))
    except ValueError as error:
        raise SettingsError(f"{place}: {error}") from error


def check_there(dataset: str) -> str | None:
    """Look for a data set in folders, caches and on the Hub; downloads nothing.

    Returns:
        Why a data set that a cache may have cannot be had from the Hub; None where it can, or is a folder.

    Raises:
        SettingsError: it is nowhere.
    """
    reason = None if Path(dataset).is_dir() else not_on_hub(dataset, is_dataset=True)
    if reason is not None and _cached(dataset) is None and not _may_be_prepared(dataset):
        raise SettingsError(
            f"workload.dataset: expected a data set on the hub or in its local cache, found for {dataset!r}: "
            f"{reason}{_advice(dataset)}"
        )
    return reason


def _may_be_prepared(dataset: str) -> bool:
    """Whether the cache of `datasets`, which is not the Hub's, has a data set by that name; told without importing it,
    which takes seconds."""
    from huggingface_hub import constants

    loaded = sys.modules.get("datasets.config")
    given = os.environ.get("HF_DATASETS_CACHE") or os.path.join(constants.HF_HOME, "datasets")
    cache = Path(loaded.HF_DATASETS_CACHE if loaded is not None else given).expanduser()
    # it writes names in another case
    wanted = dataset.replace("/", "").replace("_", "").lower()
    folders = cache.iterdir() if cache.is_dir() else ()
    return any(path.name.replace("_", "").lower() == wanted for path in folders)


def _load(dataset: str, subset: str | None, split: str) -> Any:
    unreachable = check_there(dataset)
    import datasets

    known = (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError)
    try:
        with nullcontext() if unreachable is None else offline():
            return datasets.load_dataset(dataset, subset, split=split)
    except known as error:
        # `datasets` has a cache of its own: offline it does not see what `hf download` has put into that of the Hub
        folder = None if Path(dataset).is_dir() else _cached(dataset)
        if folder is not None:
            try:
                return datasets.load_dataset(str(folder), subset, split=split)
            except known:
                pass
        wanted = f"workload.dataset: expected a data set with subset {subset or 'default'} and split {split}, found"
        subsets = _subsets_of(dataset) if subset is not None and Path(dataset).is_dir() else []
        if subsets and subset not in subsets:
            use = "null" if subsets == ["default"] else subsets[0]
            raise SettingsError(
                f"{wanted} in the folder {dataset!r} the subset {', '.join(subsets)}; use workload.subset={use}"
            ) from error
        reason = str(error).strip().split("\n")[0]
        raise SettingsError(f"{wanted} for {dataset!r}: {type(error).__name__}: {reason}{_advice(dataset)}") from error


def _subsets_of(folder: str) -> list[str]:
    """The subsets in a folder; none where it holds no data set."""
    import datasets

    try:
        return list(datasets.get_dataset_config_names(folder))
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError):
        return []


def _snapshot(dataset: str, files: str) -> Path:
    """The folder of some files of a data set on the hub: downloaded, or as the local Hub cache has it."""
    from huggingface_hub import snapshot_download

    unreachable = check_there(dataset)
    try:
        return Path(
            snapshot_download(
                dataset, repo_type="dataset", allow_patterns=files, local_files_only=unreachable is not None
            )
        )
    except (OSError, ValueError, RuntimeError) as error:
        reason = str(error).strip().split("\n")[0]
        raise SettingsError(
            f"workload.dataset: expected a data set on the hub or in its local cache, found for {dataset!r}: "
            f"{type(error).__name__}: {reason}{_advice(dataset)}"
        ) from error


def _cached(dataset: str) -> Path | None:
    """The folder of a data set in the local Hub cache; None where there is none."""
    from huggingface_hub import snapshot_download

    try:
        return Path(snapshot_download(dataset, repo_type="dataset", local_files_only=True))
    except (OSError, ValueError):
        return None


def _advice(dataset: str) -> str:
    """How to get a data set; empty for a folder."""
    if dataset.count("/") != 1 or dataset.startswith((".", "/", "~")):
        return ""
    return f"; get it with `hf download --repo-type dataset {dataset}`, or give a folder that has it"


def _turns(cell: Any) -> tuple[str, ...]:
    if isinstance(cell, str):
        return (cell,)
    if isinstance(cell, list) and cell and all(isinstance(item, str) for item in cell):
        return tuple(cell)
    raise ValueError(
        f"expected text, a list of texts, or a list of messages with role and content, found {str(cell)[:80]!r}"
    )
