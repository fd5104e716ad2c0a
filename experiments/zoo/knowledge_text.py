"""Generated chat turns of the categories STEM, humanities and coding. Each function returns turns, user first."""

# ruff: noqa: E501 (a sentence stays on one line)

from __future__ import annotations

import random
from pathlib import Path
from typing import NamedTuple

from experiments.zoo import words
from experiments.zoo.topics import HUMANITIES, STEM, Topic

Rng = random.Random


class Function(NamedTuple):
    what: str
    name: str
    parameters: str
    code: str
    why: str
    call: str
    result: str


def _read_functions() -> list[Function]:
    functions = []
    text = (Path(__file__).parent / "material" / "functions.txt").read_text()
    for block in text.strip().split("\n===\n"):
        what, head, *code, why, call, result = block.split("\n")
        name, parameters = head.split(" ", 1)
        functions.append(Function(what, name, parameters, "\n".join(code), why, call, result))
    return functions


FUNCTIONS = _read_functions()


def _define(topics: list[Topic], rng: Rng) -> list[str]:
    topic = rng.choice(topics)
    facts = rng.sample(topic.facts[:2], rng.randint(1, 2))
    ask = rng.choice(
        [
            "What is {t}?",
            "Explain {t} to {a}.",
            "Explain in simple terms what {t} is.",
            "Tell me about {t}.",
            "Define {t} and give an example.",
            "Can you explain {t}?",
        ]
    )
    text = f"{topic.name} is {topic.definition}. {' '.join(facts)}"
    turns = [ask.format(t=topic.inline, a=rng.choice(words.AUDIENCES))]
    if "example" in turns[0]:
        return [*turns, f"{text} {topic.facts[2]}"]
    turns.append(text)
    if rng.random() < 0.45:
        turns += [
            rng.choice(["Can you give an example?", "Give me an example.", "Where do we see this in daily life?"]),
            topic.facts[2],
        ]
    return turns


def _facts(topics: list[Topic], rng: Rng) -> list[str]:
    topic = rng.choice(topics)
    count = rng.randint(2, 3)
    facts = rng.sample(topic.facts, count)
    ask = rng.choice(
        [
            f"Give me {count} facts about {topic.inline}.",
            f"List {count} important points about {topic.inline}.",
            f"What are {count} things to know about {topic.inline}?",
        ]
    )
    return [ask, "\n".join(f"{i}. {fact}" for i, fact in enumerate(facts, 1))]


def _compare(topics: list[Topic], rng: Rng) -> list[str]:
    first, second = rng.sample(topics, 2)
    ask = rng.choice(
        [
            f"What is the difference between {first.inline} and {second.inline}?",
            f"Compare {first.inline} with {second.inline}.",
            f"How do {first.inline} and {second.inline} differ?",
        ]
    )
    return [
        ask,
        f"{first.name} is {first.definition}. {second.name}, on the other hand, is {second.definition}.\n\nThe first belongs to {first.field}: {_lower(first.facts[0])} The second belongs to {second.field}: {_lower(second.facts[0])}",
    ]


def _lower(sentence: str) -> str:
    return (
        sentence[0].lower() + sentence[1:]
        if sentence.split(" ", maxsplit=1)[0] in {"It", "Its", "Most", "Some", "The", "A", "Many"}
        else sentence
    )


def _importance(topics: list[Topic], rng: Rng) -> list[str]:
    topic = rng.choice(topics)
    ask = rng.choice(
        [
            f"Why is {topic.inline} important?",
            f"Write a short paragraph on why {topic.inline} matters.",
            f"What role does {topic.inline} play in our lives?",
        ]
    )
    return [
        ask,
        f"{topic.name} matters because it touches many parts of life. In {topic.field}, it is known as {topic.definition}. {topic.facts[0]} {topic.facts[2]}",
    ]


def _quiz(topics: list[Topic], rng: Rng) -> list[str]:
    topic = rng.choice(topics)
    wrong = rng.sample([other for other in topics if other is not topic], 2)
    options = [topic, *wrong]
    rng.shuffle(options)
    letters = "ABC"
    listed = "\n".join(f"{letter}) {option.name}" for letter, option in zip(letters, options, strict=True))
    correct = letters[options.index(topic)]
    return [
        f"Which of these is {topic.definition}?\n\n{listed}",
        f"The correct answer is {correct}) {topic.name}. {topic.facts[0]}",
    ]


def _pros_and_cons(rng: Rng) -> list[str]:
    subject, good, bad = rng.choice(
        [
            ("working from home", ["It saves the time of the journey.", "The day can be planned more freely.", "It is quiet."], ["It can be lonely.", "Work and free time are hard to separate.", "Some tasks need a meeting in person."]),
            ("living in a large city", ["There are many jobs.", "Public transport is good.", "There is a lot of culture."], ["Rents are high.", "It is noisy.", "There is little nature."]),
            ("electric cars", ["They make no smoke on the street.", "They are quiet.", "Driving them is cheap."], ["They cost more to buy.", "Charging takes time.", "Making the battery needs rare metals."]),
            ("online learning", ["It can be done at any hour.", "It costs less.", "Lessons can be repeated."], ["It needs discipline.", "There is less contact with others.", "Questions take longer to answer."]),
            ("paper books", ["They need no power.", "They are pleasant to hold.", "They can be given as a present."], ["They are heavy.", "They take up space.", "They cannot be searched."]),
            ("team sports", ["They are good for the body.", "They teach people to work together.", "They are fun."], ["Injuries can happen.", "They need fixed hours.", "A field is not always free."]),
        ]
    )  # fmt: skip
    ask = rng.choice(
        [
            f"What are the advantages and disadvantages of {subject}?",
            f"List pros and cons of {subject}.",
            f"Discuss {subject} from both sides.",
        ]
    )
    plus, minus = rng.sample(good, 2), rng.sample(bad, 2)
    return [
        ask,
        "Advantages:\n"
        + "\n".join(f"- {item}" for item in plus)
        + "\n\nDisadvantages:\n"
        + "\n".join(f"- {item}" for item in minus)
        + f"\n\nWhether {subject} is a good choice depends on what a person needs.",
    ]


def stem(rng: Rng) -> list[str]:
    return rng.choice([_define, _define, _facts, _compare, _importance, _quiz])(STEM, rng)


def humanities(rng: Rng) -> list[str]:
    if rng.random() < 0.15:
        return _pros_and_cons(rng)
    return rng.choice([_define, _define, _facts, _compare, _importance, _quiz])(HUMANITIES, rng)


def coding(rng: Rng) -> list[str]:
    function = rng.choice(FUNCTIONS)
    name, code, call = function.name, function.code, function.call
    if rng.random() < 0.4:  # another name for the same function, so that the name is read and not remembered
        name = rng.choice(
            ["solve", "compute", "run", "my_function", "process", f"{function.name}_of", f"get_{function.name}"]
        )
        code, call = code.replace(f"{function.name}(", f"{name}("), call.replace(f"{function.name}(", f"{name}(")
    ask = rng.choice(["Write a Python function that {w}.", "Write a Python function `{n}({p})` that {w}.", "How do I write a function in Python that {w}?", "Implement a function called {n} in Python. It {w}.", "I need Python code that {w}."])  # fmt: skip
    block = f"```python\n{code}\n```"
    text = rng.choice(
        [f"{block}\n\n{function.why}", f"Here is a function that {function.what}:\n\n{block}\n\n{function.why}", block]
    )
    turns = [ask.format(w=function.what, n=name, p=function.parameters), text]
    follow = rng.random()
    if follow < 0.25:
        turns += [
            rng.choice(["Show me an example call.", "How do I call it?", "Give an example of its use."]),
            f"```python\nprint({call})  # {function.result}\n```",
        ]
    elif follow < 0.4:
        turns += [
            rng.choice(["Write a test for it.", "Add a unit test."]),
            f"```python\ndef test_{name}():\n    assert {call} == {function.result}\n```",
        ]
    elif follow < 0.5:
        turns += [
            rng.choice(["How does it work?", "Explain the code."]),
            f"The function `{name}` takes {function.parameters} and {function.what}. {function.why}",
        ]
    return turns
