"""A stand-in for vLLM's engine loop around the worker of tests.support.stand_in_vllm_worker: requests in, rounds,
tokens out.

Target and drafter are tables of logits by the last token. A step takes all running requests, and like vLLM with
asynchronous scheduling it runs a request once more after its end.
"""

from types import SimpleNamespace

import torch

import tests.support.stand_in_vllm_worker as stand_in
from harness.plugins.vllm import WorkerExtension
from kernels.contract import Streams
from kernels.random.streams import Purpose
from kernels.reference.draw import draw
from tests.support.stand_in_vllm import sampling_of

V, K, S = 11, 3, 8


class Engine:
    """A worker and the requests that it runs."""

    def __init__(self, is_sampled=True, seed=0):
        generator = torch.Generator().manual_seed(20261123 + seed)
        self.target = 1.5 * torch.randn(V, V, generator=generator)
        self.draft = 0.7 * self.target + 0.7 * torch.randn(V, V, generator=generator)
        self.is_sampled = is_sampled
        sampler = stand_in.Sampler(torch.ones(S), torch.full((S,), V), torch.arange(S) * 7919 + seed, V)
        cache = torch.zeros(S, K, V) if is_sampled else None
        self.runner = stand_in.GPUModelRunner(
            sampler, stand_in.RejectionSampler(sampler, K), stand_in.BaseSpeculator(cache)
        )
        self.worker = WorkerExtension()
        self.worker.device, self.worker.model_runner = torch.device("cpu"), self.runner
        self.tokens = {}
        """Request -> prompt and output."""
        self.params = {}
        self.drafted = {}
        self.rounds = []
        """(request, position, draft tokens, number of emitted tokens) of each round, as the engine sees it."""

    def start(self, req_id, prompt, **params):
        item = stand_in.new_request(req_id, prompt, **params)
        self.runner.add_requests(SimpleNamespace(scheduled_new_reqs=[item], finished_req_ids=set()))
        self.tokens[req_id], self.params[req_id], self.drafted[req_id] = list(prompt), item.sampling_params, []

    def _propose(self, req_id):
        """K draft tokens; the cache holds the logits over the temperature, as in 0.25.1."""
        slot = self.runner.req_states.req_id_to_index[req_id]
        temperature, last = float(self.params[req_id].temperature), self.tokens[req_id][-1]
        found = []
        for column in range(K):
            logits = self.draft[last] / (temperature or 1.0)
            position = torch.tensor([len(self.tokens[req_id]) + column])
            if self.is_sampled:
                self.runner.speculator.draft_logits[slot, column] = logits
                streams = Streams(torch.tensor([slot]), position, position)
                last = int(draw(logits[None], sampling_of(torch.ones(1)), streams, Purpose.draft).token_ids)
            else:
                last = int(logits.argmax())
            found.append(last)
        return found

    def step(self, req_ids=None, prefilling=()):
        """One step of some requests, all by default; in it `prefilling` still read their prompts."""
        req_ids = list(self.tokens) if req_ids is None else list(req_ids)
        states, fed, starts = self.runner.req_states.req_id_to_index, [], [0]
        for req_id in req_ids:
            fed += [self.tokens[req_id][-1], *self.drafted[req_id]]
            starts.append(len(fed))
        starts = torch.tensor(starts)
        rows = torch.arange(len(req_ids)).repeat_interleave(starts.diff())
        local = torch.arange(len(rows)) - starts[rows]
        slots = torch.tensor([states[req_id] for req_id in req_ids])
        lengths = torch.tensor([len(self.tokens[req_id]) for req_id in req_ids])
        fed = torch.tensor(fed)
        batch = SimpleNamespace(
            req_ids=req_ids,
            num_reqs=len(req_ids),
            input_ids=fed.int(),
            positions=(lengths - 1)[rows] + local,
            logits_indices=torch.arange(len(rows)),
            cu_num_logits=starts.int(),
            idx_mapping=slots.int(),
            idx_mapping_np=slots.numpy(),
            expanded_idx_mapping=slots[rows].int(),
            expanded_local_pos=local.int(),
            is_prefilling=torch.tensor([req_id in prefilling for req_id in req_ids]),
        )
        output, counts, _ = self.runner.sample(self.target[fed.clamp(min=0)].clone(), batch, None)
        for row, (req_id, count) in enumerate(zip(req_ids, counts.tolist(), strict=True)):
            if count:
                self.rounds.append((req_id, len(self.tokens[req_id]), list(self.drafted[req_id]), count))
                self.tokens[req_id] += output.sampled_token_ids[row, :count].tolist()
                self.drafted[req_id] = self._propose(req_id)
