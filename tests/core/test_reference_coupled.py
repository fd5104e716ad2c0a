"""The coupled method: how often draws with shared noise agree, and output that does not depend on the drafter."""

import pytest
import torch
from scipy import stats
from torch import Tensor

from kernels.contract import Draft, Streams, Verification
from kernels.reference.coupled import coupled_draw
from kernels.reference.masses import coupled_overlap
from kernels.reference.truncation import process, sampling_rows
from kernels.reference.verify import verify
from tests.support.random_round import FALSE_ALARM, GREEDY, PLAIN, Method, sampling_of

pytestmark = pytest.mark.fast


def coupled_overlap_by_definition(target: list[float], proposed: list[float]) -> float:
    common = [index for index in range(len(target)) if target[index] > 0 and proposed[index] > 0]
    return sum(
        1 / sum(max(target[j] / target[i], proposed[j] / proposed[i]) for j in range(len(target))) for i in common
    )


def test_probability_that_coupled_draws_agree():
    generator = torch.Generator().manual_seed(9)
    logits = 2 * torch.randn(2, 5, 7, generator=generator)
    sampling = sampling_of(PLAIN, (0.5, 4, 1.0, 0.0), PLAIN, PLAIN, GREEDY)
    logits[1, 3] = logits[0, 3]
    target, proposed = process(logits[0], sampling).exp(), process(logits[1], sampling).exp()
    found = coupled_overlap(target, proposed)
    expected = [coupled_overlap_by_definition(target[row].tolist(), proposed[row].tolist()) for row in range(5)]
    assert found.tolist() == pytest.approx(expected, abs=1e-12)
    assert float(found[3]) == pytest.approx(1, abs=1e-12)
    num_rows = 40_000
    rows = torch.zeros(num_rows, dtype=torch.long)
    streams = Streams(torch.arange(num_rows), rows, rows)
    draws = [
        coupled_draw(logits[side, :1].expand(num_rows, 7), sampling_rows(sampling, rows), streams, 7) for side in (0, 1)
    ]
    agreed = int((draws[0].token_ids == draws[1].token_ids).sum())
    assert stats.binomtest(agreed, num_rows, float(found[0])).pvalue > FALSE_ALARM


def generate_coupled(target: Tensor, proposed: Tensor | None, num_draft_tokens: int, num_tokens: int) -> Tensor:
    """[64, num_tokens] output of a toy Markov pair under coupled verification; `proposed` None is one-hot token 0."""
    num_requests, vocab_size = 64, target.shape[1]
    tokens = torch.full((num_requests, num_tokens + num_draft_tokens + 1), -1)
    lengths = torch.zeros(num_requests, dtype=torch.long)
    seeds = torch.arange(num_requests)
    sampling = sampling_of(*[(0.9, 6, 1.0, 0.0)] * num_requests)
    for round_index in range(num_tokens):
        lengths = lengths.clamp(max=num_tokens - 1)
        last = torch.where(lengths > 0, tokens.gather(1, (lengths - 1).clamp(min=0)[:, None])[:, 0], 0)
        contexts, cache = [last], []
        for index in range(num_draft_tokens):
            here = Streams(seeds, lengths + index, torch.full_like(seeds, round_index))
            if proposed is None:
                contexts.append(torch.zeros_like(last))
            else:
                cache.append(proposed[contexts[-1]])
                contexts.append(coupled_draw(cache[-1], sampling, here, vocab_size).token_ids)
        logits = target[torch.stack(contexts, dim=1)].flatten(0, 1)
        draft = Draft(
            torch.stack(contexts, dim=1)[:, 1:],
            torch.full_like(seeds, num_draft_tokens),
            torch.stack(cache, dim=1) if cache else None,
        )
        streams = Streams(seeds, lengths, torch.full_like(seeds, round_index))
        verdict = verify(logits, draft, sampling, Verification(Method.coupled), streams)
        columns = lengths[:, None] + torch.arange(num_draft_tokens + 1)
        emitted = verdict.token_ids >= 0
        tokens[torch.arange(num_requests)[:, None].expand_as(columns)[emitted], columns[emitted]] = verdict.token_ids[
            emitted
        ]
        lengths += verdict.num_accepted + 1
        if bool((lengths >= num_tokens).all()):
            break
    return tokens[:, :num_tokens]


def test_coupled_output_does_not_depend_on_the_drafter():
    generator = torch.Generator().manual_seed(12)
    target, near, far = torch.randn(3, 9, 9, generator=generator)
    near = target + 0.3 * near
    expected = generate_coupled(target, None, 0, 12)
    assert len(expected.unique(dim=0)) == 64
    for proposed, num_draft_tokens in [(near, 3), (near, 1), (far, 4), (None, 2)]:
        assert torch.equal(generate_coupled(target, proposed, num_draft_tokens, 12), expected)
