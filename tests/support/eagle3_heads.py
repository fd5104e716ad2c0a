"""EAGLE-3 heads of a tiny target, and their forward as the description of the format has it."""

from __future__ import annotations

import torch

from harness.models.eagle3 import Eagle3Config, Eagle3Head
from tests.support.plain_layers import eagle3_features, eagle3_layer, rms_norm
from tests.support.tiny_models import TOLERANCE, positions_from, random_tokens, randomize

KEYS = {
    "fc.weight",
    "norm.weight",
    "lm_head.weight",
    "d2t",
    "t2d",
    "layers.0.hidden_norm.weight",
    "layers.0.input_layernorm.weight",
    "layers.0.post_attention_layernorm.weight",
    "layers.0.self_attn.q_proj.weight",
    "layers.0.self_attn.k_proj.weight",
    "layers.0.self_attn.v_proj.weight",
    "layers.0.self_attn.o_proj.weight",
    "layers.0.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight",
    "layers.0.mlp.down_proj.weight",
}
DRAFT_IDS = torch.tensor([0, 1, 4, 9, 16, 25, 36, 49, 60])
AUX_LAYERS = (1, 2, 4)


def make_head(target, own_embedding=False, **changes):
    config = Eagle3Config.for_target(target, DRAFT_IDS.numel(), aux_layers=AUX_LAYERS, **changes)
    head = Eagle3Head(config, target, draft_token_ids=DRAFT_IDS, own_embedding=own_embedding)
    randomize(head, 3)
    return head


def run(head, num_pairs=6):
    tokens = random_tokens(2, num_pairs + 1)
    output = head.target.forward(tokens, positions_from([0, 0], num_pairs + 1), None, head.aux_layers)
    features = head.features(output)[:, :-1]
    aux = tuple(state[:, :-1] for state in output.aux)
    return tokens, aux, head(tokens[:, 1:], features, positions_from([0, 0], num_pairs), None)


def plain_forward(weights, embedding, config, token_ids, aux):
    """Next features and logits [T, ...] of one row, from the description of the format."""
    features = eagle3_features(torch.cat(tuple(aux), dim=-1), weights, config)
    states = eagle3_layer(features, embedding[token_ids], weights, config)
    hidden = rms_norm(states, weights["norm.weight"], config.layer.rms_norm_eps)
    return (hidden if config.norm_output else states), hidden @ weights["lm_head.weight"].T


def assert_equals_plain(head, embedding):
    tokens, aux, output = run(head)
    for row in range(2):
        features, logits = plain_forward(
            head.state_dict_public(), embedding, head.config, tokens[row, 1:], [state[row] for state in aux]
        )
        torch.testing.assert_close(output.next_features[row], features, **TOLERANCE)
        torch.testing.assert_close(head.logits(output.hidden)[row], logits, **TOLERANCE)
