"""A server that samples from a known law by rounds of drafts, soundly or with a fault, in the format of vLLM.

The law is a Markov chain over four tokens: each row depends on the token before alone.
"""

import json
import random
from dataclasses import dataclass
from itertools import accumulate

import torch
from aiohttp import web

from tests.support.scripted_server import ScriptedServer

TARGET = (0.05, 0.3, 0.37, 0.28)
DRAFT = (0.45, 0.18, 0.19, 0.18)
"""Of the token after token 0; after token n, rolled by n."""
VOCAB_SIZE = len(TARGET)


def row_after(token, law=TARGET):
    """The probabilities of the token after `token`, at temperature 1."""
    return [law[(place - token) % VOCAB_SIZE] for place in range(VOCAB_SIZE)]


def text_of(token_ids):
    return "".join("abcd"[token] for token in token_ids)


@dataclass(frozen=True)
class ToyModel:
    """What the server serves, as `harness.checks.server_certification.known_model.KnownModel`."""

    shift: int = 0
    """Another target: every row is rolled by so many tokens more."""
    fingerprint: str = "toy"
    assumptions: tuple[str, ...] = ()

    def prompts(self, number):
        return [(place, place) for place in range(number)]

    def logits(self, prompt, nodes):
        rows = torch.tensor([row_after((*prompt, *node)[-1] + self.shift) for node in nodes], dtype=torch.float64).log()
        return rows, rows.float().double()

    def vocabulary(self):
        return {}

    def gives_text(self, token_ids, text):
        return text_of(token_ids) == text


def processed(row, temperature, top_p):
    """A row of probabilities after temperature and top-p."""
    if temperature == 0:
        return [float(value == max(row)) for value in row]
    scaled = [value ** (1 / temperature) for value in row]
    scaled = [value / sum(scaled) for value in scaled]
    order = sorted(range(len(row)), key=scaled.__getitem__, reverse=True)
    before = [0.0, *accumulate(scaled[token] for token in order)]
    kept = {token for token, mass in zip(order, before, strict=False) if mass < top_p}
    total = sum(scaled[token] for token in kept)
    return [scaled[token] / total if token in kept else 0.0 for token in range(len(row))]


def draw(row, uniform):
    """A token by inverse transform, the most probable first; of an unnormalized row."""
    order = sorted(range(len(row)), key=row.__getitem__, reverse=True)
    sums = list(accumulate(row[token] for token in order))
    return next(token for token, mass in zip(order, sums, strict=True) if uniform * sums[-1] < mass)


@dataclass
class SamplingServer(ScriptedServer):
    """Answers by drafts of `depth` tokens; a depth of 0 samples one token at a time.

    Faults: `temperature` and `seed` are ignored; `stream`, draft and residual share their uniform; `top_p` is .15
    narrower than asked for; `end`, answers end at token 3; `tokens`, answers have no token ids.
    """

    fault: str = ""

    async def complete(self, request):
        body = await request.json()
        self.bodies.append(body)
        rounds, accepted = self.rounds(body)
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        self.counts["drafts"] += len(accepted)
        self.counts["drafted"] += self.depth * len(accepted)
        self.counts["accepted"] += sum(accepted)
        for place in range(self.depth):
            self.counts["accepted", place] += sum(number > place for number in accepted)
        for index, ids in enumerate(rounds):
            reason = "length" if index == len(rounds) - 1 else None
            choice = {"index": 0, "text": text_of(ids), "finish_reason": reason}
            choice |= {} if self.fault == "tokens" else {"token_ids": ids}
            await response.write(f"data: {json.dumps({'choices': [choice]})}\n\n".encode())
        await response.write(b"data: [DONE]\n\n")
        return response

    def rounds(self, body):
        """Tokens of every round, and how many drafts each accepted."""
        rng = random.Random(0 if self.fault == "seed" else body["seed"])
        temperature = 1.0 if self.fault == "temperature" and body["temperature"] else body["temperature"]
        top_p = body["top_p"] - (0.15 if self.fault == "top_p" else 0.0)

        def row(token, law=TARGET):
            return processed(row_after(token, law), temperature, top_p if law is TARGET else 1.0)

        last, left = body["prompt"][-1], body["max_tokens"]
        rounds, accepted = [], []
        while left:
            if not rounds or not self.depth:
                ids, num_accepted = [draw(row(last), rng.random())], 0
            else:
                ids, num_accepted = self.round(row, last, rng)
                accepted.append(num_accepted)
            ids = ids[:left]
            if self.fault == "end" and 3 in ids and body["temperature"]:
                ids = ids[: ids.index(3) + 1]
                left = len(ids)
            rounds.append(ids)
            last, left = ids[-1], left - len(ids)
        return rounds, accepted

    def round(self, row, last, rng):
        """Draft and verify: accept with min(1, target / draft), else draw from the residual."""
        ids, num_accepted = [], 0
        for _ in range(self.depth):
            target, draft, uniform = row(last), row(last, DRAFT), rng.random()
            token = draw(draft, uniform)
            if rng.random() * draft[token] >= target[token]:
                residual = [max(0.0, mine - other) for mine, other in zip(target, draft, strict=True)]
                return [*ids, draw(residual, uniform if self.fault == "stream" else rng.random())], num_accepted
            ids, last, num_accepted = [*ids, token], token, num_accepted + 1
        return [*ids, draw(row(last), rng.random())], num_accepted
