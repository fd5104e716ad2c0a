"""The sampling core inside SGLang, by its official hooks. Written from the source of 0.5.23 and never run in it.

    REJECTION_LAB_VERIFICATION=block REJECTION_LAB_TRY_SGLANG=0.5.23 python -m sglang.launch_server ... \
        --speculative-use-rejection-sampling

`register` is the entry point in SGLang's group of plug-ins; it is silent unless REJECTION_LAB_VERIFICATION is set.
"""

from harness.plugins.sglang.register import register

__all__ = ["register"]
