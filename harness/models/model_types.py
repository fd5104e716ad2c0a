"""The model types that run. Importable without torch."""

MODEL_TYPES = {"llama": "Llama", "qwen3": "Qwen3", "glm4_moe_lite": "Glm4MoeLite"}
"""Types of config.json -> what transformers' classes of that type are called by."""
DENSE_TYPES = ("llama", "qwen3")
"""Types whose layers have neither experts nor latent attention."""
HEAD_LAYERS = DENSE_TYPES
"""Types of layer that EAGLE and EAGLE-3 heads are made of; an MTP layer is of its target's type."""
