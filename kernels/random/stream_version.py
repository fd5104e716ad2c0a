"""The version of the coupled method's noise (kernels.random.streams.gumbel), which settings read without torch."""

COUPLED_STREAM_VERSION = 2
"""Raised when its numbers change, so that what was measured with others is another cell. 1: two tokens of a block of
four words; 2: four."""
