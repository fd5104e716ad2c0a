"""Any causal language model of transformers, its modeling code untouched: attention, masks and caches over our slots.

A file belongs here if it stands between the modeling code of transformers and the engine. What is computed between
token ids and logits is the model's own; what is kept between forwards, and which keys a query sees, is ours.
"""
