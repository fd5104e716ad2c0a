"""The executable specification of the sampling core: plain torch, float64 where it matters, on any device.

Same names and signatures as the kernels, written for the reader and tested by exact enumeration. On a machine without
a GPU it is also the sampler that the engine runs on, so it works on whole batches and skips what no row needs.
"""
