"""conf/ and argv -> a checked run plan; the only package that imports Hydra."""
