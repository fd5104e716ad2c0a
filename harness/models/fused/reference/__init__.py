"""The executable specification of the fused operations: same names, same signatures, plain torch, on any device."""
