"""The file in which a worker of another engine keeps what it recorded; needs no torch, so that a laptop reads it.

`frames` is how an append-only file is laid out on disk; the harness writes its own checkpoints so, too. `content` says
what the frames of a recording mean.
"""
