"""Generated chat turns of the categories math, reasoning and extraction. Each function returns turns, user first."""

# ruff: noqa: E501 (a sentence stays on one line)

from __future__ import annotations

import random

from experiments.zoo import words

Rng = random.Random


def _number(value: float) -> str:
    return f"{value:.2f}".rstrip("0").rstrip(".")


def arithmetic(rng: Rng) -> list[str]:
    a, b, c = rng.randint(3, 99), rng.randint(2, 60), rng.randint(2, 12)
    kind = rng.randrange(4)
    if kind == 0:
        question, answer = f"{a} + {b}", f"{a} + {b} = {a + b}"
    elif kind == 1:
        question, answer = f"{a + b} - {b}", f"{a + b} - {b} = {a}"
    elif kind == 2:
        question, answer = f"{a} * {c}", f"{a} * {c} = {a * c}"
    else:
        question, answer = f"({a} + {b}) * {c}", f"{a} + {b} = {a + b}\n{a + b} * {c} = {(a + b) * c}"
    result = answer.rsplit("= ", 1)[1]
    ask = rng.choice(["What is {q}?", "Compute {q}.", "Calculate {q} and show the steps.", "Solve {q} step by step."])
    turns = [ask.format(q=question), f"{answer}\n\nThe answer is {result}."]
    if rng.random() < 0.35:
        more = rng.randint(2, 9)
        turns += [
            f"Now multiply the result by {more}.",
            f"{result} * {more} = {int(result) * more}\n\nThe answer is {int(result) * more}.",
        ]
    return turns


def word_problem(rng: Rng) -> list[str]:
    name, goods = rng.choice(words.FIRST_NAMES), rng.choice(words.GOODS + words.FRUITS)
    count, price = rng.randint(3, 20), rng.randint(2, 15)
    given = count * price + rng.randint(1, 40)
    kind = rng.randrange(3)
    if kind == 0:
        ask = f"{name} buys {count} {goods}. Each of them costs ${price}. {name} pays with ${given}. How much change does {name} get?"
        steps = f"The {goods} cost {count} * {price} = {count * price} dollars.\nThe change is {given} - {count * price} = {given - count * price} dollars."
        answer = given - count * price
    elif kind == 1:
        boxes = rng.randint(2, 9)
        ask = f"There are {boxes} boxes with {count} {goods} in each. {name} takes out {price}. How many {goods} are left?"
        steps = f"There are {boxes} * {count} = {boxes * count} {goods} at first.\nAfter that, {boxes * count} - {price} = {boxes * count - price} are left."
        answer = boxes * count - price
    else:
        speed, hours = rng.randrange(20, 100, 5), rng.randint(2, 8)
        ask = f"{name} drives at {speed} miles per hour for {hours} hours. How far does {name} drive?"
        steps = f"Distance is speed times time.\n{speed} * {hours} = {speed * hours} miles."
        answer = speed * hours
    ask += rng.choice(["", " Explain your steps.", " Think step by step."])
    return [ask, f"{steps}\nThe answer is {answer}."]


_UNITS = (
    ("kilometers", "meters", 1000), ("meters", "centimeters", 100), ("hours", "minutes", 60), ("minutes", "seconds", 60),
    ("kilograms", "grams", 1000), ("feet", "inches", 12), ("yards", "feet", 3), ("weeks", "days", 7), ("days", "hours", 24),
    ("liters", "milliliters", 1000), ("dollars", "cents", 100), ("dozens", "pieces", 12),
)  # fmt: skip


def conversion(rng: Rng) -> list[str]:
    large, small, factor = rng.choice(_UNITS)
    value = rng.randint(2, 40)
    ask = rng.choice(
        [
            f"Convert {value} {large} to {small}.",
            f"How many {small} are {value} {large}?",
            f"What is {value} {large} in {small}?",
        ]
    )
    return [
        ask,
        f"There are {factor} {small} in one of the {large}. So {value} * {factor} = {value * factor}.\n\n{value} {large} are {value * factor} {small}.",
    ]


def equation(rng: Rng) -> list[str]:
    x, a, b = rng.randint(1, 20), rng.randint(2, 9), rng.randint(1, 30)
    ask = rng.choice(["Solve {e} for x.", "If {e}, what is x?", "Find x: {e}."])
    text = (
        f"We subtract {b} from both sides: {a}x = {a * x}.\nThen we divide by {a}: x = {x}.\n\nThe answer is x = {x}."
    )
    return [ask.format(e=f"{a}x + {b} = {a * x + b}"), text]


def percent(rng: Rng) -> list[str]:
    part, whole = rng.choice([5, 10, 15, 20, 25, 30, 40, 50, 75]), rng.randrange(20, 400, 20)
    value = _number(part * whole / 100)
    ask = rng.choice(
        [
            f"What is {part}% of {whole}?",
            f"A {rng.choice(words.GADGETS)} costs ${whole}. It is sold with a discount of {part}%. How large is the discount?",
        ]
    )
    return [ask, f"{part}% means {part} out of 100.\n{whole} * {part} / 100 = {value}\n\nThe answer is {value}."]


def area(rng: Rng) -> list[str]:
    a, b = rng.randint(2, 30), rng.randint(2, 30)
    ask = f"A {rng.choice(['garden', 'room', 'field', 'table', 'wall'])} is {a} meters long and {b} meters wide. What are its area and its perimeter?"
    return [
        ask,
        f"The area is length times width: {a} * {b} = {a * b} square meters.\nThe perimeter is 2 * ({a} + {b}) = {2 * (a + b)} meters.",
    ]


def mean(rng: Rng) -> list[str]:
    values = [rng.randint(1, 30) for _ in range(rng.randint(3, 5))]
    listed = ", ".join(map(str, values))
    total = sum(values)
    text = f"The sum is {' + '.join(map(str, values))} = {total}.\nThere are {len(values)} numbers, and {total} / {len(values)} = {_number(total / len(values))}."
    return [
        rng.choice([f"What is the average of {listed}?", f"Find the mean of these numbers: {listed}."]),
        f"{text}\n\nThe average is {_number(total / len(values))}.",
    ]


def order(rng: Rng) -> list[str]:
    first, second, third = rng.sample(words.FIRST_NAMES, 3)
    more, most, least = rng.choice(
        [
            ("taller", "tallest", "shortest"),
            ("older", "oldest", "youngest"),
            ("faster", "fastest", "slowest"),
            ("stronger", "strongest", "weakest"),
        ]
    )
    facts = [f"{first} is {more} than {second}.", f"{second} is {more} than {third}."]
    rng.shuffle(facts)
    ask_most = rng.random() < 0.5
    name = first if ask_most else third
    question = f"Who is the {most if ask_most else least}?"
    text = f"{first} is {more} than {second}, and {second} is {more} than {third}. So the order is {first}, {second}, {third}.\n\n{name} is the {most if ask_most else least}."
    turns = [f"{' '.join(facts)} {question}", text]
    if rng.random() < 0.3:
        turns += [
            "And who is in the middle?",
            f"{second} is in the middle, because {second} comes between {first} and {third}.",
        ]
    return turns


def days(rng: Rng) -> list[str]:
    start, shift = rng.randrange(7), rng.randint(2, 20)
    end = words.DAYS[(start + shift) % 7]
    text = f"A week has seven days. {shift} days are {shift // 7} weeks and {shift % 7} days. {shift % 7} days after {words.DAYS[start]} is {end}."
    return [f"Today is {words.DAYS[start]}. What day will it be in {shift} days?", f"{text}\n\nThe answer is {end}."]


_GROUPS = {
    "fruit": words.FRUITS, "colors": words.COLORS, "animals": words.ANIMALS, "cities": words.CITIES, "days": words.DAYS,
    "jobs": words.JOBS, "countries": words.COUNTRIES, "months": words.MONTHS,
}  # fmt: skip


def odd_one_out(rng: Rng) -> list[str]:
    group, other = rng.sample(sorted(_GROUPS), 2)
    items = [*rng.sample(_GROUPS[group], 3), rng.choice(_GROUPS[other])]
    odd = items[-1]
    rng.shuffle(items)
    ask = rng.choice(["Which word does not belong: {i}?", "Find the odd one out: {i}."])
    return [
        ask.format(i=", ".join(items)),
        f"The words belong to the group {group}, except one. {odd} belongs to the group {other}.\n\nThe odd one out is {odd}.",
    ]


def sequence(rng: Rng) -> list[str]:
    start, step = rng.randint(1, 20), rng.randint(2, 9)
    if rng.random() < 0.7:
        terms, rule = [start + i * step for i in range(6)], f"Each number is {step} more than the one before."
    else:
        terms, rule = [start * 2**i for i in range(6)], "Each number is twice the one before."
    shown = ", ".join(map(str, terms[:5]))
    return [
        rng.choice([f"What comes next: {shown}?", f"Continue the sequence {shown}."]),
        f"{rule} So the next number is {terms[5]}.",
    ]


def extraction(rng: Rng) -> list[str]:
    name, last, city = rng.choice(words.FIRST_NAMES), rng.choice(words.LAST_NAMES), rng.choice(words.CITIES)
    job, company = rng.choice(words.JOBS), rng.choice(words.COMPANIES)
    month, day, year = rng.choice(words.MONTHS), rng.randint(1, 28), rng.randint(1985, 2024)
    text = rng.choice(
        [
            f"{name} {last} joined {company} in {city} as a {job} on {month} {day}, {year}.",
            f"On {month} {day}, {year}, {company} hired {name} {last} as a {job} for its office in {city}.",
        ]
    )
    fields = {"Name": f"{name} {last}", "Company": company, "City": city, "Job": job, "Date": f"{month} {day}, {year}"}
    keys = rng.sample(sorted(fields), rng.randint(2, 5))
    ask = rng.choice(
        ["Extract the following from the text: {k}.", "Read the text and list {k}.", "Find {k} in this sentence."]
    )
    return [
        f"{ask.format(k=', '.join(key.lower() for key in keys))}\n\n{text}",
        "\n".join(f"{key}: {fields[key]}" for key in keys),
    ]


def prices(rng: Rng) -> list[str]:
    items = rng.sample(words.GADGETS, 3)
    costs = rng.sample(range(10, 300, 5), 3)
    text = "; ".join(f"the {item} costs ${cost}" for item, cost in zip(items, costs, strict=True))
    rows = "\n".join(f"{item},{cost}" for item, cost in zip(items, costs, strict=True))
    best = min(zip(costs, items, strict=True))
    turns = [f"Turn this into a CSV table with the columns item and price: {text}.", f"item,price\n{rows}"]
    if rng.random() < 0.5:
        turns += ["Which item is the cheapest?", f"The cheapest item is the {best[1]}. It costs ${best[0]}."]
    return turns


def names_in_text(rng: Rng) -> list[str]:
    people, city = rng.sample(words.FIRST_NAMES, 3), rng.choice(words.CITIES)
    text = rng.choice(
        [
            f"{people[0]} met {people[1]} in {city}, where {people[2]} was waiting with the tickets.",
            f"In {city}, {people[0]} and {people[1]} talked about {rng.choice(words.HOBBIES)} while {people[2]} listened.",
        ]
    )
    kind = rng.choice(["names of people", "people"])
    return [f"List all {kind} in this text as bullet points: {text}", "\n".join(f"- {name}" for name in people)]


MATH = (arithmetic, arithmetic, word_problem, word_problem, conversion, equation, percent, area, mean)
REASONING = (order, days, odd_one_out, sequence, order)
EXTRACTION = (extraction, extraction, prices, names_in_text)
