"""From a data set to conversations: which prompts are run, in which order, how often, and with which seeds.

Everything here is a function of the settings and one seed, through SHA-256: the same in every cell of a sweep, on
every machine and in every process. This module knows neither tokenizers nor models.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import NamedTuple

from harness.config.schema import SettingsError
from harness.config.workload import History, Layout, WorkloadConfig
from harness.workload.hub_dataset import check_filled_in, read_hub_prompts
from harness.workload.prompt import Prompt
from harness.workload.prompt_files import prompt_file, read_files, read_prompts

BUILTIN_PROMPTS = prompt_file("builtin:builtin.jsonl")


@dataclass(frozen=True, slots=True)
class Conversation:
    """One play of a prompt."""

    prompt: Prompt
    sample: int
    """Copy of the prompt, 0 unless oversampled."""
    seed: int
    """63 bits from (seed of the run or of the prompt's own sampling, prompt_id, sample)."""

    def turn_seed(self, turn: int) -> int:
        """The 63-bit seed of the request that answers turn `turn`, counted from 0."""
        return _hash63("turn", self.seed, turn)

    def gap_s(self, request_rate: float) -> float:
        """Seconds between the arrival before and this one, in a Poisson process of so many arrivals a second."""
        return -math.log((_hash63("arrival", self.seed) + 0.5) / 2**63) / request_rate


class Selection(NamedTuple):
    """The prompts of a workload, and what its settings left out of the data set."""

    prompts: list[Prompt]
    num_of_other_categories: int
    num_not_taken: int
    """By `held_out` and `num_prompts`."""
    num_turns_cut: int
    """Of the prompts that are left, by `num_turns`."""


def load_prompts(config: WorkloadConfig, seed: int) -> list[Prompt]:
    """The prompts of `selected`, which has the errors too."""
    return selected(config, seed).prompts


def selected(config: WorkloadConfig, seed: int) -> Selection:
    """Read the prompts of a workload and take the configured subset in the configured order.

    `categories` filters; `held_out` leaves out what `num_prompts` of that number would take; `num_prompts` takes evenly
    over the categories, and a smaller number takes a subset of what a larger one takes; `shuffle` orders by a hash of
    seed and prompt_id; `num_turns` cuts every prompt.

    Raises:
        SettingsError: the data set cannot be read, holds an id twice, has no such category, or too few prompts.
    """
    there = _read(config)
    chosen = _filter(there, config.categories)
    if config.shuffle:
        chosen.sort(key=lambda prompt: _hash63("order", seed, prompt.prompt_id))
    left = chosen if config.held_out is None else _without(chosen, config.held_out)
    taken = left if config.num_prompts is None else _subset(left, config.num_prompts)
    cut = [prompt.cut(config.num_turns) for prompt in taken]
    num_turns_cut = sum(len(prompt.turns) for prompt in taken) - sum(len(prompt.turns) for prompt in cut)
    return Selection(cut, len(there) - len(chosen), len(chosen) - len(taken), num_turns_cut)


def conversations(prompts: list[Prompt], config: WorkloadConfig, seed: int) -> list[Conversation]:
    """Play every prompt once, or go through them in order again and again up to `num_requests` conversations.

    Raises:
        SettingsError: there is no prompt to play.
    """
    if not prompts:
        raise SettingsError("workload: expected at least one prompt, found none")
    num_conversations = config.num_requests if config.num_requests is not None else len(prompts)
    played = []
    for index in range(num_conversations):
        sample, position = divmod(index, len(prompts))
        prompt = prompts[position]
        given = None if prompt.sampling is None else prompt.sampling.seed
        own_seed = seed if given is None else given
        played.append(Conversation(prompt, sample, _hash63("conversation", own_seed, prompt.prompt_id, sample)))
    return played


def exact_length(token_ids: Sequence[int], num_tokens: int) -> list[int]:
    """A prompt of one exact length: its first tokens, repeated from the start as often as it takes.

    Args:
        token_ids: a prompt of at least one token.
        num_tokens: how many are wanted, 1 or more.
    """
    return list(islice(cycle(token_ids), num_tokens))


def fingerprint(prompts: Iterable[Prompt]) -> str:
    """The first 16 hex digits of the SHA-256 over ids, categories, texts, and where given schemas, sampling, messages
    in front and between, tools, and stop strings, in order: the workload's share in the identity of a cell."""
    content = [
        [
            prompt.prompt_id,
            prompt.category,
            list(prompt.turns),
            *([] if prompt.schema is None else [prompt.schema]),
            *([] if prompt.sampling is None else [sorted(prompt.sampling.values.items())]),
            *([text] if (text := prompt.opening) is not None else []),
            *(prompt.histories or ()),
            *([] if prompt.tools is None else [{"tools": prompt.tools}]),
            *([] if prompt.stop is None else [{"stop": list(prompt.stop)}]),
        ]
        for prompt in prompts
    ]
    return hashlib.sha256(_canonical(content)).hexdigest()[:16]


def _read(config: WorkloadConfig) -> list[Prompt]:
    prompts = _read_all(config)
    check_filled_in(prompts, "workload.path" if config.dataset is None else f"workload.dataset: {config.dataset}")
    if config.history is not History.generated and not any(prompt.histories for prompt in prompts):
        raise SettingsError(
            f"workload.history={config.history.value}: expected conversations with answers of their own (messages, "
            "conversations), found turns alone"
        )
    return prompts


def _read_all(config: WorkloadConfig) -> list[Prompt]:
    if config.dataset is not None:
        return read_hub_prompts(
            config.dataset, config.subset, config.split, config.column, config.files, config.history, config.layout
        )
    if config.path is None:
        return read_prompts(BUILTIN_PROMPTS, Layout.plain)
    return read_files(config.paths, config.layout, config.history)


def _filter(prompts: list[Prompt], categories: list[str]) -> list[Prompt]:
    valid = list(dict.fromkeys(prompt.category for prompt in prompts))
    unknown = [category for category in categories if category not in valid]
    if unknown:
        raise SettingsError(f"workload.categories: expected some of {', '.join(valid)}, found {', '.join(unknown)}")
    return [prompt for prompt in prompts if not categories or prompt.category in categories]


def _subset(prompts: list[Prompt], num_prompts: int) -> list[Prompt]:
    """Take prompts from the categories in turn, the first of each, then the second, and keep the order."""
    if num_prompts > len(prompts):
        raise SettingsError(
            f"workload.num_prompts: expected at most {len(prompts)}, the prompts there are, found {num_prompts}; "
            "use workload.num_requests to run prompts more than once"
        )
    taken: dict[str, int] = {}
    ranks = []
    for prompt in prompts:
        ranks.append(taken.get(prompt.category, 0))
        taken[prompt.category] = ranks[-1] + 1
    # A stable sort by rank: within a rank the categories stand in the order of the prompts.
    kept = sorted(range(len(prompts)), key=lambda index: ranks[index])[:num_prompts]
    return [prompts[index] for index in sorted(kept)]


def _without(prompts: list[Prompt], held_out: int) -> list[Prompt]:
    """The prompts that `_subset` of a number does not take."""
    if held_out >= len(prompts):
        raise SettingsError(
            f"workload.held_out: expected fewer than {len(prompts)}, the prompts there are, found {held_out}, which "
            "leaves none"
        )
    taken = {prompt.prompt_id for prompt in _subset(prompts, held_out)}
    return [prompt for prompt in prompts if prompt.prompt_id not in taken]


def _hash63(*parts: str | int) -> int:
    """63 bits that depend on every part and on nothing else."""
    return int.from_bytes(hashlib.sha256(_canonical(parts)).digest()[:8], "big") >> 1


def _canonical(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode()
