"""Verification of trees through `verify`: chains as ever, ragged trees in one batch, what is refused and flagged."""

from dataclasses import replace

import pytest
import torch

from harness.config.tree import branching
from kernels.contract import NO_TOKEN, Draft, Sampling, SiblingDraws, Streams, TokenMask, Verification
from kernels.methods import TreeMethod
from kernels.random.streams import Purpose
from kernels.reference.draw import draw
from kernels.reference.draw_children import draw_children
from kernels.reference.tree_shape import branches, chain_parents, depths
from kernels.reference.truncation import sampling_rows
from kernels.reference.verify import verify
from tests.support.random_round import GREEDY, PLAIN, Round
from tests.support.tree_rounds import TreeModels, batch_of, path_of

ALL = pytest.mark.parametrize("method", TreeMethod, ids=lambda method: method.value)
SETTINGS = [PLAIN, (0.7, 5, 0.9, 0.0), GREEDY, (1.3, 0, 1.0, 0.05)]
INDEPENDENT, DISTINCT = SiblingDraws


@pytest.mark.parametrize("method", [TreeMethod.recursive, TreeMethod.traversal], ids=lambda method: method.value)
@pytest.mark.parametrize("is_one_hot", [False, True], ids=["cached", "one-hot"])
def test_with_one_child_a_node_every_token_is_that_of_the_method_for_chains(method, is_one_hot):
    """Ragged, with padded slots and every kind of truncation. Would catch another uniform, residual or flag."""
    batch = Round(SETTINGS * 60, [3, 1, 0, 2, 3] * 48, vocab_size=11, seed=3)
    requests = torch.arange(len(batch.lengths))
    batch.token_ids[::17, 1] = 99
    draft = batch.draft(requests)
    if is_one_hot:
        draft = Draft(draft.token_ids, draft.num_draft_tokens)
    inputs = (batch.sampling, Verification(method.traits.on_chains), batch.streams)
    wanted = verify(batch.rows(requests), draft, *inputs)
    assert 0 < wanted.num_accepted.float().mean() < 1.5 and bool(wanted.invalid.any())
    for parents in (None, chain_parents(*draft.token_ids.shape)):
        found = verify(
            batch.rows(requests), replace(draft, parents=parents), inputs[0], Verification(method), inputs[2]
        )
        for name in ("token_ids", "num_accepted", "invalid"):
            assert torch.equal(getattr(found, name), getattr(wanted, name)), name
        steps = torch.arange(draft.token_ids.shape[1])
        assert torch.equal(found.path, torch.where(steps < wanted.num_accepted[:, None], steps, -1))


def test_an_only_child_is_drawn_as_ever():
    batch = Round(SETTINGS * 5, [1] * 20, vocab_size=50)
    rows = batch.cache[:, 0]
    wanted = draw(rows, batch.sampling, batch.streams, Purpose.draft).token_ids
    for siblings in SiblingDraws:
        none = torch.zeros(20, 1, dtype=torch.long)
        assert torch.equal(draw_children(rows, batch.sampling, batch.streams, siblings, none)[:, 0], wanted)


def test_distinct_children_have_the_law_of_draws_without_replacement():
    """And certain ones are the largest logits; a row that runs out of tokens has no further child."""
    count, probs = 200_000, torch.tensor([0.5, 0.3, 0.2, 0.0])
    seeds = torch.arange(count)
    streams = Streams(seeds, torch.full_like(seeds, 5), torch.ones_like(seeds))
    rows, places = probs.log().expand(count, -1), torch.arange(4).expand(count, -1)
    plain = Sampling.same_for_all(count, 1.0, 0, 1.0, 0.0)
    found = draw_children(rows, plain, streams, DISTINCT, places)
    assert bool((found[:, 3] == NO_TOKEN).all()) and bool((found[:, :3].sort(dim=1).values == torch.arange(3)).all())
    shares = torch.bincount(found[:, 0] * 3 + found[:, 1], minlength=9).double() / count
    wanted = torch.tensor([[0, 0.3, 0.2], [0.5 * 0.3 / 0.7, 0, 0.2 * 0.3 / 0.7], [0.5 * 0.2 / 0.8, 0.3 * 0.2 / 0.8, 0]])
    assert bool(((shares - wanted.flatten().double()).abs() < 5 * (0.25 / count) ** 0.5).all())
    certain = draw_children(rows[:1], Sampling.same_for_all(1, 0.0, 0, 1.0, 0.0), streams, DISTINCT, places[:1])
    assert certain.tolist() == [[0, 1, 2, NO_TOKEN]]


def ragged_round(siblings, is_one_hot=False):
    """Trees of several shapes, drawn as certification does, and the streams of their requests."""
    models = TreeModels(4, 3, seed=4)
    shapes = [branching(2, 2), branching(3), (), branching(1, 1, 1), (-1, 0, -1, 0, 1), branching(2, 1)]
    rounds = []
    for index, shape in enumerate(shapes * 40):
        generator = torch.Generator().manual_seed(index)
        tokens: list[int] = []
        for place in range(len(shape)):
            row = models.draft[tuple(tokens[step] for step in path_of(shape, shape[place]))].clone()
            if siblings is DISTINCT:
                row[[tokens[other] for other in range(place) if shape[other] == shape[place]]] = 0
            tokens.append(int(torch.multinomial(row, 1, generator=generator)))
        rounds.append((shape, tuple(tokens)))
    seeds = torch.arange(len(rounds)) * 7919
    return *batch_of(models, rounds, siblings, is_one_hot), Streams(seeds, seeds % 5, seeds % 3)


@ALL
def test_a_ragged_batch_with_padded_slots_is_its_requests_alone(method):
    """Would catch a tree that is walked by another's parents, and noise that depends on the place in the batch."""
    rows, draft, sampling, streams = ragged_round(INDEPENDENT)
    together = verify(rows, draft, sampling, Verification(method), streams)
    assert together.num_accepted.max() == 3 and not bool(together.invalid.any())
    ends = (draft.num_draft_tokens + 1).cumsum(0).tolist()
    for request, end in list(enumerate(ends))[:60]:
        one = torch.tensor([request])
        count = int(draft.num_draft_tokens[request])
        alone = Draft(
            draft.token_ids[one, :count],
            draft.num_draft_tokens[one],
            draft.logits[one, :count],
            parents=draft.parents[one, :count],
        )
        mine = Streams(streams.seeds[one], streams.positions[one], streams.rounds[one])
        found = verify(rows[end - count - 1 : end], alone, sampling_rows(sampling, one), Verification(method), mine)
        assert torch.equal(found.token_ids[0], together.token_ids[request, : count + 1])
        assert torch.equal(found.path[0], together.path[request, :count])
    padded = replace(
        draft,
        token_ids=torch.cat([draft.token_ids, draft.token_ids[:1] * 0]),
        num_draft_tokens=torch.cat([draft.num_draft_tokens, torch.tensor([-1])]),
        parents=torch.cat([draft.parents, draft.parents[:1] * 0 - 1]),
        logits=torch.cat([draft.logits, draft.logits[:1] * torch.nan]),
    )
    more = Streams(*(torch.cat([each, each[:1]]) for each in (streams.seeds, streams.positions, streams.rounds)))
    every = Sampling.same_for_all(len(ends) + 1, 1.0, 0, 1.0, 0.0)
    found = verify(rows, padded, every, Verification(method), more)
    assert torch.equal(found.path[:-1], together.path) and bool((found.path[-1] == -1).all())
    assert torch.equal(found.token_ids[:-1], together.token_ids) and bool((found.token_ids[-1] == -1).all())


@ALL
def test_at_temperature_0_the_tokens_are_the_argmax(method):
    """Along the tree as far as it has them. Trees of certain children, given with their logits."""
    rows, draft, _, streams = ragged_round(INDEPENDENT)
    sampling = Sampling.same_for_all(len(streams.seeds), 0.0, 0, 1.0, 0.0)
    found = verify(rows, draft, sampling, Verification(method), streams)
    best, begin = rows.argmax(dim=1), 0
    for request, count in enumerate(draft.num_draft_tokens.tolist()):
        node, tokens = -1, []
        while True:
            tokens.append(int(best[begin + node + 1]))
            children = [place for place in range(count) if draft.parents[request, place] == node]
            node = next((place for place in children if draft.token_ids[request, place] == tokens[-1]), None)
            if node is None:
                break
        assert found.token_ids[request, : len(tokens)].tolist() == tokens
        assert int(found.num_accepted[request]) == len(tokens) - 1
        begin += count + 1


@ALL
def test_a_masked_target_emits_and_accepts_what_is_allowed(method):
    rows, draft, sampling, streams = ragged_round(INDEPENDENT)
    mask = TokenMask(torch.tensor([[0b0111]], dtype=torch.int32), torch.zeros(len(rows), dtype=torch.long))
    found = verify(rows, draft, sampling, Verification(method), streams, mask=mask)
    assert int(found.token_ids.max()) == 2 and not bool((found.token_ids == 3).any())


def test_a_token_that_its_row_cannot_have_drawn_is_left_out_and_flagged():
    """A distinct sibling that repeats another; a place without a token is no fault."""
    rows = torch.zeros(3, 3)
    draft = Draft(
        torch.tensor([[1, 1]]),
        torch.tensor([2]),
        torch.zeros(1, 2, 3),
        parents=torch.tensor([[-1, -1]]),
        siblings=DISTINCT,
    )
    # the target refuses token 1, so that both children are looked at
    rows[0, 1] = -torch.inf
    inputs = (
        Sampling.same_for_all(1, 1.0, 0, 1.0, 0.0),
        Verification(TreeMethod.recursive),
        Streams(*torch.ones(3, 1).long()),
    )
    assert verify(rows, draft, *inputs).invalid.tolist() == [True]
    absent = replace(draft, token_ids=torch.tensor([[1, NO_TOKEN]]))
    assert verify(rows, absent, *inputs).invalid.tolist() == [False]


def test_nodes_of_one_depth_have_noise_of_their_own_and_chains_what_they_had():
    parents = torch.tensor([branching(2, 2), (-1, 0, 1, 2, 3, 4)])
    levels = depths(parents)
    assert levels.tolist() == [[0, 1, 1, 2, 2, 2, 2], [0, 1, 2, 3, 4, 5, 6]]
    found = branches(levels)
    assert found[1].tolist() == [0] * 6
    keys = list(zip(levels[0, 1:].tolist(), found[0].tolist(), strict=True))
    assert len(set(keys)) == 6


def test_what_is_no_tree_is_refused():
    rows, draft, sampling, streams = ragged_round(INDEPENDENT)
    inputs = sampling, Verification(TreeMethod.traversal), streams
    with pytest.raises(ValueError, match="must be smaller than a token's own index"):
        verify(rows, replace(draft, parents=draft.parents + 7), *inputs)
    with pytest.raises(ValueError, match="one for each draft token"):
        verify(rows, replace(draft, parents=draft.parents[:, :1]), *inputs)
    by_kseq = sampling, Verification(TreeMethod.kseq), streams
    with pytest.raises(ValueError, match="independent draws of cached logits, found distinct"):
        verify(rows, replace(draft, siblings=DISTINCT), *by_kseq)
    with pytest.raises(ValueError, match="found drafts without logits"):
        verify(rows, replace(draft, logits=None), *by_kseq)
