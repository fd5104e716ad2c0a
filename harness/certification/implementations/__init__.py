"""Other people's verification as subjects: one file for each project, and the names under which it is certified.

Each takes the code that it certifies from the project's own package, and refuses in one line where that is missing.
"""

NAMED = {
    "flashinfer": "harness.certification.implementations.flashinfer:chain",
    "project": "harness.certification.subject:project_core",
    "reference": "harness.certification.subject:reference",
    "sglang": "harness.certification.implementations.sglang:chain",
    "transformers": "harness.certification.implementations.transformers:assisted_generation",
    "vllm": "harness.certification.implementations.vllm:vllm_core",
    "vllm_plugin": "harness.certification.implementations.vllm:vllm_with_plugin",
}
"""package.module:function by the name that `--subject` takes."""
