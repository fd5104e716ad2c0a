"""The sampling core inside vLLM (Model Runner V2): a plug-in and an extension of its workers.

    vllm serve MODEL --speculative-config '{...}' --worker-extension-cls rejection_lab_vllm.WorkerExtension
    llm.collective_rpc("set_verification", args=("block",))
    llm.collective_rpc("start_recording", args=("FOLDER", "block"))    # for `rejection-lab replay FOLDER`

`register` is the entry point in vLLM's group of general plug-ins. It is silent unless REJECTION_LAB_VERIFICATION names
a verification, which every worker then has from its first request on, or REJECTION_LAB_CHUNKS=steps asks for a chunk
for every step of a stream.
"""

from harness.plugins.vllm.register import register
from harness.plugins.vllm.worker import WorkerExtension

__all__ = ["WorkerExtension", "register"]
