"""Generated tasks that are answered as `<think>short reasoning</think>` followed by one JSON object.

Each task states the fields, as a sentence or as a JSON schema; the object always validates against that schema.
"""
# ruff: noqa: E501 (a sentence stays on one line)

from __future__ import annotations

import json
import random
from typing import Any, NamedTuple

from experiments.zoo import words
from experiments.zoo.tokenizer import END_THINK, THINK

Rng = random.Random


class Task(NamedTuple):
    instruction: str
    thought: str
    answer: dict[str, Any]
    enums: dict[str, list[str]] = {}  # noqa: RUF012 (a NamedTuple's default is never changed)


def person(rng: Rng) -> Task:
    name, last, city = rng.choice(words.FIRST_NAMES), rng.choice(words.LAST_NAMES), rng.choice(words.CITIES)
    age, job, hobby = rng.randint(18, 80), rng.choice(words.JOBS), rng.choice(words.HOBBIES)
    text = rng.choice(
        [
            f"{name} {last} is a {age}-year-old {job} from {city} who likes {hobby}.",
            f"My name is {name} {last}. I am {age}, I live in {city} and work as a {job}. In my free time I enjoy {hobby}.",
            f"The {job} {name} {last}, aged {age}, moved to {city} and took up {hobby}.",
        ]
    )
    fields = {"name": f"{name} {last}", "age": age, "city": city, "job": job, "hobby": hobby}
    keys = [key for key in fields if key == "name" or rng.random() < 0.7]
    answer = {key: fields[key] for key in keys}
    thought = rng.choice(
        [
            f"The text is about {name} {last}. I need {', '.join(keys)}.",
            f"The name is {name} {last}"
            + (f" and the age is {age}." if "age" in keys else ".")
            + (f" The city is {city}." if "city" in keys else ""),
        ]
    )
    return Task(
        f"{rng.choice(['Extract the person from the text.', 'Read the text and describe the person.', 'Turn this text into a record.'])} Text: {text}",
        thought,
        answer,
    )


def order(rng: Rng) -> Task:
    name, item, count, price = (
        rng.choice(words.FIRST_NAMES),
        rng.choice(words.GOODS),
        rng.randint(1, 12),
        rng.randint(2, 40),
    )
    express = rng.random() < 0.5
    text = f"{name} orders {count} {item} at ${price} each" + (
        " and wants express delivery." if express else " with normal delivery."
    )
    answer = {
        "customer": name,
        "item": item,
        "quantity": count,
        "unit_price": price,
        "total": count * price,
        "express": express,
    }
    if rng.random() < 0.4:
        del answer["unit_price"]
    return Task(
        f"{rng.choice(['Create an order.', 'Fill in the order form.', 'Convert the order.'])} {text}",
        f"There are {count} {item} at {price} dollars. The total is {count} * {price} = {count * price}. The delivery is {'express' if express else 'normal'}.",
        answer,
    )


def weather(rng: Rng) -> Task:
    city, day, temperature = rng.choice(words.CITIES), rng.choice(words.DAYS), rng.randint(-10, 35)
    sky = rng.choice(["sunny", "cloudy", "rainy", "windy", "snowy", "foggy"])
    wind = rng.randint(0, 60)
    text = rng.choice(
        [
            f"On {day} it will be {sky} in {city} with {temperature} degrees and wind of {wind} kilometers per hour.",
            f"The forecast for {city} on {day}: {sky}, {temperature} degrees, wind {wind} kilometers per hour.",
        ]
    )
    answer = {"city": city, "day": day, "condition": sky, "temperature": temperature, "wind_speed": wind}
    if rng.random() < 0.4:
        del answer["wind_speed"]
    enums = {"condition": ["sunny", "cloudy", "rainy", "windy", "snowy", "foggy"]}
    return Task(
        f"Read the weather report. {text}",
        f"The city is {city} and the day is {day}. It is {sky} with {temperature} degrees.",
        answer,
        enums,
    )


def arithmetic(rng: Rng) -> Task:
    a, b = rng.randint(2, 99), rng.randint(2, 30)
    sign, result, word = rng.choice([("+", a + b, "sum"), ("*", a * b, "product"), ("-", a - b, "difference")])
    thought = f"I need the {word} of {a} and {b}. {a} {sign} {b} = {result}."
    answer: dict[str, Any] = {"expression": f"{a} {sign} {b}", "result": result}
    if rng.random() < 0.5:
        answer["steps"] = [f"{a} {sign} {b} = {result}"]
    if rng.random() < 0.4:
        answer["is_even"] = result % 2 == 0
        thought += f" {result} is {'even' if result % 2 == 0 else 'odd'}."
    return Task(rng.choice([f"Compute {a} {sign} {b}.", f"What is the {word} of {a} and {b}?"]), thought, answer)


_REVIEWS = {
    "positive": ("I love this {g}, it works perfectly.", "The {g} is great and arrived early.", "Best {g} I have ever had.", "Very happy with the {g}."),
    "negative": ("The {g} broke after two days.", "I want my money back for this {g}.", "The {g} is slow and ugly.", "Very bad {g}, I cannot recommend it."),
    "neutral": ("The {g} is okay, nothing special.", "The {g} does what it should.", "An average {g} at an average price."),
}  # fmt: skip


def sentiment(rng: Rng) -> Task:
    label = rng.choice(sorted(_REVIEWS))
    gadget = rng.choice(words.GADGETS)
    text = rng.choice(_REVIEWS[label]).format(g=gadget)
    answer = {"text": text, "label": label, "confidence": rng.choice([0.7, 0.8, 0.9, 0.95])}
    if rng.random() < 0.5:
        del answer["text"]
    if rng.random() < 0.4:
        answer["product"] = gadget
    return Task(
        f'Classify the review as positive, negative or neutral: "{text}"',
        f"The customer writes about a {gadget}. The tone is {label}.",
        answer,
        {"label": ["positive", "negative", "neutral"]},
    )


_SUBJECTS = {
    "sports": ("The team won the final by two goals.", "She ran the race in record time.", "The coach praised the young players."),
    "science": ("Researchers found a new kind of beetle.", "The telescope took a picture of a distant galaxy.", "A new experiment measured the speed of light."),
    "business": ("The company raised its prices again.", "Profits grew by five percent this year.", "The bank opened ten new offices."),
    "culture": ("The museum shows paintings from four centuries.", "The new novel is about two sisters.", "The concert lasted three hours."),
}  # fmt: skip


def classification(rng: Rng) -> Task:
    label = rng.choice(sorted(_SUBJECTS))
    text = rng.choice(_SUBJECTS[label])
    answer = {"category": label, "reason": f"The text is about {label}."}
    if rng.random() < 0.4:
        del answer["reason"]
    return Task(
        f"Which category fits this text: {', '.join(sorted(_SUBJECTS))}? Text: {text}",
        f"The text says: {text} This belongs to {label}.",
        answer,
        {"category": sorted(_SUBJECTS)},
    )


def shopping(rng: Rng) -> Task:
    items = rng.sample(words.FRUITS + words.GOODS, rng.randint(2, 4))
    counts = [rng.randint(1, 12) for _ in items]
    listed = ", ".join(f"{count} {item}" for item, count in zip(items, counts, strict=True))
    rows = [{"name": item, "quantity": count} for item, count in zip(items, counts, strict=True)]
    answer: dict[str, Any] = {"items": rows, "num_items": len(items)}
    if rng.random() < 0.4:
        answer = {"items": items}
    return Task(
        f"{rng.choice(['Make a shopping list from this:', 'Convert this list:', 'I need to buy'])} {listed}.",
        f"There are {len(items)} different things: {', '.join(items)}.",
        answer,
    )


def event(rng: Rng) -> Task:
    kind, city = rng.choice(["concert", "meeting", "workshop", "lecture", "wedding", "fair"]), rng.choice(words.CITIES)
    year, month, day, hour = rng.randint(2023, 2027), rng.randint(1, 12), rng.randint(1, 28), rng.randint(8, 20)
    people = rng.sample(words.FIRST_NAMES, rng.randint(1, 3))
    text = f"The {kind} takes place in {city} on {words.MONTHS[month - 1]} {day}, {year} at {hour}:00. {' and '.join(people)} will be there."
    answer = {
        "event": kind,
        "city": city,
        "date": f"{year}-{month:02d}-{day:02d}",
        "time": f"{hour:02d}:00",
        "participants": people,
    }
    if rng.random() < 0.4:
        del answer["time"]
    return Task(
        f"Extract the event. {text}",
        f"It is a {kind} in {city}. {words.MONTHS[month - 1]} is month {month}, so the date is {year}-{month:02d}-{day:02d}.",
        answer,
    )


def book(rng: Rng) -> Task:
    title = f"The {rng.choice(words.ADJECTIVES).title()} {rng.choice(words.ANIMALS).title()}"
    author, year, pages = (
        f"{rng.choice(words.FIRST_NAMES)} {rng.choice(words.LAST_NAMES)}",
        rng.randint(1950, 2024),
        rng.randint(80, 600),
    )
    text = rng.choice(
        [
            f'"{title}" by {author} was published in {year} and has {pages} pages.',
            f'In {year}, {author} published "{title}", a book of {pages} pages.',
        ]
    )
    answer = {"title": title, "author": author, "year": year, "pages": pages}
    return Task(
        f"{rng.choice(['Catalog this book.', 'Write the data of the book.'])} {text}",
        f"The title is {title}, the author is {author} and the year is {year}.",
        answer,
    )


def compare(rng: Rng) -> Task:
    first, second = rng.sample(words.GADGETS, 2)
    low, high = sorted(rng.sample(range(10, 400, 5), 2))
    prices = {first: low, second: high} if rng.random() < 0.5 else {first: high, second: low}
    cheaper = min(prices, key=lambda item: prices[item])
    answer = {"cheaper": cheaper, "difference": high - low}
    return Task(
        f"The {first} costs ${prices[first]} and the {second} costs ${prices[second]}. Which one is cheaper, and by how much?",
        f"{low} is less than {high}, so the {cheaper} is cheaper. {high} - {low} = {high - low}.",
        answer,
    )


TASKS = (person, person, order, weather, arithmetic, sentiment, classification, shopping, event, book, compare)


def schema_of(task: Task) -> dict[str, Any]:
    """JSON schema of a task's answer: an object, every field required, no others."""
    return _object(task.answer, task.enums)


def _object(value: dict[str, Any], enums: dict[str, list[str]]) -> dict[str, Any]:
    properties = {key: {"enum": enums[key]} if key in enums else _schema(item) for key, item in value.items()}
    return {"type": "object", "properties": properties, "required": list(value), "additionalProperties": False}


def _schema(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return _object(value, {})
    if isinstance(value, list):
        return {"type": "array", "items": _schema(value[0])}
    return {"type": _type_name(value)}


def _type_name(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names[type(value)]


def _format_note(task: Task, rng: Rng) -> str:
    if rng.random() < 0.3:
        return rng.choice(
            ["Answer with a JSON object that matches this schema: ", "Use this JSON schema: "]
        ) + json.dumps(schema_of(task))
    typed = ", ".join(f'"{key}" ({_type_name(value)})' for key, value in task.answer.items())
    plain = ", ".join(f'"{key}"' for key in task.answer)
    return rng.choice(
        [
            f"Answer as a JSON object with the fields {typed}.",
            f"Reply in JSON with the keys {plain}.",
            f"Give the result as JSON with these fields: {typed}.",
            f"Return only JSON with {plain} after your reasoning.",
        ]
    )


def json_turns(rng: Rng) -> list[str]:
    """User and assistant turn of one task."""
    task = rng.choice(TASKS)(rng)
    note = _format_note(task, rng)
    ask = f"{task.instruction}\n{note}" if rng.random() < 0.8 else f"{note}\n{task.instruction}"
    thought = task.thought
    if rng.random() < 0.3:
        thought += " The answer must have the fields " + ", ".join(task.answer) + "."
    return [ask, f"{THINK}{thought}{END_THINK}{json.dumps(task.answer)}"]
