"""Says whether a draft head works with its target: a short run of fixed prompts, and trials of what may be wrong."""
