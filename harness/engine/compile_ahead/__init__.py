"""Compiles the kernels of an engine's steps in processes of their own, before the engine launches them."""
