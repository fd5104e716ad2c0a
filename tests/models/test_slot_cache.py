"""The slot cache and attention over it: ragged rows, padding, rollback and chunks equal one-row forwards."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from harness.models.attention import fold_mask, slots_attention
from harness.models.slot_cache import SlotCache, causal_mask
from harness.models.tree_places import TreePlaces, ancestors
from tests.support.tiny_models import TOLERANCE, VOCAB_SIZE, positions_from, random_target, random_tokens

pytestmark = pytest.mark.fast


@pytest.fixture(scope="module", params=["llama", "qwen3"])
def target(request):
    return random_target(request.param)


def whole(target, tokens):
    """[T, H] of one sequence run alone and at once."""
    return target.forward(tokens[None], torch.arange(tokens.numel())[None], None).hidden[0]


def step(target, cache, rows, tokens, start):
    positions = positions_from(start, tokens.shape[1])
    view = cache.view(rows, positions, int(positions.max()) + 1)
    return target.forward(tokens, positions, view).hidden


def test_rows_of_different_lengths_with_padding_equal_one_row_forwards(target):
    lengths = [3, 9, 6]
    tokens = random_tokens(3, 9)
    cache = target.new_cache(num_slots=4, capacity=16)
    hidden = step(target, cache, slice(0, 3), tokens, [0, 0, 0])
    for row, length in enumerate(lengths):
        torch.testing.assert_close(hidden[row, :length], whole(target, tokens[row, :length]), **TOLERANCE)


def test_decoding_on_ragged_rows_overwrites_the_padding(target):
    lengths, tokens, following = [3, 9, 6], random_tokens(3, 9), random_tokens(3, 4, seed=1)
    cache = target.new_cache(num_slots=3, capacity=16)
    step(target, cache, slice(0, 3), tokens, [0, 0, 0])
    hidden = step(target, cache, slice(0, 3), following, lengths)
    for row, length in enumerate(lengths):
        expected = whole(target, torch.cat((tokens[row, :length], following[row])))[-4:]
        torch.testing.assert_close(hidden[row], expected, **TOLERANCE)


def test_rolling_back_is_only_lowering_a_length(target):
    tokens, rejected, kept = random_tokens(2, 5), random_tokens(2, 4, seed=1), random_tokens(2, 4, seed=2)
    cache = target.new_cache(num_slots=2, capacity=16)
    step(target, cache, slice(0, 2), tokens, [0, 0])
    step(target, cache, slice(0, 2), rejected, [5, 5])
    hidden = step(target, cache, slice(0, 2), kept, [5, 6])  # the second row keeps one of the rejected tokens
    torch.testing.assert_close(hidden[0], whole(target, torch.cat((tokens[0], kept[0])))[-4:], **TOLERANCE)
    sequence = torch.cat((tokens[1], rejected[1, :1], kept[1]))
    torch.testing.assert_close(hidden[1], whole(target, sequence)[-4:], **TOLERANCE)


def test_prefill_in_chunks_equals_prefill_at_once(target):
    tokens = random_tokens(1, 13)
    cache = target.new_cache(num_slots=1, capacity=16)
    parts = [step(target, cache, slice(0, 1), tokens[:, i : i + 5], [i]) for i in range(0, 13, 5)]
    torch.testing.assert_close(torch.cat(parts, dim=1)[0], whole(target, tokens[0]), **TOLERANCE)


def test_rows_given_as_a_tensor_equal_rows_given_as_a_slice(target):
    tokens, following = random_tokens(2, 6), random_tokens(2, 3, seed=1)
    by_slice, by_tensor = target.new_cache(2, 16), target.new_cache(5, 16)
    rows = torch.tensor([4, 1])
    step(target, by_slice, slice(0, 2), tokens, [0, 0])
    step(target, by_tensor, rows, tokens, [0, 0])
    expected = step(target, by_slice, slice(0, 2), following, [6, 4])
    torch.testing.assert_close(step(target, by_tensor, rows, following, [6, 4]), expected, **TOLERANCE)


def test_other_slots_are_not_touched(target):
    cache = target.new_cache(num_slots=3, capacity=8)
    step(target, cache, torch.tensor([1]), random_tokens(1, 4), [0])
    for tensor in (*cache.keys, *cache.values):
        assert not tensor[[0, 2]].any() and tensor[1, :, :4].all() and not tensor[1, :, 4:].any()


def test_a_refilled_slot_does_not_see_the_sequence_before(target):
    cache = target.new_cache(num_slots=1, capacity=16)
    step(target, cache, slice(0, 1), random_tokens(1, 14), [0])
    tokens = random_tokens(1, 5, seed=1)
    torch.testing.assert_close(step(target, cache, slice(0, 1), tokens, [0])[0], whole(target, tokens[0]), **TOLERANCE)


def test_clearing_takes_away_what_a_broken_request_left(target):
    cache, tokens = target.new_cache(num_slots=2, capacity=16), random_tokens(1, 5)
    for tensor in (*cache.keys, *cache.values):
        tensor[1] = float("nan")
    cache.clear(slice(1, 2))
    positions = positions_from([0], 5)
    hidden = target.forward(tokens, positions, cache.view(slice(1, 2), positions, 12)).hidden
    torch.testing.assert_close(hidden[0], whole(target, tokens[0]), **TOLERANCE)


def test_slices_are_read_in_place_and_bytes_are_counted():
    cache = SlotCache(2, 3, 8, 2, 4, torch.float32, "cpu")
    view = cache.view(slice(1, 3), positions_from([0, 5], 2), 7)
    keys, values = view.update(torch.ones(2, 2, 2, 4), torch.ones(2, 2, 2, 4), 1)
    assert keys.shape == values.shape == (2, 2, 7, 4)
    assert keys.data_ptr() == cache.keys[1][1:].data_ptr()
    assert cache.num_bytes == 2 * 2 * 3 * 2 * 8 * 4 * 4


def test_causal_mask_lets_each_query_see_up_to_its_position():
    mask = causal_mask(torch.tensor([[0, 1], [3, 4]]), 5, torch.float32)
    assert mask.shape == (2, 1, 2, 5)
    assert (mask[:, 0] == 0).sum(-1).tolist() == [[1, 2], [4, 5]]
    assert set(mask.unique().tolist()) == {0.0, float("-inf")}


def test_every_path_of_a_tree_equals_a_forward_of_that_sequence_alone(target):
    """Catches a node that sees a sibling or misses a grandparent, and one that lies at its position, over a sibling."""
    prefix, tree = random_tokens(2, 5), random_tokens(2, 7, seed=1)
    # two shapes in one batch: children at three depths; and a chain beside a second root
    parents = torch.tensor([[-1, 0, 0, 1, 1, 3, 2], [-1, 0, 1, -1, 3, 2, 5]])
    starts = [5, 3]  # the second row has rolled two tokens back
    depths = torch.zeros_like(parents)
    for token in range(1, 7):
        parent = parents[:, token]
        above = depths.gather(1, parent.clamp(min=0)[:, None])[:, 0]
        depths[:, token] = torch.where(parent < 0, 0, above + 1)
    cache = target.new_cache(num_slots=2, capacity=16)
    step(target, cache, slice(0, 2), prefix, [0, 0])
    positions = torch.tensor(starts)[:, None] + depths
    places = TreePlaces(torch.tensor(starts), torch.arange(7), ancestors(parents))
    hidden = target.forward(tree, positions, cache.view(slice(0, 2), positions, 12, places)).hidden
    for row, start in enumerate(starts):
        for token in range(7):
            path = [token]
            while parents[row, path[0]] >= 0:
                path.insert(0, int(parents[row, path[0]]))
            expected = whole(target, torch.cat((prefix[row, :start], tree[row, path])))[-1]
            torch.testing.assert_close(hidden[row, token], expected, **TOLERANCE)


def test_a_view_tells_fused_layers_where_the_nodes_of_a_level_lie():
    """The second level of a tree whose first node is at place 3. Would catch nodes that are looked for at the place of
    the level, and keys that are rotated by their place."""
    cache = SlotCache(1, 1, 8, 1, 4, torch.float32, "cpu", rope_table=torch.zeros(8, 4))
    sees = ancestors(torch.tensor([-1, 0, 0]))[1:]
    places = TreePlaces(torch.tensor([3]), torch.tensor([1, 2]), sees)
    view = cache.view(slice(0, 1), torch.tensor([[4, 4]]), 6, places)
    assert view.starts.tolist() == [4] and view.tree_rows.num_nodes == 3
    assert view.tree_rows.seen.tolist() == [[0b011, 0b101]] and view.tree_rows.positions.tolist() == [[4, 4]]
    assert cache.view(slice(0, 1), torch.tensor([[4, 5]]), 6).tree_rows is None


def test_too_long_a_view_is_refused(target):
    cache = target.new_cache(num_slots=1, capacity=8)
    with pytest.raises(ValueError, match="hold 8 positions, found a forward that needs 9"):
        cache.view(slice(0, 1), positions_from([8], 1), 9)


def test_rows_that_do_not_fit_the_positions_are_refused(target):
    cache = target.new_cache(num_slots=2, capacity=8)
    with pytest.raises(ValueError, match=r"positions of 2 rows \(of 2 slots\), found \[3, 1\]"):
        cache.view(slice(0, 3), positions_from([0, 0, 0], 1), 1)


def test_inference_mode_and_greedy_tokens_do_not_depend_on_the_batch(target):
    """The longest row's length sets the width of the keys: it must not change another row's choice."""
    tokens = random_tokens(3, 7)
    with torch.inference_mode():
        cache = target.new_cache(num_slots=3, capacity=40)
        hidden = step(target, cache, slice(0, 3), tokens, [0, 0, 0])
        together = [hidden[:, -1]]
        chosen = target.logits(hidden[:, -1]).argmax(-1)
        for position in range(7, 20):
            hidden = step(target, cache, slice(0, 3), chosen[:, None], [position] * 3)
            together.append(hidden[:, -1])
            chosen = target.logits(hidden[:, -1]).argmax(-1)
        sequence = tokens[1]
        for states in together:
            expected = target.logits(whole(target, sequence)[-1])
            torch.testing.assert_close(target.logits(states[1]), expected, **TOLERANCE)
            sequence = torch.cat((sequence, target.logits(states[1]).argmax(-1, keepdim=True)))
    assert int(sequence.max()) < VOCAB_SIZE


def tensors(num_queries, num_keys, num_heads=6, num_key_heads=2):
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(2, num_heads, num_queries, 8, generator=generator)
    key, value = (torch.randn(2, num_key_heads, num_keys, 8, generator=generator) for _ in range(2))
    return query, key, value


def repeated(query, key, value, mask):
    """[B, T, H, D] by repeating the key heads; mask True may be seen."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(group, 1), value.repeat_interleave(group, 1)
    scores = (query @ key.transpose(-1, -2) / 8**0.5).masked_fill(~mask, float("-inf"))
    return (scores.softmax(-1) @ value).transpose(1, 2)


@pytest.mark.parametrize("num_queries", [1, 4], ids=["one query", "four queries"])
@pytest.mark.parametrize("num_key_heads", [1, 2, 6], ids=["one key head", "grouped", "as many key heads"])
@pytest.mark.parametrize("kind", ["additive", "bool", "folded"])
def test_masked_attention_equals_repeated_keys(num_queries, num_key_heads, kind):
    query, key, value = tensors(num_queries, 9, num_key_heads=num_key_heads)
    seen = torch.rand(2, 1, num_queries, 9, generator=torch.Generator().manual_seed(1)) < 0.6
    seen[..., 0] = True
    mask = seen if kind == "bool" else torch.zeros(seen.shape).masked_fill(~seen, float("-inf"))
    if kind == "folded":
        mask = fold_mask(mask, 6 // num_key_heads, num_queries)
    found, weights = slots_attention(torch.nn.Module(), query, key, value, mask, scaling=8**-0.5)
    torch.testing.assert_close(found, repeated(query, key, value, seen))
    assert weights is None and found.shape == (2, num_queries, 6, 8)


@pytest.mark.parametrize("num_tokens", [1, 7])
def test_no_mask_is_causal(num_tokens):
    query, key, value = tensors(num_tokens, num_tokens)
    found, _ = slots_attention(torch.nn.Module(), query, key, value, None, scaling=8**-0.5)
    causal = torch.ones(num_tokens, num_tokens).tril().bool()
    torch.testing.assert_close(found, repeated(query, key, value, causal))


def test_no_mask_with_more_keys_than_queries_is_refused():
    query, key, value = tensors(2, 5)
    with pytest.raises(ValueError, match="2 queries and 5 keys"):
        slots_attention(torch.nn.Module(), query, key, value, None)


def test_a_mask_shared_by_all_rows_is_broadcast():
    query, key, value = tensors(3, 5)
    seen = torch.ones(3, 5).tril(2).bool()
    found, _ = slots_attention(torch.nn.Module(), query, key, value, seen[None, None], scaling=8**-0.5)
    torch.testing.assert_close(found, repeated(query, key, value, seen))


def test_gradients_flow_through_the_folded_form():
    query, key, value = (tensor.requires_grad_() for tensor in tensors(3, 3))
    causal = torch.ones(3, 3).tril().bool()[None, None]
    masked = torch.autograd.grad(
        slots_attention(torch.nn.Module(), query, key, value, causal, scaling=0.3)[0].square().sum(), query
    )
    free = torch.autograd.grad(
        slots_attention(torch.nn.Module(), query, key, value, None, scaling=0.3)[0].square().sum(), query
    )
    torch.testing.assert_close(masked, free)
    assert functional.normalize(masked[0], dim=-1).isfinite().all()
