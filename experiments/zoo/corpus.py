"""Corpus rows as training documents: dialogues into the chat template, code and prose partly into chat form.

A document is (group, text without its end mark). Groups are what held-out loss is reported by. Source of the rows:
the corpus folder's SOURCES.md; the text of every row is used, nothing is added to it but the instruction.
"""

from __future__ import annotations

import ast
import gzip
import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from experiments.zoo.tokenizer import chat_text

GROUPS = {
    "self_dialogue": "dialogue",
    "taskmaster4": "dialogue",
    "gsm8k_train": "arithmetic",
    "medquad": "questions",
    "squality_qa": "questions",
    "exercism": "code",
    "thealgorithms_python": "code",
    "python_stdlib": "code",
    "30_seconds_of_code": "code",
    "tldr": "commands",
    "python_reference_topics": "reference",
    "peps": "reference",
    "rust_book": "reference",
    "openstax": "textbook",
    "standardebooks": "fiction",
    "squality_story": "fiction",
}
_TURN = re.compile(r"^(User|Assistant): ?", re.MULTILINE)
_TITLE = re.compile(r"# (.+)\n+")
_MAX_FUNCTION_CHARS = 1400
_MAX_FUNCTIONS_PER_ROW = 4


class Document(NamedTuple):
    group: str
    text: str


def read_rows(folder: Path, split: str) -> Iterator[tuple[str, str]]:
    """(source, text) of `corpus_<split>.jsonl.gz`; split is "train" or "heldout"."""
    path = folder / f"corpus_{split}.jsonl.gz"
    if not path.is_file():
        raise ValueError(f"--corpus: expected {path}, found no such file; give the folder that holds corpus_*.jsonl.gz")
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            row = json.loads(line)
            yield row["source"], row["text"]


def documents(folder: Path, split: str, seed: int) -> Iterator[Document]:
    """The documents of a split, in the corpus's order; the same seed gives the same choice of chat forms."""
    rng = random.Random(f"{seed}/{split}")
    for source, text in read_rows(folder, split):
        if source not in GROUPS:
            raise ValueError(f"corpus: expected a source among {sorted(GROUPS)}, found {source!r}; add it to GROUPS")
        for converted in _convert(source, text, rng):
            yield Document(GROUPS[source], converted)


def _convert(source: str, text: str, rng: random.Random) -> Iterator[str]:
    turns = dialogue_turns(text)
    if turns:
        yield chat_text(turns)
        return
    chat = _CHAT_FORMS.get(source)
    asked = chat(text, rng) if chat else []
    keep_plain = source not in {"tldr", "30_seconds_of_code"} or not asked
    if keep_plain:
        yield text.strip() + "\n"
    for turns in asked:
        yield chat_text(turns)


def dialogue_turns(text: str) -> list[str]:
    """Turns of a `User: .. Assistant: ..` text, user first, an even number of them; [] when it is no dialogue."""
    marks = list(_TURN.finditer(text))
    if not marks or marks[0].start() != 0 or marks[0][1] != "User":
        return []
    turns: list[str] = []
    for index, mark in enumerate(marks):
        end = marks[index + 1].start() if index + 1 < len(marks) else len(text)
        content = text[mark.end() : end].strip()
        if index and mark[1] == marks[index - 1][1]:  # two turns of one speaker in a row are one turn
            turns[-1] += "\n" + content
        else:
            turns.append(content)
    return turns[: len(turns) - len(turns) % 2]


def _command(text: str, rng: random.Random) -> list[list[str]]:
    title = _TITLE.match(text)
    if not title or rng.random() < 0.4:
        return []
    name = title[1].strip()
    question = rng.choice(
        [
            f"How do I use the `{name}` command?",
            f"Show me common uses of `{name}`.",
            f"What does the command {name} do? Give a few examples.",
            f"Give me a short cheat sheet for {name}.",
        ]
    )
    return [[question, text[title.end() :]]]


def _snippet(text: str, rng: random.Random) -> list[list[str]]:
    title = _TITLE.match(text)
    if not title or "```" not in text:
        return []
    rest = text[title.end() :].strip()
    what = rest.split("\n")[0].rstrip(".:")
    language = "Python" if "```py" in text else "CSS" if "```css" in text else "JavaScript"
    question = rng.choice(
        [f"Write a {language} snippet `{title[1]}`: {what}.", f"{what}. Use {language} and explain the steps."]
    )
    return [[question, rest]]


def _functions(text: str, rng: random.Random) -> list[list[str]]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # a row cut in the middle of a file is plain text only
        return []
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.FunctionDef) or node.name.startswith("_"):
            continue
        summary = (ast.get_docstring(node) or "").split("\n\n")[0].replace("\n", " ").strip()
        code = ast.get_source_segment(text, node) or ""
        if 20 <= len(summary) <= 200 and len(code) <= _MAX_FUNCTION_CHARS and node.col_offset == 0:
            found.append((node.name, summary, code))
    rng.shuffle(found)
    return [[_ask_function(name, what, rng), code] for name, what, code in found[:_MAX_FUNCTIONS_PER_ROW]]


def _ask_function(name: str, what: str, rng: random.Random) -> str:
    if not what.endswith("."):
        what += "."
    return rng.choice(
        [
            f"Write a Python function `{name}`. {what}",
            f"Implement this in Python as {name}: {what}",
            f"I need a Python function called `{name}`. It should do this: {what}",
        ]
    )


def _section(text: str, rng: random.Random) -> list[list[str]]:
    title = _TITLE.match(text)
    if not title or rng.random() < 0.5:
        return []
    paragraphs = [part for part in text[title.end() :].split("\n\n") if len(part) > 200 and part[0].isalpha()]
    if not paragraphs:
        return []
    question = rng.choice(
        [
            f"Explain this topic: {title[1]}.",
            f"Write a short introduction to the topic '{title[1]}'.",
            f"What should I know about {title[1].lower()}?",
        ]
    )
    return [[question, "\n\n".join(paragraphs[: rng.randint(1, 2)])]]


def _story(text: str, rng: random.Random) -> list[list[str]]:
    paragraphs = [part.strip() for part in text.split("\n\n") if len(part.strip()) > 60]
    if len(paragraphs) < 6 or rng.random() < 0.4:
        return []
    start = rng.randrange(len(paragraphs) - 4)
    question = rng.choice(["Continue this story.", "Write the next paragraphs of this story.", "What happens next?"])
    return [[f"{question}\n\n{paragraphs[start][-500:]}", "\n\n".join(paragraphs[start + 1 : start + 4])]]


_CHAT_FORMS = {
    "tldr": _command,
    "30_seconds_of_code": _snippet,
    "thealgorithms_python": _functions,
    "python_stdlib": _functions,
    "openstax": _section,
    "rust_book": _section,
    "standardebooks": _story,
    "squality_story": _story,
}
