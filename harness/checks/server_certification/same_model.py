"""Checks first that a server serves the target that is known here: token ids, tokenizer, greedy continuations."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from torch import Tensor

from harness.backends.server.reply import Reply, RequestFailed
from harness.checks.server_certification.known_model import KnownModel, Tokens
from harness.checks.server_certification.served import Served
from harness.config.sampling import SamplingSettings

NUM_TOKENS = 16
ROUNDINGS = 4.0
"""Times the largest difference that rounding makes to a row's logits here by which a served token may be below the
largest logit: two that are so close may change places."""


class OtherModel(ValueError):
    """The server does not serve the target; the message says what shows it."""


def check_same_model(served: Served, model: KnownModel, prompts: Sequence[Tokens]) -> None:
    """Ask for one greedy answer to each prompt.

    Raises:
        OtherModel: an answer is not what the target gives.
        ValueError: there was no answer.
    """
    try:
        replies = asyncio.run(_greedy(served, prompts))
    except RequestFailed as error:
        raise ValueError(f"expected an answer of the server at {served.url}, found: {error}") from error
    for prompt, reply in zip(prompts, replies, strict=True):
        _check_tokens(prompt, reply, model)
        _check_greedy(prompt, reply.first_ids(NUM_TOKENS), model)


async def _greedy(served: Served, prompts: Sequence[Tokens]) -> list[Reply]:
    async with served.client() as client:
        greedy = SamplingSettings(temperature=0.0)
        return [await client.ask(served.body(prompt, greedy, NUM_TOKENS, seed=0)) for prompt in prompts]


def _check_tokens(prompt: Tokens, reply: Reply, model: KnownModel) -> None:
    reply.find_held_ids(model.vocabulary)
    ids, asked = reply.first_ids(NUM_TOKENS), len(prompt)
    if not ids:
        raise OtherModel("expected token ids in the server's answers (return_token_ids), found text only")
    if reply.prompt_token_ids not in (None, prompt) or reply.num_prompt_tokens not in (None, asked):
        raise OtherModel(f"expected a server that reads the {asked} token ids of the prompt as they are, found others")
    if len(ids) != NUM_TOKENS:
        raise OtherModel(f"expected {NUM_TOKENS} tokens with ignore_eos, found {len(ids)}")
    if not model.gives_text(ids, reply.text):
        raise OtherModel(
            f"expected text of the target's tokenizer, found that the token ids {ids[:4]}... are {reply.text[:40]!r} "
            "there; give --target what is served"
        )


def _check_greedy(prompt: Tokens, ids: Tokens, model: KnownModel) -> None:
    exact, rounded = model.logits(prompt, [ids[:end] for end in range(len(ids))])
    for place, (token, row, rounded_row) in enumerate(zip(ids, exact, rounded, strict=True)):
        if token >= len(row) or _is_below(row, rounded_row, token):
            best = int(row.argmax())
            raise OtherModel(
                f"expected the target's greedy continuation at temperature 0, found token {token} in the place "
                f"of {best} ({place} tokens after a prompt): other weights (give --target what is served), or a "
                "server that is wrong at temperature 0"
            )


def _is_below(row: Tensor, rounded: Tensor, token: int) -> bool:
    """Whether a token is below the best by more than rounding explains."""
    return float(row.max() - row[token]) > ROUNDINGS * float((rounded - row).abs().max())
