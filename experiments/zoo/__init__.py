"""Training of the built-in models: text, tokenizer, target, heads, draft model, model card."""
