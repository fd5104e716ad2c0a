"""Penalties, biases and the least number of tokens along a draft: kernel and reference against one loop over tokens."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from kernels.contract import LogitEdits, Texts, TokenTally
from kernels.edit_logits import edit_logits
from kernels.reference.edit_logits import edit_logits as reference_edit_logits
from tests.support.kernel_rounds import DEVICE, poisoned_allocations

pytestmark = pytest.mark.fast
VOCAB_SIZE, CAPACITY, NUM_SLOTS, NUM_FIXED, NUM_DRAFTS = 97, 80, 6, 3, 3
NUM_ROWS = NUM_SLOTS * (NUM_DRAFTS + 1)
TREE = [-1, -1, 0]
"""Of three draft tokens: two follow the context, the third one the first."""


def tensor(values: list, dtype: torch.dtype = torch.int64) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=DEVICE)


def settings() -> LogitEdits:
    """All of them at once; each penalty alone; a bias and an end alone; nothing."""
    return LogitEdits(
        repetition_penalty=tensor([1.3, 0.7, 1.0, 1.0, 1.0, 1.0], torch.float32),
        frequency_penalty=tensor([0.6, 0.0, -0.4, 0.0, 0.0, 0.0], torch.float32),
        presence_penalty=tensor([-0.5, 0.0, 0.0, 1.1, 0.0, 0.0], torch.float32),
        min_tokens=tensor([3, 0, 0, 0, 9, 0]),
        token_ids=tensor([[5, 7, 2], [-1] * 3, [-1] * 3, [-1] * 3, [2, 11, -1], [-1] * 3], torch.int32),
        biases=tensor([[1.5, -2.0, 0.25], [0.0] * 3, [0.0] * 3, [0.0] * 3, [0.0, 4.0, 0.0], [0.0] * 3], torch.float32),
        ends=tensor([[False, False, True], [False] * 3, [False] * 3, [False] * 3, [True, False, False], [False] * 3])
        .bool(),
    )  # fmt: skip


def plain_row(row: Tensor, edits: LogitEdits, slot: int, prompt: list[int], output: list[int]) -> Tensor:
    """A row as vLLM's V1 sampler would change it, token by token, in float32."""
    values = row.float().cpu().numpy().copy()
    repetition, frequency, presence = (
        np.float32(getattr(edits, f"{name}_penalty")[slot].item()) for name in ("repetition", "frequency", "presence")
    )
    columns = zip(*(getattr(edits, name)[slot].tolist() for name in ("token_ids", "biases", "ends")), strict=True)
    for token, bias, is_end in columns:
        if token >= 0:
            values[token] += np.float32(bias)
            if is_end and len(output) < int(edits.min_tokens[slot]):
                values[token] = -np.inf
    for token in {*prompt, *output}:
        values[token] = values[token] / repetition if values[token] > 0 else values[token] * repetition
    for token in set(output):
        values[token] -= frequency * np.float32(output.count(token))
        values[token] -= presence
    return torch.from_numpy(values).to(row.dtype)


class Talk:
    """Requests whose texts grow, round by round."""

    def __init__(self, seed: int, dtype: torch.dtype, parents: list[int] | None) -> None:
        self.random, self.dtype, self.parents = np.random.default_rng(seed), dtype, parents
        self.prompts = [self.some(length) for length in (1, 45, 40, 2, 33, 3)]
        self.outputs: list[list[int]] = [[] for _ in self.prompts]
        # the row beyond the slots is the spare one
        self.token_ids = torch.full((NUM_SLOTS + 1, CAPACITY), 10**12, device=DEVICE)

    def some(self, number: int) -> list[int]:
        """Tokens of which many occur twice."""
        return self.random.integers(0, 40, number).tolist()

    def texts(self) -> Texts:
        for slot, text in enumerate(self.written()):
            self.token_ids[slot, : len(text)] = tensor(text)
        return Texts(
            self.token_ids, tensor([len(text) for text in self.written()]), tensor([len(each) for each in self.prompts])
        )

    def written(self) -> list[list[int]]:
        return [prompt + output for prompt, output in zip(self.prompts, self.outputs, strict=True)]

    def rows(self, num_drafts: int) -> Tensor:
        values = self.random.normal(0, 3, (NUM_SLOTS * (num_drafts + 1), VOCAB_SIZE))
        return torch.tensor(values, dtype=self.dtype, device=DEVICE)

    def before(self, row: int) -> list[int]:
        """Places of the drafts that a row is conditioned on, the first one first."""
        if self.parents is None:
            return list(range(row))
        path, node = [], row - 1
        while node >= 0:
            path, node = [node, *path], self.parents[node]
        return path

    def wanted(self, rows: Tensor, drafts: list[list[int]], edits: LogitEdits, decides: list[int]) -> Tensor:
        width = len(drafts[0]) + 1
        found = rows.clone()
        for slot in [slot for slot in range(NUM_SLOTS) if decides[slot]]:
            for index in range(width):
                output = self.outputs[slot] + [drafts[slot][place] for place in self.before(index)]
                place = slot * width + index
                found[place] = plain_row(rows[place], edits, slot, self.prompts[slot], output).to(DEVICE)
        return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("parents", [None, TREE], ids=["chain", "tree"])
def test_rows_are_edited_as_at_their_position(parents: list[int] | None, dtype: torch.dtype):
    """Would catch penalties of the round's start at every position, counts of rejected drafts or of another slot's
    request, prompts counted as output, a token edited twice or rounded twice, and another order of the rule."""
    edits, talk = settings(), Talk(3, dtype, parents)
    with poisoned_allocations():
        tally = TokenTally.empty(NUM_SLOTS, NUM_FIXED + CAPACITY + NUM_DRAFTS, DEVICE)
    for round_ in range(6):
        num_drafts = 0 if round_ == 0 else NUM_DRAFTS
        drafts, decides = [talk.some(num_drafts) for _ in range(NUM_SLOTS)], [2] * NUM_SLOTS
        if round_:
            drafts[0] = [drafts[0][0]] * num_drafts
            decides = [1, 1, 1, 1, 1, round_ % 2]
        if round_ == 4:
            # another request begins in a slot
            talk.prompts[2], talk.outputs[2] = talk.some(12), []
            tally.num_read[2] = 0
        rows, draft_ids = talk.rows(num_drafts), tensor(drafts).view(NUM_SLOTS, num_drafts)
        arguments = {
            "draft_ids": draft_ids,
            "decides": tensor(decides),
            "texts": talk.texts(),
            "edits": edits,
            "parents": tensor([parents] * NUM_SLOTS) if parents and num_drafts else None,
        }
        wanted = talk.wanted(rows, drafts, edits, decides)
        mine, twin, anew = rows.clone(), rows.clone(), rows.clone()
        reference_edit_logits(twin, **arguments)
        torch.testing.assert_close(twin, wanted, rtol=0, atol=0, equal_nan=True)
        edit_logits(mine, tally=tally, **arguments)
        edit_logits(anew, **arguments)
        # Triton's interpreter cuts bfloat16 off where a GPU rounds
        for found in (mine, anew) if dtype is not torch.bfloat16 or DEVICE.type == "cuda" else ():
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        for slot in range(NUM_SLOTS):
            num_accepted = int(talk.random.integers(0, num_drafts + 1))
            path = [drafts[slot][place] for place in range(num_accepted)]
            talk.outputs[slot] += (path + talk.some(1)) if decides[slot] else []


def test_settings_that_are_off_leave_rows_bit_by_bit():
    """Would catch rows that are edited for requests without edits, and texts that are read where no penalty is set."""
    talk, off = Talk(5, torch.bfloat16, None), settings()
    ones, zeros = torch.ones(NUM_SLOTS, device=DEVICE), torch.zeros(NUM_SLOTS, device=DEVICE)
    off = replace(
        off, repetition_penalty=ones, frequency_penalty=zeros, presence_penalty=zeros, min_tokens=zeros.long(),
        token_ids=torch.full_like(off.token_ids, -1),
    )  # fmt: skip
    rows = talk.rows(NUM_DRAFTS)
    rows[::2] = torch.nan
    found = rows.clone()
    tally = TokenTally.empty(NUM_SLOTS, NUM_FIXED + CAPACITY + NUM_DRAFTS, DEVICE)
    drafts = tensor([talk.some(NUM_DRAFTS) for _ in range(NUM_SLOTS)])
    edit_logits(found, drafts, tensor([1] * NUM_SLOTS), talk.texts(), off, tally)
    assert torch.equal(found.view(torch.int16), rows.view(torch.int16))
    assert tally.num_kept.tolist() == [NUM_FIXED] * NUM_SLOTS


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        ({"decides": torch.ones(NUM_SLOTS, dtype=torch.int32)}, "decides"),
        ({"target_logits": torch.zeros(NUM_SLOTS, VOCAB_SIZE)}, "target_logits"),
        (
            {"target_logits": torch.zeros(NUM_ROWS, VOCAB_SIZE, dtype=torch.float64)},
            "target_logits",
        ),
        ({"edits": replace(settings(), biases=torch.zeros(NUM_SLOTS, NUM_FIXED, dtype=torch.float64))}, "edits.biases"),
        ({"tally": TokenTally.empty(NUM_SLOTS, CAPACITY)}, "tally"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_would_be_misread_is_refused(changed: dict, name: str):
    """Would catch a list that runs over its end, and numbers read in another type."""
    talk = Talk(0, torch.float32, None)
    arguments = {
        "target_logits": talk.rows(NUM_DRAFTS),
        "draft_ids": tensor([talk.some(NUM_DRAFTS) for _ in range(NUM_SLOTS)]),
        "decides": tensor([1] * NUM_SLOTS),
        "texts": talk.texts(),
        "edits": settings(),
    }
    with pytest.raises(ValueError, match=f"^{name}"):
        edit_logits(**{**arguments, **changed})
