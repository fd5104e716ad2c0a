"""Other people's verification as subjects: one file for each project, and the names under which it is certified.

Each takes the code that it certifies from the project's own package, and refuses in one line where that is missing.
"""

NAMED = {
    "dflash": "harness.checks.certification.implementations.dflash:dense",
    "dflash2": "harness.checks.certification.implementations.dflash:sparse",
    "economize": "harness.checks.certification.implementations.economize:rejection_verifier",
    "flashinfer": "harness.checks.certification.implementations.flashinfer:chain",
    "flashspec": "harness.checks.certification.implementations.flashspec:incremental",
    "flashspec_batched": "harness.checks.certification.implementations.flashspec:batched",
    "mini_infer": "harness.checks.certification.implementations.mini_infer:speculative_step",
    "naive_hsd": "harness.checks.certification.implementations.sequential_sd:naive",
    "project": "harness.checks.certification.subject:project_core",
    "reference": "harness.checks.certification.subject:reference",
    "sequential_sd": "harness.checks.certification.implementations.sequential_sd:standard_and_capped",
    "sglang": "harness.checks.certification.implementations.sglang:chain",
    "transformers": "harness.checks.certification.implementations.transformers:assisted_generation",
    "vllm": "harness.checks.certification.implementations.vllm:vllm_core",
    "vllm_plugin": "harness.checks.certification.implementations.vllm:vllm_with_plugin",
}
"""package.module:function by the name that `--subject` takes."""
