"""A stand-in for the worker of vLLM 0.25.1: its parameters, its attributes, and where it looks things up.

Written from that source; what the functions compute comes from tests.support.stand_in_vllm, with its streams without
rounds.
"""

import sys
from importlib import metadata
from types import ModuleType, SimpleNamespace

import numpy as np
import torch

import tests.support.stand_in_vllm as stand_in
from harness.plugins.vllm import signatures
from kernels.contract import Streams
from kernels.random.streams import Purpose
from kernels.reference.draw import draw


def rejection_sample(
    target_logits,
    draft_logits,
    draft_sampled,
    cu_num_logits,
    pos,
    idx_mapping,
    expanded_idx_mapping,
    expanded_local_pos,
    temperature,
    seed,
    num_speculative_steps,
    synthetic_conditional_rates=None,
    use_fp64=False,
    use_block_verification=False,
):
    if draft_logits is not None:
        # that stand-in divides by the temperature, which this version has done in its cache
        draft_logits = draft_logits * torch.where(temperature == 0, 1.0, temperature)[:, None, None]
    return stand_in.rejection_sample(
        target_logits,
        draft_logits,
        draft_sampled.long(),
        cu_num_logits,
        pos,
        idx_mapping,
        expanded_idx_mapping,
        expanded_local_pos,
        temperature,
        seed,
        num_speculative_steps,
        use_block_verification=use_block_verification,
    )


def gumbel_sample(
    logits,
    expanded_idx_mapping,
    temperature,
    seed,
    pos,
    apply_temperature,
    output_processed_logits=None,
    output_processed_logits_col=None,
    use_fp64=False,
):
    rows = expanded_idx_mapping.long()
    own = temperature[rows]
    output_processed_logits[rows, output_processed_logits_col] = logits / torch.where(own == 0, 1.0, own)[:, None]
    return draw(
        logits, stand_in.sampling_of(own), Streams(seed[rows], pos, torch.zeros_like(pos)), Purpose.draft
    ).token_ids


class Backed:
    """A tensor that lies on the host and on the device."""

    def __init__(self, values):
        self.gpu, self.np = values, values.numpy()


class Sampler:
    logprobs_mode = "raw_logprobs"

    def __init__(self, temperature, top_k, seeds, vocab_size):
        num = len(temperature)
        self.sampling_states = SimpleNamespace(
            vocab_size=vocab_size,
            temperature=Backed(temperature),
            top_k=Backed(top_k),
            top_p=Backed(torch.ones(num)),
            min_p=Backed(torch.zeros(num)),
            seeds=Backed(seeds),
            num_logprobs=np.full(num, -1),
        )
        self.penalties_state = SimpleNamespace(use_penalty=np.zeros(num, dtype=bool))
        self.logit_bias_state = SimpleNamespace(use_logit_bias=np.zeros(num, dtype=bool))
        self.bad_words_state = SimpleNamespace(num_bad_words=Backed(torch.zeros(num, dtype=torch.int32)))
        self.num_prepared = 0

    def apply_sampling_params(
        self, logits, expanded_idx_mapping, idx_mapping_np, pos, input_ids, expanded_local_pos, skip_top_k_top_p=False
    ):
        self.num_prepared += 1
        states, rows = self.sampling_states, expanded_idx_mapping.long()
        logits = logits.float() / torch.where(states.temperature.gpu == 0, 1.0, states.temperature.gpu)[rows, None]
        ranks = logits.argsort(dim=1, descending=True).argsort(dim=1)
        return logits.masked_fill(ranks >= states.top_k.gpu[rows, None], -torch.inf)

    def __call__(self, logits, input_batch):
        states, slots = self.sampling_states, input_batch.idx_mapping.long()
        pos = input_batch.positions[input_batch.logits_indices]
        rows = input_batch.expanded_idx_mapping
        processed = self.apply_sampling_params(logits, rows, input_batch.idx_mapping_np, pos, None, None)
        temperature = (states.temperature.gpu[slots] > 0).float()
        streams = Streams(states.seeds.gpu[slots], pos + 1, torch.zeros_like(pos))
        drawn = draw(processed, stand_in.sampling_of(temperature), streams, Purpose.bonus)
        return drawn.token_ids[:, None], torch.ones(len(slots), dtype=torch.int32)


class RejectionSampler:
    def __init__(self, sampler, num_speculative_steps):
        self.sampler, self.num_speculative_steps = sampler, num_speculative_steps
        self.use_block_verification, self.synthetic_conditional_rates = False, None

    def __call__(self, logits, input_batch, draft_logits=None):
        fed = input_batch.input_ids[input_batch.logits_indices]
        pos = input_batch.positions[input_batch.logits_indices]
        rows = input_batch.expanded_idx_mapping, input_batch.expanded_local_pos
        processed = self.sampler.apply_sampling_params(logits, rows[0], input_batch.idx_mapping_np, pos, fed, rows[1])
        states = self.sampler.sampling_states
        # looked up in the module, as every function looks up its globals
        return vars(SAMPLER_MODULE)["rejection_sample"](
            processed, draft_logits, fed, input_batch.cu_num_logits, pos, input_batch.idx_mapping, *rows,
            states.temperature.gpu, states.seeds.gpu, self.num_speculative_steps, self.synthetic_conditional_rates,
            use_fp64=False, use_block_verification=self.use_block_verification,
        )  # fmt: skip


class BaseSpeculator:
    def __init__(self, draft_logits):
        self.draft_logits = draft_logits

    def propose(
        self,
        input_batch,
        attn_metadata,
        slot_mappings,
        last_hidden_states,
        aux_hidden_states,
        num_sampled,
        num_rejected,
        last_sampled,
        next_prefill_tokens,
        temperature,
        seeds,
        num_tokens_across_dp=None,
        dummy_run=False,
        skip_attn_for_dummy_run=False,
        mm_inputs=None,
        is_profile=False,
    ):
        """The seeds, which is all that a test asks for."""
        return seeds.clone()


class SamplingParams:
    """Sampling parameters of a request, with vLLM's names."""

    def __init__(self, temperature=1.0, top_k=-1, max_tokens=16, stop_token_ids=(), eos_token_id=None, **others):
        self.temperature, self.top_k, self.top_p, self.min_p = temperature, top_k, 1.0, 0.0
        self.max_tokens, self.stop_token_ids, self.eos_token_id = max_tokens, list(stop_token_ids), eos_token_id
        self.ignore_eos, self.structured_outputs, self.stop = False, None, []
        vars(self).update(others)


def new_request(req_id, prompt_token_ids, **params):
    """A new request as in the scheduler's output."""
    return SimpleNamespace(
        req_id=req_id,
        prompt_token_ids=list(prompt_token_ids),
        sampling_params=SamplingParams(**params),
        mm_features=[],
        prompt_embeds=None,
        lora_request=None,
    )


class GPUModelRunner:
    """The part of vLLM's class that a recording uses."""

    def __init__(self, sampler, rejection_sampler, speculator, method="eagle"):
        self.sampler, self.rejection_sampler, self.speculator = sampler, rejection_sampler, speculator
        self.req_states = SimpleNamespace(req_id_to_index={})
        self.model_config = SimpleNamespace(model="org/served-target", dtype=torch.float32)
        self.parallel_config = SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1)
        self.speculative_config = SimpleNamespace(
            method=method, model="org/served-head", num_speculative_tokens=rejection_sampler.num_speculative_steps
        )

    def add_requests(self, scheduler_output):
        for item in scheduler_output.scheduled_new_reqs:
            slots, states, params = self.req_states.req_id_to_index, self.sampler.sampling_states, item.sampling_params
            slot = min(set(range(len(states.seeds.np))) - set(slots.values()))
            slots[item.req_id] = slot
            states.temperature.np[slot] = params.temperature
            states.top_k.np[slot] = states.vocab_size if params.top_k < 1 else params.top_k

    def sample(self, hidden_states, input_batch, grammar_output):
        """The hidden states are the target rows."""
        if len(input_batch.input_ids) == input_batch.num_reqs:
            tokens, counts = self.sampler(hidden_states, input_batch)
        else:
            tokens, counts = self.rejection_sampler(hidden_states, input_batch, self.speculator.draft_logits)
        counts = counts.masked_fill(input_batch.is_prefilling, 0)
        return SimpleNamespace(sampled_token_ids=tokens), counts, None


SAMPLER_MODULE = ModuleType(signatures.SAMPLER)


def install(monkeypatch, version="0.25.1") -> None:
    """Put the stand-in where vLLM would be."""
    modules = {
        signatures.SAMPLER: (rejection_sample, RejectionSampler),
        f"{signatures.SAMPLER}_utils": (rejection_sample,),
        signatures.SPECULATOR: (BaseSpeculator,),
        signatures.GUMBEL: (gumbel_sample,),
        signatures.RUNNER: (GPUModelRunner,),
        signatures.FUNCTIONS["apply_sampling_params"][0]: (Sampler,),
    }
    names = {".".join(path.split(".")[:depth]) for path in modules for depth in range(1, path.count(".") + 1)}
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    for name, items in modules.items():
        module = SAMPLER_MODULE if name == signatures.SAMPLER else ModuleType(name)
        for item in items:
            monkeypatch.setattr(module, item.__name__, item, raising=False)
        monkeypatch.setitem(sys.modules, name, module)
    true_version = metadata.version
    monkeypatch.setattr(metadata, "version", lambda name: version if name == "vllm" else true_version(name))
