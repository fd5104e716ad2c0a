"""The generated part of the training text: chat turns in eight categories, and tasks answered in JSON.

Everything is drawn from templates and word lists of this package with a seeded generator; no text of a benchmark
and none of the built-in prompts is in it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from experiments.zoo.corpus import Document
from experiments.zoo.json_text import json_turns
from experiments.zoo.knowledge_text import coding, humanities, stem
from experiments.zoo.reasoning_text import EXTRACTION, MATH, REASONING
from experiments.zoo.tokenizer import chat_text
from experiments.zoo.writing_text import ROLEPLAY, WRITING

CATEGORIES = {
    "writing": WRITING,
    "roleplay": ROLEPLAY,
    "reasoning": REASONING,
    "math": MATH,
    "coding": (coding,),
    "extraction": EXTRACTION,
    "stem": (stem,),
    "humanities": (humanities,),
}
CHAT_GROUP, JSON_GROUP = "generated_chat", "generated_json"
_WEIGHTS = {
    "writing": 5,
    "roleplay": 2,
    "reasoning": 3,
    "math": 4,
    "coding": 4,
    "extraction": 3,
    "stem": 4,
    "humanities": 4,
}


def chat_turns(rng: random.Random) -> list[str]:
    """Turns of one conversation, user first."""
    category = rng.choices(list(_WEIGHTS), weights=list(_WEIGHTS.values()))[0]
    return rng.choice(CATEGORIES[category])(rng)


def generated(num_documents: int, seed: str, json_share: float = 0.25) -> Iterator[Document]:
    """`num_documents` distinct conversations; the same seed gives the same text."""
    rng = random.Random(seed)
    seen: set[str] = set()
    while len(seen) < num_documents:
        is_json = rng.random() < json_share
        text = chat_text(json_turns(rng) if is_json else chat_turns(rng))
        if text not in seen:
            seen.add(text)
            yield Document(JSON_GROUP if is_json else CHAT_GROUP, text)
