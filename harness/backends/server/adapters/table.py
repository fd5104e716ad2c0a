"""Engine -> adapter."""

from __future__ import annotations

from harness.backends.server.adapter import Adapter
from harness.backends.server.adapters.llama_cpp import LlamaCppAdapter
from harness.backends.server.adapters.sglang import SglangAdapter
from harness.backends.server.adapters.tensorrt_llm import TensorrtLlmAdapter
from harness.backends.server.adapters.vllm import VllmAdapter
from harness.config.server import Engine

ADAPTERS: dict[Engine, type[Adapter]] = {
    Engine.plain: Adapter,
    Engine.vllm: VllmAdapter,
    Engine.sglang: SglangAdapter,
    Engine.tensorrt_llm: TensorrtLlmAdapter,
    Engine.llama_cpp: LlamaCppAdapter,
}
