"""Token data of a run: the packed training stream, held-out windows by group, and prompts to sample from.

Documents are joined with the end-of-text token after each, in a seeded random order. Everything is uint16 in one
compressed file, so that training starts without touching text.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tokenizers import Tokenizer
from torch import Tensor

from experiments.zoo.corpus import Document, documents
from experiments.zoo.generated import CHAT_GROUP, JSON_GROUP, generated
from experiments.zoo.settings import Settings
from experiments.zoo.tokenizer import ASSISTANT, END_OF_TEXT_ID, USER

MAX_PROMPT_TOKENS = 192
PROMPT_SHARES = {"generated": 0.55, "corpus_chat": 0.27, "document": 0.18}


@dataclass(frozen=True)
class TrainingData:
    """What the stages after `data` read."""

    tokens: NDArray[np.uint16]
    """[num_tokens] the packed training documents."""
    starts: NDArray[np.uint32]
    """[num_documents] where each of them begins."""
    heldout: dict[str, NDArray[np.uint16]]
    """Group -> packed held-out documents."""
    prompts: NDArray[np.uint16]
    """[num_prompts, MAX_PROMPT_TOKENS], padded with end-of-text."""
    prompt_lengths: NDArray[np.uint16]
    bytes_per_token: float
    """Deferred-out corpus text, UTF-8 bytes for each token."""


def training_documents(settings: Settings) -> list[Document]:
    """Corpus and generated documents in their training order."""
    sizes = settings.sizes
    rows = list(islice(documents(settings.corpus, "train", settings.seed), sizes.max_documents))
    rows += generated(sizes.num_generated, f"{settings.seed}/train")
    random.Random(settings.seed).shuffle(rows)
    return rows


def build_data(settings: Settings, tokenizer: Tokenizer) -> TrainingData:
    """Tokenize everything and write it to `settings.data_path`."""
    began, sizes = time.perf_counter(), settings.sizes
    train = training_documents(settings)
    tokens, starts = pack(encode(tokenizer, (document.text for document in train)))
    heldout_rows = list(islice(documents(settings.corpus, "heldout", settings.seed), sizes.max_documents))
    num_bytes = sum(len(row.text.encode()) for row in heldout_rows)
    heldout_rows += generated(sizes.num_generated_heldout, f"{settings.seed}/heldout")
    heldout = {
        group: pack(encode(tokenizer, (row.text for row in heldout_rows if row.group == group)))[0]
        for group in sorted({row.group for row in heldout_rows})
    }
    num_heldout = sum(len(part) for group, part in heldout.items() if group not in (CHAT_GROUP, JSON_GROUP))
    prompts, lengths = build_prompts(settings, tokenizer, train)
    data = TrainingData(tokens, starts, heldout, prompts, lengths, num_bytes / num_heldout)
    save(data, settings.data_path)
    shares = token_shares(train, starts, len(tokens))
    print(f"data: {len(tokens):,} training tokens in {len(starts):,} documents, {shares}", flush=True)
    print(f"data: {num_heldout:,} held-out tokens, {num_bytes / num_heldout:.2f} bytes a token", flush=True)
    print(f"data: {len(lengths):,} prompts, mean length {lengths.mean():.1f}", flush=True)
    print(f"data: {settings.data_path.stat().st_size / 2**20:.1f} MiB, {time.perf_counter() - began:.0f} s", flush=True)
    return data


def token_shares(train: list[Document], starts: NDArray[np.uint32], num_tokens: int) -> str:
    """Share of the training tokens by group, in words."""
    lengths = np.diff(np.append(starts, num_tokens))
    groups = np.array([document.group for document in train])
    shares = {group: lengths[groups == group].sum() / num_tokens for group in np.unique(groups)}
    return ", ".join(f"{group} {share:.1%}" for group, share in sorted(shares.items(), key=lambda item: -item[1]))


def encode(tokenizer: Tokenizer, texts: Iterable[str]) -> list[list[int]]:
    """Token ids of each text, without any token added."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def pack(rows: list[list[int]]) -> tuple[NDArray[np.uint16], NDArray[np.uint32]]:
    """One stream with an end-of-text token after each row, and where the rows begin."""
    lengths = np.array([len(row) + 1 for row in rows], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.uint32)
    stream = np.concatenate([np.array([*row, END_OF_TEXT_ID], dtype=np.uint16) for row in rows])
    return stream, starts


def build_prompts(
    settings: Settings, tokenizer: Tokenizer, train: list[Document]
) -> tuple[NDArray[np.uint16], NDArray[np.uint16]]:
    """What the target is asked to go on from: user turns, and the beginnings of plain documents."""
    rng, num_prompts = random.Random(f"{settings.seed}/prompts"), settings.sizes.num_prompts
    generated_groups = (CHAT_GROUP, JSON_GROUP)
    corpus_chat = [row.text for row in train if row.group not in generated_groups and row.text.startswith(USER)]
    plain = [row.text for row in train if not row.text.startswith(USER)]
    counts = {kind: max(1, round(num_prompts * share)) for kind, share in PROMPT_SHARES.items()}
    fresh = (row.text for row in generated(counts["generated"], f"{settings.seed}/prompts"))
    texts = [open_chat(text, rng) for text in fresh]
    texts += [open_chat(rng.choice(corpus_chat), rng) for _ in range(counts["corpus_chat"])]
    rows = [row for row in encode(tokenizer, texts) if len(row) <= MAX_PROMPT_TOKENS]
    beginnings = [rng.choice(plain)[:400] for _ in range(counts["document"])]
    rows += [row[: rng.randint(4, 40)] for row in encode(tokenizer, beginnings)]
    rng.shuffle(rows)
    prompts = np.full((len(rows), MAX_PROMPT_TOKENS), END_OF_TEXT_ID, dtype=np.uint16)
    for index, row in enumerate(rows):
        prompts[index, : len(row)] = row
    return prompts, np.array([len(row) for row in rows], dtype=np.uint16)


def open_chat(text: str, rng: random.Random) -> str:
    """A conversation cut right after the header of one of its assistant turns, mostly the first."""
    header = f"{ASSISTANT}\n"
    turns = text.split(header)
    keep = 1 if rng.random() < 0.7 else rng.randint(1, len(turns) - 1)
    return header.join(turns[:keep]) + header


def save(data: TrainingData, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {
        "tokens": data.tokens,
        "starts": data.starts,
        "prompts": data.prompts,
        "prompt_lengths": data.prompt_lengths,
        "bytes_per_token": np.array(data.bytes_per_token),
    }
    arrays |= {f"heldout_{group}": part for group, part in data.heldout.items()}
    np.savez_compressed(path, **arrays)


def load_data(path: Path) -> TrainingData:
    """Read what `build_data` wrote."""
    if not path.is_file():
        raise ValueError(f"expected the token data at {path}, found none: run the stage 'data' first")
    with np.load(path) as file:
        heldout = {name.removeprefix("heldout_"): file[name] for name in file.files if name.startswith("heldout_")}
        return TrainingData(
            file["tokens"],
            file["starts"],
            heldout,
            file["prompts"],
            file["prompt_lengths"],
            float(file["bytes_per_token"]),
        )


class TokenStream:
    """A packed stream on the device, from which rows are cut at random: half at document starts, half anywhere."""

    def __init__(self, tokens: NDArray[np.uint16], starts: NDArray[np.uint32], device: str, seed: int) -> None:
        self._tokens = torch.from_numpy(tokens.astype(np.int32)).to(device)
        self._starts = torch.from_numpy(starts.astype(np.int64)).to(device)
        self._generator = torch.Generator(device).manual_seed(seed)

    def rows(self, num_rows: int, length: int) -> Tensor:
        """[num_rows, length] int64."""
        last = self._tokens.numel() - length
        if last < 0:
            raise ValueError(f"expected a stream of at least {length} tokens, found {self._tokens.numel()}")
        device, generator = self._tokens.device, self._generator
        anywhere = torch.randint(last + 1, (num_rows,), device=device, generator=generator)
        document = torch.randint(self._starts.numel(), (num_rows,), device=device, generator=generator)
        at_start = torch.arange(num_rows, device=device) % 2 == 0
        offsets = torch.where(at_start, self._starts[document].clamp(max=last), anywhere)
        return self._tokens[offsets[:, None] + torch.arange(length, device=device)].long()
