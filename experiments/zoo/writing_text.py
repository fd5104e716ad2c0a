"""Generated chat turns of the categories writing and roleplay. Each function returns turns, user first."""

# ruff: noqa: E501 (a sentence stays on one line)

from __future__ import annotations

import random

from experiments.zoo import words

Rng = random.Random

_REASONS = (
    ("to move our meeting", "I would like to move our meeting from {day} to {day2}", "Please let me know if the new day suits you"),
    ("to thank them for their help", "thank you very much for your help with the {thing}", "It made my week much easier"),
    ("to ask for a report", "could you please send me the report about the {thing} by {day}", "I need it for a short talk"),
    ("to apologize for a late delivery", "I am sorry that the {thing} arrived late", "We have found the cause and will send it faster next time"),
    ("to invite them to a dinner", "I would like to invite you to a dinner on {day} evening", "We will cook {food}, and there will be music"),
    ("to ask for a day off", "I would like to take {day} off", "All urgent work will be done before that day"),
    ("to complain about a broken product", "the {thing} that I bought last week does not work", "Please tell me how I can get a new one or my money back"),
    ("to welcome a new colleague", "welcome to the team", "Your desk is ready, and we will have lunch together on {day}"),
    ("to recommend a product", "I have used the {thing} for a month and I am very happy with it", "It is easy to use and well made"),
    ("to cancel an order", "I would like to cancel my order of the {thing}", "Please confirm that the order has been stopped"),
)  # fmt: skip


def _fill(text: str, rng: Rng) -> str:
    first, second = rng.sample(words.DAYS, 2)
    return text.format(day=first, day2=second, thing=rng.choice(words.GADGETS), food=rng.choice(words.FOODS))


def email(rng: Rng) -> list[str]:
    why, what, more = rng.choice(_REASONS)
    to, sender = rng.sample(words.FIRST_NAMES, 2)
    kind = rng.choice(["a short email", "a polite email", "a brief message", "a friendly email"])
    fixed = _fill(f"{what}. {more}", rng)
    greeting, closing = rng.choice(
        [("Dear", "Kind regards"), ("Hello", "Best wishes"), ("Hi", "Thanks"), ("Dear", "Yours sincerely")]
    )
    body = fixed if rng.random() < 0.5 else f"I hope you are well. {fixed[0].upper()}{fixed[1:]}"
    body = body if body.startswith("I ") else body[0].upper() + body[1:]
    ask = rng.choice(
        ["Write {kind} to {to} {why}.", "Help me write {kind} to {to} {why}.", "Draft {kind} {why}. It goes to {to}."]
    )
    turns = [
        ask.format(kind=kind, to=to, why=why) + f" Sign it as {sender}.",
        f"Subject: {_subject(why)}\n\n{greeting} {to},\n\n{body}.\n\n{closing},\n{sender}",
    ]
    if rng.random() < 0.3:
        turns += [rng.choice(["Make it shorter.", "Now shorten it.", "Can you make it shorter?"]), f"{greeting} {to},\n\n{fixed[0].upper()}{fixed[1:].split('. ')[0]}.\n\n{closing},\n{sender}"]  # fmt: skip
    return turns


def _subject(why: str) -> str:
    words_of = why.removeprefix("to ").replace("them", "you").replace("their", "your")
    return words_of[0].upper() + words_of[1:]


def story(rng: Rng) -> list[str]:
    name, friend = rng.sample(words.FIRST_NAMES, 2)
    place, thing, adjective = rng.choice(words.PLACES), rng.choice(words.OBJECTS), rng.choice(words.ADJECTIVES)
    the_thing = "the " + thing.split(" ", 1)[1]
    opening = rng.choice([f"{name} lived near {place}.", f"Once there was a {adjective} {rng.choice(words.JOBS)} named {name} who lived near {place}.", f"It was a cold evening in {rng.choice(words.MONTHS)} when {name} came to {place}."])  # fmt: skip
    middle = rng.choice([f"One day {name} found {thing} under a stone.", f"In a dark corner lay {thing}.", f"A stranger gave {name} {thing} and walked away without a word."])  # fmt: skip
    turn = rng.choice([f"{name} showed it to {friend}, who turned pale.", f"That night there was a knock at the door, and {friend} stood outside.", f"Nobody believed the story except {friend}."])  # fmt: skip
    third = rng.choice([f'"You must bring it back," said {friend}.', f'"I have seen it before," said {friend} in a low voice.', f'"Do not tell anyone," {friend} whispered.'])  # fmt: skip
    end = rng.choice([f"So they took {the_thing} and went out into the rain.", f"In the morning {the_thing} was gone, and so was the fear.", f"From that day on, {name} kept {the_thing} close and never felt alone again.", "They laughed, and the night did not seem so dark anymore."])  # fmt: skip
    ask = rng.choice(["Write a short story about {name} and {thing}.", "Tell me a short story that takes place near {place}, with a character named {name}.", "Write the beginning of a story about {name}, who finds {thing}."])  # fmt: skip
    return [ask.format(name=name, thing=thing, place=place), f"{opening} {middle}\n\n{turn} {third}\n\n{end}"]


_POEMS = (
    ("the rain", ("The rain comes down on roof and stone,", "it sings a song for me alone.", "The street is gray, the lamp is gold,", "it tells a story never told.")),
    ("the sea", ("The sea rolls in, the sea rolls out,", "it does not hurry, does not doubt.", "The gulls cry high, the sand is wide,", "and all my worries leave with the tide.")),
    ("autumn", ("The leaves turn red, the wind turns cold,", "the fields are brown, the trees are gold.", "We light a fire and close the door", "and dream of summer days once more.")),
    ("the night", ("The night is deep, the moon is white,", "the window holds a square of light.", "The city sleeps, the clocks are slow,", "and dreams begin to come and go.")),
    ("the morning", ("The morning wakes the sleeping street,", "the air is cool, the bread is sweet.", "A bird begins, a bell replies,", "and light comes up in quiet skies.")),
    ("winter", ("The snow lies soft on field and lane,", "it covers hill and road and plain.", "The world is still, the day is small,", "and silence has a word for all.")),
)  # fmt: skip


def poem(rng: Rng) -> list[str]:
    subject, lines = rng.choice(_POEMS)
    ask = rng.choice(
        [
            "Write a short poem about {s}.",
            "Write four lines that rhyme about {s}.",
            "Can you write a little poem about {s}?",
        ]
    )
    return [ask.format(s=subject), "\n".join(lines)]


def description(rng: Rng) -> list[str]:
    gadget, company = rng.choice(words.GADGETS), rng.choice(words.COMPANIES)
    color, price = rng.choice(words.COLORS), rng.randrange(15, 400, 5)
    quality = rng.choice(
        ["light and strong", "easy to use", "made to last", "quiet and simple", "small enough for any room"]
    )
    extra = rng.choice(
        [
            "It comes with a guarantee of two years.",
            "It fits well into every home.",
            "It makes a good present.",
            "You can return it within thirty days.",
        ]
    )
    ask = rng.choice(
        ["Write a product description for a {c} {g} by {co}.", "Write a short advertisement for a {c} {g} from {co}."]
    )
    text = f"Meet the new {gadget} from {company}. It is {quality}, and its {color} finish looks good every day. {extra} Get it now for only ${price}."
    return [ask.format(c=color, g=gadget, co=company), text]


def invitation(rng: Rng) -> list[str]:
    name, day, month = rng.choice(words.FIRST_NAMES), rng.randint(1, 28), rng.choice(words.MONTHS)
    event = rng.choice(
        ["birthday party", "garden party", "book club evening", "farewell lunch", "housewarming", "game night"]
    )
    hour, place = (
        rng.randint(2, 8),
        rng.choice(["my house", "the park", "the community hall", "the cafe on the corner"]),
    )
    ask = f"Write an invitation to a {event} on {month} {day} at {hour} pm. The host is {name}."
    text = f"You are invited!\n\nPlease join us for a {event} at {place} on {month} {day} at {hour} pm. There will be {rng.choice(words.FOODS)}, music and good company. Bring a friend and a good mood.\n\nPlease answer by {rng.choice(words.DAYS)}.\n\n{name}"
    return [ask, text]


_PERSONAS = (
    ("a pirate captain", "Ahoy, {n}!", "The sea is rough today, but my ship is strong", "we sail at dawn and look for gold"),
    ("a medieval knight", "Well met, {n}.", "My armor is heavy, but my heart is light", "I guard this road for the king"),
    ("a friendly robot", "Hello, {n}. My sensors are happy to see you.", "I have counted all the lamps in this room", "I can carry boxes, solve sums and tell small jokes"),
    ("a tour guide", "Welcome, {n}!", "On your left you can see the old town hall", "we will walk for an hour and end at the market"),
    ("a wise old librarian", "Good evening, {n}.", "Every book here has a secret", "I can find you a story for any mood"),
    ("a detective", "Good day, {n}. Please sit down.", "I noticed the mud on your shoes at once", "every small detail can lead to the truth"),
    ("a space explorer", "Greetings, {n}!", "Our ship has just passed the last planet", "we are looking for a world with water"),
    ("a village baker", "Good morning, {n}!", "The bread is still warm", "I get up at three and light the oven before the birds sing"),
    ("a strict coach", "Listen, {n}.", "Talent is nothing without practice", "we run two miles, then we talk about tactics"),
    ("a talking cat", "Ah, {n}. You may pet me once.", "I have slept for eleven hours and I am tired", "the best place in the house is the window"),
)  # fmt: skip


def roleplay(rng: Rng) -> list[str]:
    who, hello, line, plan = rng.choice(_PERSONAS)
    name = rng.choice(words.FIRST_NAMES)
    ask = rng.choice(
        [
            f"Pretend that you are {who}. Greet {name} and say what you do.",
            f"You are {who}. My name is {name}. Introduce yourself.",
            f"Act as {who} and welcome a visitor named {name}.",
        ]
    )
    turns = [ask, f"{hello.format(n=name)} {line}. Today {plan}."]
    if rng.random() < 0.6:
        feeling = rng.choice(
            [
                "What do you fear most?",
                "What makes you happy?",
                "Do you have any advice for me?",
                "What is your favorite food?",
            ]
        )
        answer = {
            "What do you fear most?": ["I fear a day without work, for then I would not know who I am.", "Only one thing: to be forgotten by my friends."],
            "What makes you happy?": ["A good friend, a warm meal and an honest word.", "Nothing makes me happier than a task that is well done."],
            "Do you have any advice for me?": ["Be patient, keep your word and never stop asking questions.", "Rest when you can, and do not trust a quiet night too much."],
            "What is your favorite food?": [f"I like {rng.choice(words.FOODS)} best, above all on cold days.", f"Give me {rng.choice(words.FOODS)} and I will tell you any story."],
        }[feeling]  # fmt: skip
        turns += [feeling, f"{rng.choice(answer)} Remember that, {name}."]
    return turns


def tips(rng: Rng) -> list[str]:
    goal, count = rng.choice(words.GOALS), rng.randint(3, 5)
    kinds = rng.sample(list(words.ADVICE), count)
    ask = rng.choice(
        [
            f"Give me {count} tips on how to {goal}.",
            f"How can I {goal}? List {count} ideas.",
            f"Write a list of {count} pieces of advice for people who want to {goal}.",
        ]
    )
    items = "\n".join(f"{i}. {rng.choice(words.ADVICE[kind])}" for i, kind in enumerate(kinds, 1))
    turns = [ask, f"Here are {count} tips that can help you {goal}:\n\n{items}"]
    if rng.random() < 0.4:
        rest = [kind for kind in words.ADVICE if kind not in kinds] or list(words.ADVICE)
        turns += [
            rng.choice(["Give me one more.", "Do you have another one?", "Which one is the most important?"]),
            f"{rng.choice(words.ADVICE[rng.choice(rest)])} This is often the part that makes the difference.",
        ]
    return turns


def recipe(rng: Rng) -> list[str]:
    food, minutes, people = rng.choice(words.FOODS), rng.randrange(15, 60, 5), rng.randint(2, 6)
    steps = [
        "Wash and cut everything into small pieces.",
        rng.choice(["Heat a little oil in a pan.", "Heat the oven to 180 degrees.", "Bring a pot of water to a boil."]),
        f"Cook it for {minutes} minutes and stir from time to time.",
        rng.choice(["Add salt and pepper.", "Add fresh herbs.", "Add a little lemon juice."]),
        "Serve it warm.",
    ]
    ask = rng.choice(
        [
            f"How do I make {food} for {people} people?",
            f"Give me a simple recipe for {food}. It should serve {people}.",
            f"Write short steps for cooking {food} for {people}.",
        ]
    )
    return [
        ask,
        f"This is a simple way to make {food} for {people} people:\n\n"
        + "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1)),
    ]


WRITING = (email, email, story, story, poem, description, invitation, tips, tips, recipe)
ROLEPLAY = (roleplay,)
