"""Word lists that the generated text draws from."""

# ruff: noqa: E501 (lists run on)

from __future__ import annotations


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.replace("\n", " ").split(",") if part.strip())


FIRST_NAMES = _split("""Anna, Ben, Clara, David, Elena, Frank, Grace, Henry, Iris, Jack, Karen, Leo, Maria, Noah, Olivia,
Paul, Rosa, Sam, Tina, Victor, Wendy, Adam, Bella, Carl, Diana, Eric, Fiona, George, Hannah, Ivan, Julia, Kevin, Laura,
Martin, Nina, Oscar, Peter, Rachel, Simon, Teresa, Walter, Alice, Brian, Cora, Daniel, Emma, Felix, Helen, James, Lucy""")
LAST_NAMES = _split("""Baker, Carter, Diaz, Evans, Fischer, Garcia, Hughes, Ito, Jones, Kim, Lopez, Miller, Novak, Olsen,
Patel, Quinn, Rossi, Smith, Taylor, Ueda, Vargas, Weber, Young, Zimmer, Brown, Clark, Davis, Green, Hall, King, Lee""")
CITIES = _split("""London, Paris, Berlin, Madrid, Rome, Vienna, Oslo, Dublin, Lisbon, Prague, Boston, Chicago, Denver,
Seattle, Toronto, Tokyo, Seoul, Sydney, Cairo, Nairobi, Lima, Athens, Geneva, Helsinki, Warsaw, Austin, Portland""")
COUNTRIES = _split("Italy, Japan, Canada, Norway, Spain, Kenya, Peru, India, Greece, Brazil, Ireland, Portugal, Chile")
JOBS = _split("""teacher, nurse, engineer, baker, carpenter, lawyer, farmer, painter, librarian, chemist, pilot, editor,
doctor, gardener, designer, driver, cook, plumber, accountant, photographer, journalist, mechanic""")
COMPANIES = _split("""Northwind Tools, Blue River Books, Green Valley Foods, Sunrise Travel, Harbor Bank, Maple Software,
Stone Bridge Energy, Silver Lake Hotels, Oak Street Bakery, Clear Sky Airlines, Red Barn Farm, Bright Path School""")
MONTHS = _split("January, February, March, April, May, June, July, August, September, October, November, December")
DAYS = _split("Monday, Tuesday, Wednesday, Thursday, Friday, Saturday, Sunday")
FRUITS = _split("apples, pears, oranges, lemons, plums, peaches, bananas, melons, cherries, grapes")
GOODS = _split("""pencils, notebooks, chairs, lamps, cups, plates, shirts, shoes, hats, bottles, candles, books, tickets,
stamps, boxes, bags, toys, clocks, pillows, spoons""")
GADGETS = _split("""laptop, phone, tablet, camera, printer, keyboard, headset, monitor, bicycle, backpack, coffee maker,
desk lamp, watch, tent, guitar, jacket, vacuum cleaner, toaster""")
ANIMALS = _split(
    "fox, owl, bear, rabbit, horse, cat, dog, wolf, goat, turtle, crow, mouse, swan, otter, deer, hedgehog"
)
PLACES = _split("""an old lighthouse, a quiet village, a busy market, a mountain hut, a small library, a train station,
a frozen lake, a dark forest, a narrow street, a garden behind a wall, a fishing port, an empty theater""")
OBJECTS = _split("""a brass key, a torn map, a silver coin, a letter without a name, a broken watch, a blue lantern,
a wooden box, an old photograph, a red scarf, a locked book, a glass bottle, a small drum""")
ADJECTIVES = _split("quiet, bright, brave, gentle, honest, curious, patient, cheerful, clever, proud, careful, kind")
COLORS = _split("red, blue, green, yellow, white, black, brown, purple, orange, gray")
HOBBIES = _split("""reading, hiking, cooking, painting, swimming, gardening, chess, photography, cycling, singing, running,
fishing, drawing, knitting, dancing, camping""")
FOODS = _split("""tomato soup, vegetable curry, apple pie, lentil stew, rice salad, mushroom pasta, pancakes, bean tacos,
potato soup, lemon cake, fish sandwiches, baked carrots""")
AUDIENCES = _split(
    "a child, a beginner, a student, a new colleague, a ten-year-old, someone without a technical background"
)
GOALS = _split("""sleep better, save money, learn a language, stay healthy, read more books, prepare for an exam,
work from home, make new friends, write clearly, speak in public, keep a garden, use less energy, plan a trip,
stay calm, organize a small office, learn to cook, reduce stress, start a small business, manage a team, eat well""")
ADVICE = {
    "time": (
        "Plan a fixed time for it every day.",
        "Write down a simple weekly plan.",
        "Begin early and avoid haste.",
        "Set a clear limit for screens.",
        "Do the hardest part in the morning.",
        "Take a short break every hour.",
    ),
    "habit": (
        "Start with small steps.",
        "Keep a short record of your progress.",
        "Repeat it until it becomes a habit.",
        "Remove things that distract you.",
        "Change one thing at a time.",
        "Celebrate small results.",
    ),
    "people": (
        "Ask a friend to join you.",
        "Talk with someone who has experience.",
        "Share your goal with your family.",
        "Listen more than you speak.",
        "Ask for honest feedback.",
        "Thank the people who help you.",
    ),
    "means": (
        "Choose good tools and keep them ready.",
        "Read a good book about the subject.",
        "Compare a few options first.",
        "Keep the costs low at the start.",
        "Make a list of what you need.",
        "Prepare everything the evening before.",
    ),
    "mind": (
        "Be patient with yourself.",
        "Rest when you are tired.",
        "Expect some mistakes and learn from them.",
        "Remember why you began.",
        "Breathe slowly when it gets hard.",
        "Keep a positive attitude.",
    ),
}
