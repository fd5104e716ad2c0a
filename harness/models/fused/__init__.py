"""The operations of a decoder layer as Triton kernels, for the engine's GPU path.

Matrix products are among them where a library is slower or has no good call: those of a few tokens with a large weight,
those of experts, and those of each head with latents.

They launch without waiting for the device, read nothing on the host and allocate by shapes alone, so that a forward can
be captured in a CUDA graph. `reference` holds their twins in plain torch, which run where there is no GPU; `layer` puts
them together. The package does not know checkpoints, drafters or requests.

A launcher raises ValueError when the shape, type or layout of a tensor is not as its arguments say.

Shapes, here and in every file: R rows, T tokens of a row, N = R * T tokens, H hidden size, Hq query heads, Hk key
heads, D width of a head, I intermediate size, S slots, C positions of a slot. Row r holds T consecutive tokens of slot
slots[r] from position starts[r] on. Several rows may belong to one slot.
"""
