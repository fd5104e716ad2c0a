"""How a row of logits is read: where it lies, its weights, its mask, its truncation threshold."""
