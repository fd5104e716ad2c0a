"""Text sampled from the zoo's target at temperature 1, as training text of its heads; rows begin with prompts."""

from __future__ import annotations

import time

import numpy as np
import torch
from numpy.typing import NDArray

from experiments.zoo.data import TrainingData
from experiments.zoo.metrics import record
from experiments.zoo.settings import Settings
from experiments.zoo.tokenizer import END_OF_TEXT_ID
from harness.models.target import TargetModel, load_target
from harness.training.sampler import Sampler, Segments

GIVEN = 1 << 15
"""Added to the tokens of a stored row that were given as a prompt; all token ids are smaller."""


def sample_text(settings: Settings, data: TrainingData) -> None:
    """Sample the heads' training text and write it to `settings.sampled_path`: [rows, length] uint16, `GIVEN` added."""
    sizes, began = settings.sizes, time.perf_counter()
    target = load_trained(settings)
    torch.manual_seed(settings.seed + 1)
    num_rows = sizes.sample_rows * sizes.num_sample_batches
    sampler = make_sampler(target, data, sizes.sample_rows, sizes.sample_length, num_rows)
    parts = []
    for batch in range(sizes.num_sample_batches):
        first = (batch * sizes.sample_rows + torch.arange(sizes.sample_rows)) % len(data.prompts)
        tokens, given, _ = sampler.sample(first)
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
    """A sampler over the prompts of a run; the next prompt of a row lies `stride` ahead."""
    prompts = [row[:size].tolist() for row, size in zip(data.prompts, data.prompt_lengths, strict=True)]
    following = [(index + stride) % len(prompts) for index in range(len(prompts))]
    segments = Segments.of(prompts, following=following)
    return Sampler(target, segments, (END_OF_TEXT_ID,), num_rows=num_rows, length=length)


def decode_rows(target: TargetModel, rows: NDArray[np.uint16]) -> list[str]:
    """Stored rows as text, special tokens shown."""
    return [target.tokenizer.decode((row.astype(np.int64) % GIVEN).tolist()) for row in rows]


def load_sampled(settings: Settings) -> NDArray[np.uint16]:
    """Read what `sample_text` wrote."""
    if not settings.sampled_path.is_file():
        raise ValueError(f"expected sampled text at {settings.sampled_path}, found none: run the stage 'sample' first")
    return np.load(settings.sampled_path)
