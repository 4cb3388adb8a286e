"""Lists the functions that the model knows by name: signatures, natural requests and tool
results."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from training.corpus.document import Split
from training.corpus.words import (
    ANIMALS,
    CITIES,
    COLORS,
    DAYS,
    FRUITS,
    ITEMS,
    LANGUAGES,
    ROOMS,
    clock_time,
    made_up,
    person,
)

Value = str | int | float | bool
Arguments = dict[str, Value]


@dataclass(frozen=True, slots=True)
class Parameter:
    """One parameter; ``choices`` makes it an enumeration."""

    name: str
    type: str = "string"
    choices: tuple[str, ...] = ()
    required: bool = True

    def render(self) -> str:
        kind = "|".join(f'"{choice}"' for choice in self.choices) or self.type
        return f"{self.name}{'' if self.required else '?'}: {kind}"


@dataclass(frozen=True, slots=True)
class Function:
    """A function as the system turn lists it."""

    name: str
    parameters: tuple[Parameter, ...]

    def render(self) -> str:
        return f"{self.name}({', '.join(p.render() for p in self.parameters)})"


@dataclass(frozen=True, slots=True)
class KnownFunction:
    """A function with its own ways of being asked for.

    ``reply`` turns the arguments into a tool result and the sentence that reports it.
    """

    function: Function
    arguments: Callable[[Random, Split], Arguments]
    requests: tuple[str, ...]
    reply: Callable[[Random, Arguments], tuple[Mapping[str, Value], str]]


def _place(rng: Random, split: Split) -> str:
    return rng.choice(CITIES) if rng.random() < 0.4 else made_up(rng, split).capitalize()


def _label(rng: Random, split: Split) -> str:
    plain = "work gym school lunch dentist party meeting doctor shopping training".split()
    return rng.choice(plain) if rng.random() < 0.4 else made_up(rng, split)


def _message(rng: Random, split: Split) -> str:
    plain = (
        "I am late",
        "see you soon",
        "call me",
        "thank you",
        "happy birthday",
        "the meeting is at " + clock_time(rng),
        "I will be there at " + clock_time(rng),
        "please buy " + rng.choice(FRUITS),
        "where are you",
        "bring the " + made_up(rng, split),
    )
    return rng.choice(plain)


def _done(text: str) -> Callable[[Random, Arguments], tuple[Mapping[str, Value], str]]:
    return lambda _, arguments: ({"status": "ok"}, text.format(**arguments))


def _weather(rng: Random, arguments: Arguments) -> tuple[Mapping[str, Value], str]:
    degrees, sky = rng.randint(-10, 99), rng.choice(["sunny", "rainy", "cloudy", "windy"])
    result: dict[str, Value] = {"temperature": degrees, "conditions": sky}
    return result, f"It is {degrees} degrees and {sky} in {arguments['city']}."


def _price(rng: Random, arguments: Arguments) -> tuple[Mapping[str, Value], str]:
    price = rng.randint(1, 999)
    return {"price": price}, f"The price of {arguments['symbol']} is {price}."


def _hits(rng: Random, arguments: Arguments) -> tuple[Mapping[str, Value], str]:
    count = rng.randint(0, 99)
    return {"count": count}, f"I found {count} results for {arguments['query']}."


def _translated(rng: Random, arguments: Arguments) -> tuple[Mapping[str, Value], str]:
    word = made_up(rng, Split.TRAIN)
    text = f"{arguments['word']} is {word} in {arguments['language']}."
    return {"translation": word}, text[0].upper() + text[1:]


def _time(rng: Random, arguments: Arguments) -> tuple[Mapping[str, Value], str]:
    time = clock_time(rng)
    return {"time": time}, f"It is {time} in {arguments['city']}."


def _sum(rng: Random, arguments: Arguments) -> tuple[Mapping[str, Value], str]:
    value = rng.randint(0, 99999)
    return {"result": value}, f"The result is {value}."


def _function(name: str, *parameters: Parameter) -> Function:
    return Function(name, parameters)


_UNIT = ("celsius", "fahrenheit")
KNOWN_FUNCTIONS: tuple[KnownFunction, ...] = (
    KnownFunction(
        _function("get_weather", Parameter("city"), Parameter("unit", choices=_UNIT)),
        lambda r, s: {"city": _place(r, s), "unit": r.choice(_UNIT)},
        (
            "What is the weather in {city} in {unit}?",
            "Weather for {city}, {unit} please.",
            "Tell me the {unit} temperature in {city}.",
            "How warm is it in {city}? Use {unit}.",
        ),
        _weather,
    ),
    KnownFunction(
        _function("get_weather", Parameter("city")),
        lambda r, s: {"city": _place(r, s)},
        (
            "What is the weather in {city}?",
            "What's the weather like in {city}?",
            "How is the weather in {city} today?",
            "Weather in {city}",
            "Is it raining in {city}?",
        ),
        _weather,
    ),
    KnownFunction(
        _function("get_time", Parameter("city")),
        lambda r, s: {"city": _place(r, s)},
        ("What time is it in {city}?", "Tell me the time in {city}.", "Current time in {city}?"),
        _time,
    ),
    KnownFunction(
        _function("set_alarm", Parameter("time"), Parameter("label", required=False)),
        lambda r, s: {"time": clock_time(r), "label": _label(r, s)},
        (
            "Set an alarm for {time} called {label}.",
            "Wake me at {time} for {label}.",
            "I need an alarm at {time}, label it {label}.",
        ),
        _done("I set the alarm for {time}."),
    ),
    KnownFunction(
        _function("set_alarm", Parameter("time"), Parameter("label", required=False)),
        lambda r, s: {"time": clock_time(r)},
        ("Set an alarm for {time}.", "Wake me at {time}.", "Wake me up at {time} please."),
        _done("I set the alarm for {time}."),
    ),
    KnownFunction(
        _function("send_message", Parameter("to"), Parameter("text")),
        lambda r, s: {"to": person(r, s), "text": _message(r, s)},
        (
            "Send {to} a message saying {text}.",
            "Tell {to}: {text}",
            "Send a message to {to}: {text}",
            "Text {to} that {text}.",
        ),
        _done("I sent the message to {to}."),
    ),
    KnownFunction(
        _function(
            "book_table",
            Parameter("restaurant"),
            Parameter("people", "integer"),
            Parameter("time"),
        ),
        lambda r, s: {
            "restaurant": made_up(r, s).capitalize(),
            "people": r.randint(1, 12),
            "time": clock_time(r),
        },
        (
            "Book a table for {people} at {restaurant} at {time}.",
            "Reserve {restaurant} for {people} people, {time}.",
            "I want a table at {restaurant} at {time} for {people} people.",
        ),
        _done("I booked a table for {people} at {restaurant}."),
    ),
    KnownFunction(
        _function("add_event", Parameter("title"), Parameter("day"), Parameter("hour", "integer")),
        lambda r, s: {"title": _label(r, s), "day": r.choice(DAYS), "hour": r.randint(0, 23)},
        (
            "Add {title} on {day} at {hour}.",
            "Put {title} in my calendar for {day} {hour} o'clock.",
            "Schedule {title} for {day} at {hour}.",
        ),
        _done("I added {title} on {day} at {hour}."),
    ),
    KnownFunction(
        _function("play_song", Parameter("title"), Parameter("volume", "integer")),
        lambda r, s: {"title": f"{made_up(r, s)} {r.choice(COLORS)}", "volume": r.randint(0, 100)},
        (
            "Play {title} at volume {volume}.",
            "I want to hear {title}, volume {volume}.",
            "Put on {title} with volume {volume}.",
        ),
        _done("Now playing {title}."),
    ),
    KnownFunction(
        _function("transfer", Parameter("amount", "integer"), Parameter("account", "integer")),
        lambda r, _: {"amount": r.randint(1, 9999), "account": r.randint(10000, 99999)},
        (
            "Transfer {amount} dollars to account {account}.",
            "Move {amount} to {account}.",
            "Pay {amount} to account {account}.",
        ),
        _done("I sent {amount} to account {account}."),
    ),
    KnownFunction(
        _function("search", Parameter("query"), Parameter("limit", "integer", required=False)),
        lambda r, s: {
            "query": f"{r.choice(COLORS)} {r.choice((*ANIMALS, *ITEMS, made_up(r, s)))}",
            "limit": r.randint(1, 50),
        },
        ("Search for {query}, show {limit} results.", "Find {limit} results about {query}."),
        _hits,
    ),
    KnownFunction(
        _function("search", Parameter("query"), Parameter("limit", "integer", required=False)),
        lambda r, s: {"query": f"{r.choice((*COLORS, made_up(r, s)))} {r.choice(ITEMS)}"},
        ("Search for {query}.", "Look for {query}", "Find {query}.", "Search the web for {query}"),
        _hits,
    ),
    KnownFunction(
        _function(
            "set_light", Parameter("room"), Parameter("color"), Parameter("level", "integer")
        ),
        lambda r, _: {
            "room": r.choice(ROOMS),
            "color": r.choice(COLORS),
            "level": r.randint(0, 100),
        },
        (
            "Make the {room} light {color} at {level} percent.",
            "Set {room} lights to {color}, {level}.",
        ),
        _done("The {room} light is {color} now."),
    ),
    KnownFunction(
        _function("translate", Parameter("word"), Parameter("language")),
        lambda r, s: {
            "word": r.choice((*ANIMALS, *COLORS, made_up(r, s), made_up(r, s))),
            "language": r.choice(LANGUAGES),
        },
        ("Translate {word} into {language}.", "How do you say {word} in {language}?"),
        _translated,
    ),
    KnownFunction(
        _function("get_price", Parameter("symbol")),
        lambda r, s: {"symbol": made_up(r, s).upper()[:5]},
        ("What is the price of {symbol}?", "Price of {symbol}?", "How much does {symbol} cost?"),
        _price,
    ),
    KnownFunction(
        _function("add", Parameter("a", "integer"), Parameter("b", "integer")),
        lambda r, _: {"a": r.randint(0, 9999), "b": r.randint(0, 9999)},
        ("Use the tool to add {a} and {b}.", "Add {a} and {b} with the tool.", "Add {a} to {b}."),
        _sum,
    ),
)
