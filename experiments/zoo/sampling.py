"""Text sampled from the target at temperature 1, as training text of the heads.

All rows stand at the same position. A row begins with a prompt, goes on as the target likes, and gets a new prompt
whenever it ends a document; so every token that is not given is an exact draw from the target's distribution on what
stands before it in its row. On a GPU one decoding step is a CUDA graph for each length of the cache that is read.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from experiments.zoo.data import TrainingData
from experiments.zoo.metrics import record
from experiments.zoo.settings import Settings
from experiments.zoo.tokenizer import END_OF_TEXT_ID
from harness.models.slot_cache import SlotCache
from harness.models.target import TargetModel, load_target

GIVEN = 1 << 15
"""Added to the tokens of a stored row that were given as a prompt; all token ids are smaller."""
_BUCKET = 128


class _AlignedView:
    """A cache view for one token a row, all rows at the same position, which is a device tensor [1]."""

    rope_table = None

    def __init__(self, keys: list[Tensor], values: list[Tensor], position: Tensor, length: int) -> None:
        self._keys, self._values, self._position, self._length = keys, values, position, length
        future = torch.arange(length, device=position.device) > position
        self.mask = torch.zeros(1, 1, 1, length, dtype=keys[0].dtype, device=position.device)
        self.mask.masked_fill_(future, float("-inf"))

    def update(self, key: Tensor, value: Tensor, layer_idx: int, *_: object) -> tuple[Tensor, Tensor]:
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        keys.index_copy_(2, self._position, key)
        values.index_copy_(2, self._position, value)
        return keys[:, :, : self._length], values[:, :, : self._length]


class Sampler:
    """Draws rows of a fixed length from the target; all its state lies in device tensors that are reused."""

    def __init__(
        self, target: TargetModel, prompts: Tensor, prompt_lengths: Tensor, *, num_rows: int, length: int, stride: int
    ) -> None:
        """prompts: [N, L] int64. stride: how far ahead in the prompts a row looks for its next one."""
        device = target.device
        cache = target.new_cache(num_rows, -(-length // _BUCKET) * _BUCKET)
        assert isinstance(cache, SlotCache), "the zoo's target has layers of this project's own"
        self._target, self._keys, self._values = target, cache.keys, cache.values
        self._prompts, self._prompt_lengths, self._stride = prompts, prompt_lengths, stride
        self._num_rows, self._length = num_rows, length
        self._position = torch.zeros(1, dtype=torch.int64, device=device)
        self._prompt = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._cursor = torch.zeros(num_rows, dtype=torch.int64, device=device)
        self._tokens = torch.zeros(num_rows, length, dtype=torch.int64, device=device)
        self._given = torch.ones(num_rows, length, dtype=torch.bool, device=device)
        self._steps: dict[int, Callable[[], object]] = {}

    @torch.no_grad()
    def sample(self, first_prompt: int) -> tuple[Tensor, Tensor]:
        """Tokens [num_rows, length] int64 and whether each was given [num_rows, length]; row i starts with prompt
        first_prompt + i."""
        index = torch.arange(self._num_rows, device=self._prompt.device)
        self._prompt.copy_((first_prompt + index) % len(self._prompts))
        self._cursor.fill_(1)
        self._tokens[:, 0] = self._prompts[self._prompt, 0]
        self._given[:, 0] = True
        for position in range(self._length - 1):
            self._position.fill_(position)
            self._step_for(position // _BUCKET)()
        return self._tokens.clone(), self._given.clone()

    def _step_for(self, bucket: int) -> Callable[[], object]:
        if bucket not in self._steps:
            length = (bucket + 1) * _BUCKET
            on_gpu = self._target.device.type == "cuda"
            self._steps[bucket] = self._captured(length) if on_gpu else lambda: self._step(length)
        return self._steps[bucket]

    def _captured(self, length: int) -> Callable[[], object]:
        state = (self._prompt, self._cursor, self._tokens, self._given)
        before = [tensor.clone() for tensor in state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):  # warm-up outside the graph: libraries allocate their workspaces
                self._step(length)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step(length)
        for tensor, value in zip(state, before, strict=True):
            tensor.copy_(value)
        return graph.replay

    def _step(self, length: int) -> None:
        position = self._position
        view = _AlignedView(self._keys, self._values, position, length)
        current = self._tokens.index_select(1, position)
        hidden = self._target.forward(current, position[None], view).hidden[:, 0]
        logits = self._target.logits(hidden).float()
        drawn = (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)  # Gumbel-max
        given = self._cursor < self._prompt_lengths[self._prompt]
        token = torch.where(
            given, self._prompts[self._prompt, self._cursor.clamp(max=self._prompts.shape[1] - 1)], drawn
        )
        ended = ~given & (drawn == END_OF_TEXT_ID)
        self._prompt.copy_(torch.where(ended, (self._prompt + self._stride) % len(self._prompts), self._prompt))
        self._cursor.copy_(torch.where(ended, 0, self._cursor + given))
        self._tokens.index_copy_(1, position + 1, token[:, None])
        self._given.index_copy_(1, position + 1, given[:, None])


def sample_text(settings: Settings, data: TrainingData) -> None:
    """Sample the heads' training text and write it to `settings.sampled_path`: [rows, length] uint16, `GIVEN` added."""
    sizes, began = settings.sizes, time.perf_counter()
    target = load_trained(settings)
    torch.manual_seed(settings.seed + 1)
    num_rows = sizes.sample_rows * sizes.num_sample_batches
    sampler = make_sampler(target, data, sizes.sample_rows, sizes.sample_length, num_rows)
    parts = []
    for batch in range(sizes.num_sample_batches):
        tokens, given = sampler.sample(batch * sizes.sample_rows)
        parts.append((tokens + given * GIVEN).to(torch.int32).cpu().numpy().astype(np.uint16))
        done = (batch + 1) * sizes.sample_rows * sizes.sample_length
        rate = done / (time.perf_counter() - began)
        print(f"sample: {done:,} tokens, {rate / 1e3:,.0f}k tokens/s, {time.perf_counter() - began:.1f} s", flush=True)
    rows = np.concatenate(parts)
    np.save(settings.sampled_path, rows)
    texts = decode_rows(target, rows[:: max(1, len(rows) // 24)][:24])
    (settings.out / "samples.txt").write_text("\n\n========\n\n".join(texts), encoding="utf-8")
    for text in texts[:6]:
        print(f"-------- sampled\n{text[:700]}", flush=True)
    record(
        settings.out,
        "sample",
        {
            "num_tokens": int(rows.size),
            "given_share": round(float((rows >= GIVEN).mean()), 4),
            "seconds": round(time.perf_counter() - began, 1),
        },
    )


def load_trained(settings: Settings) -> TargetModel:
    """The trained target, frozen; in float32 on a CPU, where autocast is off."""
    dtype = None if settings.device.startswith("cuda") else torch.float32
    return load_target(settings.target_folder, device=settings.device, dtype=dtype)


def make_sampler(target: TargetModel, data: TrainingData, num_rows: int, length: int, stride: int) -> Sampler:
    """A sampler over the prompts of a run."""
    prompts = torch.from_numpy(data.prompts.astype(np.int64)).to(target.device)
    lengths = torch.from_numpy(data.prompt_lengths.astype(np.int64)).to(target.device)
    return Sampler(target, prompts, lengths, num_rows=num_rows, length=length, stride=stride)


def decode_rows(target: TargetModel, rows: NDArray[np.uint16]) -> list[str]:
    """Stored rows as text, special tokens shown."""
    return [target.tokenizer.decode((row.astype(np.int64) % GIVEN).tolist()) for row in rows]


def load_sampled(settings: Settings) -> NDArray[np.uint16]:
    """Read what `sample_text` wrote."""
    if not settings.sampled_path.is_file():
        raise ValueError(f"expected sampled text at {settings.sampled_path}, found none: run the stage 'sample' first")
    return np.load(settings.sampled_path)
