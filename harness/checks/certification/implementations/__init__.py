"""Other people's verification as subjects: one file for each project, and the names under which it is certified.

Each takes the code that it certifies from the project's own package, and refuses in one line where that is missing.
"""

NAMED = {
    "flashinfer": "harness.checks.certification.implementations.flashinfer:chain",
    "project": "harness.checks.certification.subject:project_core",
    "reference": "harness.checks.certification.subject:reference",
    "sglang": "harness.checks.certification.implementations.sglang:chain",
    "transformers": "harness.checks.certification.implementations.transformers:assisted_generation",
    "vllm": "harness.checks.certification.implementations.vllm:vllm_core",
    "vllm_plugin": "harness.checks.certification.implementations.vllm:vllm_with_plugin",
}
"""package.module:function by the name that `--subject` takes."""
