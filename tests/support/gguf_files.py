"""Small GGUF files with a byte-level vocabulary: a header alone, or a model."""

import struct

import torch
from tokenizers import pre_tokenizers

BYTES = sorted(pre_tokenizers.ByteLevel.alphabet())
MERGES = ["Ġ w", "1 2", "h i", "Ġw o", "W E", "' L", "'L L"]
SPECIAL = ["<|end|>", "<|start|>"]
TOKENS = [*SPECIAL, *BYTES, *(merge.replace(" ", "") for merge in MERGES)]
CONTROL, NORMAL = 3, 1


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def entry(key, value):
    """A key and its value, as the type of Python says."""
    if isinstance(value, bool):
        return text(key) + struct.pack("<I?", 7, value)
    if isinstance(value, int):
        return text(key) + struct.pack("<II", 4, value)
    if isinstance(value, str):
        return text(key) + struct.pack("<I", 8) + text(value)
    kind = 8 if isinstance(value[0], str) else 5
    items = b"".join(text(item) if kind == 8 else struct.pack("<i", item) for item in value)
    return text(key) + struct.pack("<IIQ", 9, kind, len(value)) + items


def header(**changes):
    """Keys and values of a file; a change of None leaves one out."""
    found = {
        "general.architecture": "llama",
        "llama.context_length": 8192,
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": [CONTROL] * len(SPECIAL) + [NORMAL] * (len(TOKENS) - len(SPECIAL)),
        "tokenizer.ggml.merges": MERGES,
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 0,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for m in messages %}<|start|>{{ m['content'] }}<|end|>{% endfor %}",
    }
    found |= {name.replace("__", "."): value for name, value in changes.items()}
    return {key: value for key, value in found.items() if value is not None}


def write_gguf(path, version=3, **changes):
    """Write a file and return its path."""
    values = header(**changes)
    content = b"GGUF" + struct.pack("<IQQ", version, 0, len(values))
    path.write_bytes(content + b"".join(entry(key, value) for key, value in values.items()))
    return path


def write_gguf_model(path, causal_lm):
    """Write a Llama in Q8_0, norms in float32, as llama.cpp's converter does; return its weights as they are stored.

    The package gguf writes it.
    """
    from gguf import GGMLQuantizationType, GGUFWriter
    from gguf.quants import dequantize, quantize

    config, rounded = causal_lm.config, {}
    writer = GGUFWriter(str(path), "llama")
    also = {"general__name": "Tiny", "tokenizer__ggml__unknown_token_id": 0, "tokenizer__ggml__padding_token_id": 0}
    for name, value in header(llama__context_length=config.max_position_embeddings, **also).items():
        put = {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string, list: writer.add_array}
        if name != "general.architecture":
            put[type(value)](name, value)
    writer.add_file_type(7)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    for name, tensor in causal_lm.state_dict().items():
        values = tensor.float().numpy()
        kind = GGMLQuantizationType.F32 if values.ndim == 1 else GGMLQuantizationType.Q8_0
        stored = values if values.ndim == 1 else quantize(values, kind)
        rounded[name] = torch.from_numpy(values if values.ndim == 1 else dequantize(stored, kind))
        heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}.get(name.split(".")[-2])
        if heads:
            # the halves of a head interleaved
            stored = stored.reshape(heads, 2, -1, stored.shape[1]).swapaxes(1, 2).reshape(stored.shape)
        writer.add_tensor(_in_gguf(name), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return rounded


def _in_gguf(name):
    for ours, theirs in NAMES.items():
        name = name.replace(ours, theirs)
    return name


NAMES = {
    "model.layers.": "blk.",
    "self_attn.o_proj": "attn_output",
    "self_attn.": "attn_",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.": "ffn_",
    "_proj": "",
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
}
