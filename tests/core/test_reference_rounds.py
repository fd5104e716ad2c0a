"""The law of the first three output tokens over several rounds, with the real draft sampler and the real streams.

A toy Markov pair (four tokens; target and drafter look at the last token only) generates many requests at once. The
64 joint frequencies are compared with the target's exact law by a chi-square test at 63 degrees of freedom. Seeds are
fixed; a correct sampler with fresh seeds would fail a case with probability FALSE_ALARM. A total variation of d gives
a noncentrality of at least 4 d^2 per request, so with 1.5e5 requests d = .01 is seen with probability .68 and
d = .015 practically always. The controls, each a known way to be wrong, have to fail.
"""

import pytest
import torch
from scipy import stats

import kernels.reference.odds as odds_module
from kernels.contract import Draft, DraftSampling, Sampling, Streams, Verification, VerificationMethod
from kernels.methods import Rule
from kernels.methods.block import Block
from kernels.random.streams import Purpose
from kernels.reference.coupled import coupled_draw
from kernels.reference.draw import draw
from kernels.reference.odds import up_to_first_failure
from kernels.reference.truncation import process
from kernels.reference.verify import verify

NUM_REQUESTS = 150_000
VOCAB_SIZE = 4
NUM_DRAFT_TOKENS = 3
NUM_TOKENS = 3
FIRST_POSITION = 17
FALSE_ALARM = 1e-4
Method = VerificationMethod

# Row: last token; column: next token.
TARGET_LOGITS = torch.tensor(
    [[0.1, 0.6, 0.2, 0.1], [0.45, 0.05, 0.3, 0.2], [0.25, 0.25, 0.1, 0.4], [0.05, 0.15, 0.7, 0.1]]
).log()
DRAFT_PROBS = [[0.3, 0.2, 0.1, 0.4], [0.1, 0.45, 0.25, 0.2], [0.5, 0.1, 0.3, 0.1], [0.3, 0.15, 0.15, 0.4]]
# The offset changes nothing in float32; in a bfloat16 cache logits of this size are an eighth apart.
DRAFT_LOGITS = torch.tensor(DRAFT_PROBS).log() + 30.0


def sampling_of(num_rows: int, temperature: float = 1.0, top_k: int = 0, top_p: float = 1.0) -> Sampling:
    return Sampling(
        temperature=torch.full((num_rows,), temperature),
        top_k=torch.full((num_rows,), top_k),
        top_p=torch.full((num_rows,), top_p),
        min_p=torch.zeros(num_rows),
    )


def draft_tokens(last: torch.Tensor, streams: Streams, choice: DraftSampling, setting: dict[str, float]) -> Draft:
    """[R] last tokens -> the proposals of a round, drawn as an engine draws them."""
    sampling = sampling_of(len(last), **setting)
    token_ids, logits = [], []
    for index in range(NUM_DRAFT_TOKENS):
        here = Streams(streams.seeds, streams.positions + index, streams.rounds)
        logits.append(DRAFT_LOGITS[last])
        if choice is DraftSampling.greedy:
            last = logits[-1].argmax(dim=1)
        elif choice is DraftSampling.sampled:
            last = draw(logits[-1], sampling, here, Purpose.draft).token_ids
        else:
            last = coupled_draw(logits[-1], sampling, here, VOCAB_SIZE).token_ids
        token_ids.append(last)
    cache = None if choice is DraftSampling.greedy else torch.stack(logits, dim=1)
    return Draft(torch.stack(token_ids, dim=1), torch.full_like(last, NUM_DRAFT_TOKENS), cache)


def first_tokens(
    verification: Verification,
    choice: DraftSampling,
    verify_round: int | None = None,
    cache_dtype: torch.dtype | None = None,
    **setting: float,
) -> torch.Tensor:
    """[R, 3] first output tokens; `verify_round` puts every verification into the same round of the streams."""
    tokens = torch.full((NUM_REQUESTS, 3 * NUM_TOKENS), -1)
    lengths = torch.zeros(NUM_REQUESTS, dtype=torch.long)
    seeds = torch.arange(NUM_REQUESTS) * 0x9E3779B97F4A7C1 + 12345
    for round_index in range(NUM_TOKENS):
        rows = (lengths < NUM_TOKENS).nonzero()[:, 0]
        last = torch.where(lengths[rows] > 0, tokens[rows, lengths[rows] - 1], 0)
        rounds = torch.full_like(rows, round_index)
        streams = Streams(seeds[rows], lengths[rows] + FIRST_POSITION, rounds)
        draft = draft_tokens(last, streams, choice, setting)
        target_logits = TARGET_LOGITS[torch.cat([last[:, None], draft.token_ids], dim=1)].flatten(0, 1)
        if cache_dtype is not None:
            draft = Draft(draft.token_ids, draft.num_draft_tokens, draft.logits.to(cache_dtype))
        if verify_round is not None:
            streams = Streams(streams.seeds, streams.positions, torch.full_like(rows, verify_round))
        verdict = verify(target_logits, draft, sampling_of(len(rows), **setting), verification, streams)
        columns = lengths[rows, None] + torch.arange(NUM_DRAFT_TOKENS + 1)
        tokens[rows[:, None], columns] = verdict.token_ids
        lengths[rows] += verdict.num_accepted + 1
        assert not verdict.invalid.any()
    return tokens[:, :NUM_TOKENS]


def p_value(tokens: torch.Tensor, **setting: float) -> float:
    """Of the chi-square test against the exact law of the first three tokens."""
    step = process(TARGET_LOGITS, sampling_of(VOCAB_SIZE, **setting)).exp()
    law = (step[0][:, None, None] * step[:, :, None] * step[None]).flatten()
    cells = (tokens * torch.tensor([VOCAB_SIZE**2, VOCAB_SIZE, 1])).sum(dim=1)
    counts = torch.bincount(cells, minlength=VOCAB_SIZE**NUM_TOKENS)
    possible = law > 0
    assert int(counts[~possible].sum()) == 0
    return stats.chisquare(counts[possible], law[possible] * len(tokens)).pvalue


LOSSLESS = {
    "strict, sampled drafts": (Method.strict, DraftSampling.sampled, {}),
    "strict, coupled drafts": (Method.strict, DraftSampling.coupled, {}),
    "coupled, coupled drafts": (Method.coupled, DraftSampling.coupled, {}),
    "coupled, greedy drafts": (Method.coupled, DraftSampling.greedy, {}),
    "probabilistic, sampled drafts": (Method.probabilistic, DraftSampling.sampled, {}),
    "probabilistic, greedy drafts": (Method.probabilistic, DraftSampling.greedy, {}),
    "block, sampled drafts": (Method.block, DraftSampling.sampled, {}),
    "block, greedy drafts": (Method.block, DraftSampling.greedy, {}),
    "block, truncated": (Method.block, DraftSampling.sampled, {"temperature": 0.7, "top_k": 3, "top_p": 0.85}),
}


@pytest.mark.parametrize("case", LOSSLESS, ids=str)
def test_lossless_method_keeps_the_joint_law(case: str):
    method, choice, setting = LOSSLESS[case]
    assert p_value(first_tokens(Verification(method), choice, **setting), **setting) > FALSE_ALARM


def test_control_shared_noise_is_caught():
    assert p_value(first_tokens(Verification(Method.pr35461), DraftSampling.coupled)) < FALSE_ALARM


def test_control_coupled_drafts_in_block_are_caught():
    assert p_value(first_tokens(Verification(Method.block), DraftSampling.coupled)) < FALSE_ALARM


def test_control_unscaled_block_residual_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Block, "scale", Rule.scale)
    assert p_value(first_tokens(Verification(Method.block), DraftSampling.sampled)) < FALSE_ALARM


def test_control_block_stopping_at_the_first_failure_is_caught(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(odds_module, "up_to_last_success", up_to_first_failure)
    assert p_value(first_tokens(Verification(Method.block), DraftSampling.sampled)) < FALSE_ALARM


def test_control_acceptance_uniforms_of_block_used_again_in_the_next_round_are_caught():
    assert p_value(first_tokens(Verification(Method.block), DraftSampling.sampled, verify_round=0)) < FALSE_ALARM


def test_control_drafts_verified_from_a_coarser_cache_are_caught():
    tokens = first_tokens(Verification(Method.probabilistic), DraftSampling.sampled, cache_dtype=torch.bfloat16)
    assert p_value(tokens) < FALSE_ALARM
