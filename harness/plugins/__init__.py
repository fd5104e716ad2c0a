"""What runs inside another engine's process: it hands that engine's tensors to the sampling core and back.

It needs the sampling core alone, and the engine only where it is called from it; no settings, records or reports. The
wheel rejection-lab-core (packaging/) has it as the packages rejection_lab_vllm and rejection_lab_sglang.
"""
