"""A typed setting, what it means, which settings fit together, which cells use it, and the identity that follows.

Knows no torch, no Hydra and no files but conf/.
"""
