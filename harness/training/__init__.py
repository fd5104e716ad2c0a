"""Training of draft heads against a frozen target: text that it writes, chains of steps, the loop, checkpoints."""
