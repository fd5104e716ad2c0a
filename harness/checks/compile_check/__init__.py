"""Compiles the GPU kernels without a GPU and reports their registers and spills; runs none of them."""
