"""Prompts from a column of a Hugging Face data set.

`datasets` is imported on the first call only, because that is slow. This module knows neither prompt files nor the
order in which prompts are run.
"""

from __future__ import annotations

from typing import Any

from harness.workload.prompt import Prompt


def read_hub_prompts(dataset: str, subset: str | None, split: str, column: str) -> list[Prompt]:
    """Read every prompt of a split, in its order.

    A cell of the column holds a text (one turn), a list of texts (turns), or a list of {role, content} messages, of
    which the user's are the turns: the answers between them are the model's own. A system message opens the first
    turn as a paragraph of its own. Prompts are named split/row; a text column `category` gives the category, else
    it is the data set's name.

    Args:
        dataset: id on the hub, or a local folder of data files.
        subset: configuration name, None for the default one.
        split: name of the split; the slices of `datasets` ("train[:100]") work too.
        column: the column that holds the prompt.

    Raises:
        ValueError: the data set, split or column is not available, or a row holds something else.
    """
    table = _load(dataset, subset, split)
    if column not in table.column_names:
        raise ValueError(
            f"workload.column: expected a column of {dataset} ({', '.join(table.column_names)}), found {column!r}"
        )
    named = "category" in table.column_names and column != "category"
    prompts = []
    for index, cell in enumerate(table[column]):
        row = f"{split}/{index}"
        category = table[index]["category"] if named else None
        category = category if isinstance(category, str) and category else dataset.rstrip("/").rsplit("/", 1)[-1]
        try:
            prompts.append(Prompt(row, category, _turns(cell)))
        except ValueError as error:
            raise ValueError(f"{dataset}, column {column}, row {row}: {error}") from error
    if not prompts:
        raise ValueError(f"{dataset}, split {split}: expected at least one row, found none")
    return prompts


def _load(dataset: str, subset: str | None, split: str) -> Any:
    import datasets

    try:
        return datasets.load_dataset(dataset, subset, split=split)
    except (OSError, ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:
        reason = str(error).strip().split("\n")[0]
        raise ValueError(
            f"workload.dataset: expected a data set with subset {subset or 'default'} and split {split}, "
            f"found for {dataset!r}: {type(error).__name__}: {reason}"
        ) from error


def _turns(cell: Any) -> tuple[str, ...]:
    if isinstance(cell, str):
        return (cell,)
    if isinstance(cell, list) and cell and all(isinstance(item, str) for item in cell):
        return tuple(cell)
    if isinstance(cell, list) and cell and all(_is_message(item) for item in cell):
        return _user_turns(cell)
    raise ValueError(
        f"expected text, a list of texts, or a list of messages with role and content, found {str(cell)[:80]!r}"
    )


def _is_message(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("role"), str) and isinstance(item.get("content"), str)


def _user_turns(messages: list[dict[str, str]]) -> tuple[str, ...]:
    unknown = {message["role"] for message in messages} - {"system", "user", "assistant"}
    if unknown:
        raise ValueError(f"expected messages of system, user and assistant, found {', '.join(sorted(unknown))}")
    system = [message["content"] for message in messages if message["role"] == "system"]
    turns = [message["content"] for message in messages if message["role"] == "user"]
    if not turns:
        raise ValueError("expected at least one message of the user, found none")
    return ("\n\n".join([*system, turns[0]]), *turns[1:])
