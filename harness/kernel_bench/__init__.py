"""The benchmark of the sampling core: how long a verification or a draw takes beside the bytes that it must move.

Runs the core and what it is compared with on rows like a language model's, after the core has agreed with the
reference on them. The numbers go into harness.kernel_records; tables and the figure are made from those alone.
"""
