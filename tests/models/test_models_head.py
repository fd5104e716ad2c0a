"""What holds for every draft head: cached chains equal full sequences, nothing of the target is registered."""

from __future__ import annotations

import pytest
import torch

from harness.models.eagle import EagleConfig, EagleHead
from harness.models.eagle3 import Eagle3Config, Eagle3Head
from harness.models.mtp import MtpConfig, MtpHead
from tests.support.tiny_models import TOLERANCE, VOCAB_SIZE, positions_from, random_target, random_tokens, randomize

AUX_LAYERS = (1, 2, 4)


def make(kind, target):
    if kind == "eagle":
        head = EagleHead(EagleConfig.for_target(target), target)
    elif kind == "mtp":
        head = MtpHead(MtpConfig.for_target(target), target)
    else:
        config = Eagle3Config.for_target(target, 20, aux_layers=AUX_LAYERS, norm_output=kind == "eagle3_norm_output")
        head = Eagle3Head(config, target, draft_token_ids=torch.arange(0, 60, 3))
    randomize(head, 5)
    return head.eval()


@pytest.fixture(params=["eagle", "eagle3", "eagle3_norm_output", "mtp"])
def kind(request):
    return request.param


@pytest.fixture(params=["llama", "qwen3"])
def target(request):
    return random_target(request.param)


def pairs(head, target, tokens):
    """Token and feature of each pair of [B, T + 1] tokens."""
    num_pairs = tokens.shape[1] - 1
    output = target.forward(tokens, positions_from([0] * len(tokens), num_pairs + 1), None, head.aux_layers)
    return tokens[:, 1:], head.features(output)[:, :num_pairs]


def whole(head, tokens, features):
    """Run pairs of one sequence at once: [1, T] tokens."""
    return head(tokens, features, positions_from([0], tokens.shape[1]), None)


def test_pairs_on_ragged_rows_equal_whole_sequences(kind, target):
    head = make(kind, target)
    tokens, features = pairs(head, target, random_tokens(3, 10))
    lengths, cache = [2, 8, 5], head.new_cache(num_slots=3, capacity=12)
    positions = positions_from([0, 0, 0], 8)
    head(tokens[:, :8], features[:, :8], positions, cache.view(slice(0, 3), positions, 8))
    # one more pair for each row, over what the padding left
    index = torch.tensor(lengths)
    row = torch.arange(3)
    view = cache.view(slice(0, 3), index[:, None], 9)
    found = head(tokens[row, index][:, None], features[row, index][:, None], index[:, None], view)
    for r, length in enumerate(lengths):
        expected = whole(head, tokens[r : r + 1, : length + 1], features[r : r + 1, : length + 1])
        torch.testing.assert_close(found.hidden[r, 0], expected.hidden[0, -1], **TOLERANCE)
        torch.testing.assert_close(found.next_features[r, 0], expected.next_features[0, -1], **TOLERANCE)


def test_a_cached_chain_equals_full_sequences(kind, target):
    """Each step of a chain: position t + 1, the token just drafted, the features that the step before returned."""
    head = make(kind, target)
    tokens, features = pairs(head, target, random_tokens(1, 6))
    drafted = random_tokens(1, 4, seed=9)
    cache, positions = head.new_cache(num_slots=2, capacity=12), positions_from([0], 5)
    output = head(tokens, features, positions, cache.view(slice(1, 2), positions, 5))
    for step in range(4):
        position = torch.tensor([[5 + step]])
        tokens = torch.cat((tokens, drafted[:, step : step + 1]), dim=1)
        features = torch.cat((features, output.next_features[:, -1:]), dim=1)
        view = cache.view(slice(1, 2), position, 6 + step)
        output = head(tokens[:, -1:], features[:, -1:], position, view)
        expected = whole(head, tokens, features)
        torch.testing.assert_close(output.hidden[:, -1], expected.hidden[:, -1], **TOLERANCE)
        torch.testing.assert_close(output.next_features[:, -1], expected.next_features[:, -1], **TOLERANCE)


class UnrolledView:
    """A view as training would pass it: keys of earlier steps kept beside those of this step, with gradients."""

    rope_table = None

    def __init__(self, mask):
        self.mask = mask
        self.keys, self.values = [], []

    def update(self, key, value, layer_idx, *_):
        assert layer_idx == 0
        self.keys.append(key)
        self.values.append(value)
        return torch.cat(self.keys, dim=2), torch.cat(self.values, dim=2)


def test_any_view_serves_and_gradients_reach_the_head_only(kind, target):
    head = make(kind, target).train()
    tokens, features = pairs(head, target, random_tokens(2, 7))
    positions = positions_from([0, 0], 6)
    view = UnrolledView(torch.ones(6, 6).tril().bool()[None, None])
    first = head(tokens, features, positions, view)
    torch.testing.assert_close(first.hidden, head(tokens, features, positions, None).hidden, **TOLERANCE)
    view.mask = torch.cat((view.mask, torch.eye(6).bool()[None, None]), dim=3)
    second = head(tokens, first.next_features, positions, view)
    head.logits(second.hidden).square().mean().backward()
    for name, parameter in head.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name
    assert all(parameter.grad is None for parameter in target.causal_lm.parameters())


def test_nothing_of_the_target_belongs_to_the_head(kind, target):
    head = make(kind, target)
    shared = {parameter.data_ptr() for parameter in target.causal_lm.parameters()}
    assert not shared & {parameter.data_ptr() for parameter in head.parameters()}
    assert head.num_parameters == sum(
        tensor.numel() for tensor in head.state_dict().values() if tensor.is_floating_point()
    )


def test_next_features_are_what_the_logits_take_where_a_head_says_so(kind, target):
    head = make(kind, target)
    tokens, features = pairs(head, target, random_tokens(2, 4))
    output = head(tokens, features, positions_from([0, 0], 3), None)
    assert torch.equal(output.next_features, output.hidden) == head.features_are_hidden
    out = torch.zeros(2, 5, head.vocab_size)[:, 1]
    expected = head.logits(output.hidden[:, 0])
    assert head.logits(output.hidden[:, 0], out) is out and torch.equal(out, expected)


def test_sizes_of_logits_and_caches(kind, target):
    head = make(kind, target)
    tokens, features = pairs(head, target, random_tokens(2, 4))
    output = head(tokens, features, positions_from([0, 0], 3), None)
    assert head.logits(output.hidden).shape == (2, 3, head.vocab_size)
    if kind.startswith("eagle3"):
        assert head.vocab_size == 20 and head.draft_to_target.tolist() == list(range(0, 60, 3))
        assert head.aux_layers == AUX_LAYERS
    else:
        assert head.vocab_size == VOCAB_SIZE and head.draft_to_target is None and head.aux_layers == ()
    cache = head.new_cache(num_slots=2, capacity=7)
    assert len(cache.keys) == 1 and cache.keys[0].shape == (2, 2, 7, 8)
