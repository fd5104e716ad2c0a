"""What decided where greedy answers of two cells part: the target's logits behind the text that both share, in float32.

Rounding can have decided between two tokens if it can move the gap of their logits that far. How far it moves such
gaps is measured in the same text: by the gap of the two best logits in float32 and in the dtype of the cells, at the
last WINDOW places. Forwards of other shapes round otherwise, so twice the largest such movement is allowed. For float32
it is that of bfloat16, times the ratio of their precision.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import torch
from torch import Tensor

from harness.analysis.answers import Parting, partings
from harness.analysis.cell import CellResult
from harness.analysis.comparison import SHAPE, groups, takes_argmax
from harness.backends.local.model_store import target_of
from harness.backends.local.requests import CellRequests
from harness.config.cell import CellConfig
from harness.config.constraint import GrammarConfig
from harness.config.guarantee import rounding_labels
from harness.config.models import TargetConfig, Weights
from harness.config.sampling import EDITS
from harness.models.rounded_weights import GGUF
from harness.models.slot_cache import TargetCache
from harness.models.target import TargetModel
from harness.records.partings import AttributedParting
from harness.runner.plan.from_records import recorded_cell
from harness.workload.chat import decode_answer
from harness.workload.conversations import Conversation, conversations, load_prompts

WINDOW = 32
"""Places at which the effect of rounding is looked at: the last ones of a text."""
TO_FLOAT32 = torch.finfo(torch.float32).eps / torch.finfo(torch.bfloat16).eps


def pairs_of(cells: Sequence[CellResult]) -> list[tuple[CellResult, CellResult]]:
    """The cells whose answers are equal but for rounding: each with its baseline, and every two methods of a
    setting."""
    greedy = [cell for cell in cells if not cell.is_baseline and not cell.record.has_failed and takes_argmax(cell)]
    found = [(cell.baseline, cell) for cell in greedy if cell.baseline is not None]
    for group in groups(greedy, SHAPE):
        found += combinations(group.cells, 2)
    return found


def attribute(
    cells: Sequence[CellResult], device: str = "cpu", tell: Callable[[str], None] = lambda text: None
) -> list[AttributedParting]:
    """Look at every parting of some cells.

    Args:
        cells: of one run.
        device: on which the target is loaded, once in float32 and once in the dtype of the cells.
        tell: told which pairs are left out, and why.

    Raises:
        ValueError: a target cannot be loaded, or the prompts are no longer those of the records.
    """
    logits, found = _Logits(device), list[AttributedParting]()
    for first, second in pairs_of(cells):
        parted = partings(first.record, second.record)
        if not parted:
            continue
        reason = _not_looked_at(first) or _not_looked_at(second)
        if reason is not None:
            tell(f"{first.record.cell_id} and {second.record.cell_id}: left out, {reason}")
            continue
        texts = _Texts(recorded_cell(second.record), second, logits)
        found += [_attributed(first, second, item, texts, logits) for item in parted]
    return found


def _not_looked_at(cell: CellResult) -> str | None:
    """Why nothing can be said of a cell's logits; None where it can."""
    config = cell.record.config
    backend, target = config["backend"], config["target"]
    if target.get("weights") == Weights.random.value:
        return "random weights, whose logits are nearly equal everywhere"
    if rounding_labels(backend.get("weight_dtype"), backend.get("kv_cache_dtype")):
        return "weights or caches in 8 bits, whose rounding is not measured here"
    rounded = cell.record.rounded_weights
    if rounded and not rounded.startswith(GGUF):
        return f"{rounded}, which are not multiplied in float32 whatever the dtype"
    if isinstance(recorded_cell(cell.record).constraint, GrammarConfig):
        return "a grammar, which chooses among the tokens that it allows"
    if cell["dtype"] not in ("float32", "float16", "bfloat16"):
        return "a server that does not say in what it computes"
    of_requests = [item.sampling for item in cell.record.requests if item.sampling is not None]
    given = [config["decoding"], *of_requests]
    changed = [item.name for item in EDITS if any(each.get(item.name, item.default) != item.default for each in given)]
    return f"decoding.{changed[0]}, which changes the logits" if changed else None


@dataclass
class _Logits:
    """The targets that were loaded, by settings and dtype."""

    device: str
    _loaded: dict[str, TargetModel] = field(default_factory=dict)

    def model(self, target: TargetConfig, dtype: torch.dtype) -> TargetModel:
        key = f"{target} {dtype}"
        if key not in self._loaded:
            # two at most: of one target
            if not any(name.startswith(f"{target} ") for name in self._loaded):
                self._loaded.clear()
            self._loaded[key] = target_of(target, self.device, dtype)
        return self._loaded[key]

    @torch.inference_mode()
    def last(self, model: TargetModel, token_ids: Sequence[int]) -> Tensor:
        """[n, V] float32 logits behind the last n <= WINDOW tokens of a text."""
        cache: TargetCache = model.new_cache(1, len(token_ids))
        positions = torch.arange(len(token_ids), device=model.device)[None]
        view = cache.view(slice(0, 1), positions, len(token_ids))
        hidden = model.forward(torch.tensor([list(token_ids)], device=model.device), positions, view).hidden
        return model.logits(hidden[0, -WINDOW:]).float().cpu()


class _Texts:
    """The texts up to the partings of one cell's answers, made as its run made them."""

    def __init__(self, cell: CellConfig, result: CellResult, logits: _Logits) -> None:
        self.cell = cell
        self._requests = {item.key: item for item in result.record.requests}
        prompts = load_prompts(cell.workload, cell.seed)
        self._played: dict[tuple[str, int], Conversation] = {
            (item.prompt.prompt_id, item.sample): item for item in conversations(prompts, cell.workload, cell.seed)
        }
        model = logits.model(cell.target, torch.float32)
        self._tokenizer: Any = model.tokenizer
        self._made = CellRequests(cell, model)

    def up_to(self, parting: Parting) -> list[int]:
        """Prompt and answer before the first token that differs.

        Raises:
            ValueError: the prompt is no longer that of the record.
        """
        prompt_id, turn, sample = parting.key
        request = self._requests[parting.key]
        earlier = [self._requests[prompt_id, number, sample] for number in range(turn)]
        answers = [decode_answer(self._tokenizer, each.output_token_ids, each.stop) for each in earlier]
        item = self._played.get((prompt_id, sample))
        made = None if item is None else self._made.next(item, answers)
        if made is None or len(made.token_ids) != request.num_prompt_tokens:
            raise ValueError(
                f"prompt {prompt_id}: expected the one that the run played, of {request.num_prompt_tokens} tokens, "
                f"found {'none' if made is None else f'one of {len(made.token_ids)}'}; give the files as they were"
            )
        return [*made.token_ids, *request.output_token_ids[: parting.place - 1]]


def _attributed(
    first: CellResult, second: CellResult, parting: Parting, texts: _Texts, logits: _Logits
) -> AttributedParting:
    target, dtype = texts.cell.target, getattr(torch, second["dtype"])
    text = texts.up_to(parting)
    exact = logits.last(logits.model(target, torch.float32), text)
    coarse = torch.bfloat16 if dtype is torch.float32 else dtype
    rounding = _moved(exact, logits.last(logits.model(target, coarse), text))
    if dtype is torch.float32:
        rounding *= TO_FLOAT32
    row = exact[-1]
    best = row.topk(2)
    emitted = [token for token in parting.tokens if token is not None and token < len(row)]
    behind = float(best.values[0] - min(row[token] for token in emitted)) if emitted else 0.0
    prompt_id, turn, sample = parting.key
    one, two = map(int, best.indices)
    return AttributedParting(
        first_cell=first.record.cell_id,
        second_cell=second.record.cell_id,
        prompt_id=prompt_id,
        turn=turn,
        sample=sample,
        place=parting.place,
        tokens=parting.tokens,
        best_tokens=(one, two),
        gap=float(best.values[0] - best.values[1]),
        behind=behind,
        rounding=rounding,
        is_near_tie=len(emitted) == len(parting.tokens) and behind <= 2 * rounding,
    )


def _moved(exact: Tensor, rounded: Tensor) -> float:
    """The most that rounding moves the gap of the two best logits in some rows."""
    best = exact.topk(2).indices
    gaps = [logits.gather(1, best).diff(dim=1) for logits in (exact, rounded)]
    return float((gaps[1] - gaps[0]).abs().max())
