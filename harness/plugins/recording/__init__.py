"""The file in which a worker of another engine keeps what it recorded; needs no torch, so that a laptop reads it.

`frames` is the layout of an append-only file, which the harness's own checkpoints have too. `content` is what the
frames of a recording mean.
"""
