"""Draws words from lists and made-up words; names in the held-out split occur in no training
document."""

from random import Random

from training.corpus.document import Split, in_split

FIRST_NAMES = (
    "Alice Bob Carol Dave Eve Frank Grace Heidi Ivan Judy Karl Laura Nina Oscar Peggy Quinn Rita "
    "Sam Trent Uma Victor Wendy Xavier Yara Zoe Maria Liam Noah Emma Olivia Anna Ben Clara David "
    "Ella Felix Hugo Iris Jack Kate Leo Mia Paul Rosa Tom John Mary Peter Sarah Max"
).split()
CITIES = (
    "Paris London Berlin Tokyo Madrid Rome Oslo Cairo Lima Delhi Boston Chicago Dublin Prague "
    "Vienna Athens Lisbon Moscow Sydney Toronto"
).split()
COLORS = "red blue green yellow black white orange purple pink brown gray gold silver".split()
ANIMALS = (
    "cat dog horse rabbit parrot turtle hamster goat duck fox cow sheep lion tiger bear wolf "
    "mouse frog owl snake"
).split()
FRUITS = (
    "apple banana cherry grape lemon mango melon orange peach pear plum kiwi fig lime papaya"
).split()
VEGETABLES = "carrot potato onion tomato pea bean cabbage spinach leek corn pumpkin garlic".split()
ITEMS = (
    "apples pears books coins cards pens stamps marbles eggs cookies tickets stickers boxes cups "
    "plates stones balls keys flowers candles"
).split()
DAYS = "monday tuesday wednesday thursday friday saturday sunday".split()
MONTHS = (
    "January February March April May June July August September October November December"
).split()
ROOMS = "kitchen bedroom office hall garden bathroom garage attic".split()
LANGUAGES = "french german spanish italian dutch polish greek".split()
JOBS = (
    "teacher doctor nurse pilot sailor baker farmer singer painter driver judge cook writer lawyer "
    "engineer plumber dentist gardener tailor actor librarian miner banker soldier"
).split()
COUNTRIES = {
    "France": "Paris",
    "Germany": "Berlin",
    "Japan": "Tokyo",
    "Spain": "Madrid",
    "Italy": "Rome",
    "Norway": "Oslo",
    "Egypt": "Cairo",
    "Peru": "Lima",
    "Ireland": "Dublin",
    "Austria": "Vienna",
    "Greece": "Athens",
    "Portugal": "Lisbon",
    "Russia": "Moscow",
}
ONSETS = "b c d f g h j k l m n p r s t v w z br dr st tr kl pr sh th gl fl qu x y".split()
VOWELS = "a e i o u a e i o u ai ea ou ee".split()
CODAS = "n r l s t k m d sh th x p".split()
ENDINGS = "er ing ive ance ude le or et um age ish nt st ck ng".split()


def _syllables(rng: Random) -> str:
    word = "".join(rng.choice(ONSETS) + rng.choice(VOWELS) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.2:  # starts like "al-", "en-" or "o-"
        word = rng.choice(VOWELS) + rng.choice(["", *CODAS]) + word
    elif rng.random() < 0.15:  # ends like "-er" or "-ing"
        word += rng.choice(ENDINGS)
    return word + rng.choice(CODAS) if len(word) < 4 or rng.random() < 0.5 else word


def made_up(rng: Random, split: Split) -> str:
    """Draw a pronounceable lower-case word of four letters or more that belongs to ``split``."""
    while True:
        word = _syllables(rng)
        if len(word) > 3 and in_split(word, split):
            return word


def person(rng: Random, split: Split, made_up_share: float = 0.6) -> str:
    """Draw a first name, familiar or made up; held-out documents have made-up names only."""
    if split is Split.HELD_OUT or rng.random() < made_up_share:
        return made_up(rng, split).capitalize()
    return rng.choice(FIRST_NAMES)


def people(
    rng: Random,
    split: Split,
    count: int,
    made_up_share: float = 0.6,
    similar_share: float = 0.0,
) -> list[str]:
    """Draw ``count`` different names, ``similar_share`` of them like one before them."""
    names: dict[str, None] = {}
    while len(names) < count:
        if names and similar_share and rng.random() < similar_share:
            name = similar_name(rng, split, rng.choice(list(names)))
        else:
            name = person(rng, split, made_up_share)
        names[name] = None
    return list(names)


def similar_name(rng: Random, split: Split, name: str) -> str:
    """Return a made-up name that begins or ends as ``name`` does."""
    kept = rng.randint(2, max(2, len(name) - 2))
    while True:
        fresh = _syllables(rng)[: rng.randint(2, 5)]
        word = name[:kept].lower() + fresh if rng.random() < 0.5 else fresh + name[-kept:].lower()
        if len(word) > 3 and word != name.lower() and in_split(word, split):
            return word.capitalize()


def number_of_digits(rng: Random, most: int) -> int:
    """Draw a number with a uniformly chosen count of digits."""
    digits = rng.randint(1, most)
    return rng.randint(0 if digits == 1 else 10 ** (digits - 1), 10**digits - 1)


def clock_time(rng: Random) -> str:
    """Draw a time of day such as ``07:45``."""
    return f"{rng.randint(0, 23):02d}:{rng.choice([0, 5, 10, 15, 20, 30, 40, 45, 50, 55]):02d}"
