"""Times the sampling core alone, beside the bytes that it must move and beside its peers.

The core must agree with the reference on the rows before they are timed. Results go into `kernel_bench.records`;
tables and the figure are made from those alone.
"""
