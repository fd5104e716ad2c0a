"""Agreement of two sampling cores: the same streams must give the same decisions and the same tokens.

Float rounding may move the boundary of a decision. Every disagreement is counted, and shown to lie within rounding of
its boundary, or reported as unexplained. The law that a core's draws follow is measured beside it. Knows tensors and
the contract of the sampling core, nothing of models or text.
"""
