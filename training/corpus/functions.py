"""Draws function calls against signatures in the system turn, with the tool's result and the reply.

Half of the functions are invented for one document: verbs, nouns and parameters from word lists or
made up.  The held-out split invents them from other lists, so their names occur in no training
document.
"""

import json
from random import Random

from training.corpus import arithmetic, chat
from training.corpus.document import (
    TOOL,
    USER,
    Document,
    Segment,
    Split,
    asked,
    call_text,
    in_split,
    said,
    system_turn,
    turn,
)
from training.corpus.function_catalog import (
    KNOWN_FUNCTIONS,
    Arguments,
    Function,
    KnownFunction,
    Parameter,
    Value,
)
from training.corpus.words import CITIES, COLORS, ITEMS, made_up, person

SYSTEM_TEXTS = ("", "", "You are a helpful assistant.", "Call a function when it helps.")
_VERBS = {
    Split.TRAIN: (
        "reserve open close start stop create delete update list read write move copy rename "
        "order cancel check count print scan paint build clean lock unlock invite remind measure "
        "store load sell rent repair plan draw record show hide merge split rate review"
    ).split(),
    Split.HELD_OUT: "launch archive polish harvest summon deliver inspect convert register".split(),
}
_NOUNS = {
    Split.TRAIN: (
        "boat door file folder car room ticket order task note photo page report user group team "
        "product invoice garden window machine robot lamp camera shelf parcel letter contract "
        "project customer lesson course song movie bike house table list item account shop"
    ).split(),
    Split.HELD_OUT: "rocket museum violin carpet engine tunnel lantern basket harbor".split(),
}
_PARAMETERS = {
    Split.TRAIN: (
        "name size owner color count city date title level speed weight height width length "
        "price amount id code email phone address country reason status priority category format "
        "source target start end number kind mode label note path text language age rate limit "
        "page user group team item key value position"
    ).split(),
    Split.HELD_OUT: "flavor distance sender quality altitude chapter pattern budget".split(),
}


def _invented_name(rng: Random, split: Split) -> str:
    """Return ``verb_noun`` from the lists of the split, or made-up words."""
    listed = 0.5 if split is Split.HELD_OUT else 0.3
    if rng.random() < listed:
        words = [rng.choice(_VERBS[split]), rng.choice(_NOUNS[split])]
    else:
        words = [made_up(rng, split) for _ in range(rng.randint(1, 2))]
        if split is Split.TRAIN and rng.random() < 0.3:
            words[0] = rng.choice(_VERBS[split])
    if rng.random() < 0.12:
        return words[0] + "".join(word.capitalize() for word in words[1:])
    return "_".join(words)


def _invented_parameter(rng: Random, split: Split) -> Parameter:
    listed = 0.6 if split is Split.HELD_OUT else 0.45
    name = rng.choice(_PARAMETERS[split]) if rng.random() < listed else made_up(rng, split)
    if rng.random() < 0.1:
        name = f"{name}_{rng.choice(_NOUNS[split])}"
    choice = rng.random()
    if choice < 0.15:
        choices = tuple(dict.fromkeys(_word(rng, split) for _ in range(rng.randint(2, 4))))
        return Parameter(name, choices=choices)
    kind = rng.choices(["string", "integer", "number", "boolean"], [5, 4, 1, 1])[0]
    return Parameter(name, kind, required=rng.random() > 0.15)


def _invented(rng: Random, split: Split) -> Function:
    count = rng.choices([0, 1, 2, 3, 4], [1, 6, 8, 5, 2])[0]
    parameters = {p.name: p for p in (_invented_parameter(rng, split) for _ in range(count))}
    return Function(_invented_name(rng, split), tuple(parameters.values()))


def _word(rng: Random, split: Split) -> str:
    if rng.random() < 0.6:
        return made_up(rng, split)
    return rng.choice((*COLORS, *ITEMS))


def _text(rng: Random, split: Split) -> str:
    choice = rng.random()
    if choice < 0.2:
        return person(rng, split)
    if choice < 0.3:
        return rng.choice(CITIES)
    if choice < 0.4:
        return str(rng.randint(10, 99999))
    if choice < 0.55:
        return f"{_word(rng, split)} {_word(rng, split)}"
    return _word(rng, split)


def _value(rng: Random, split: Split, parameter: Parameter) -> Value:
    if parameter.choices:
        return rng.choice(parameter.choices)
    match parameter.type:
        case "integer":
            return rng.randint(0, rng.choice([9, 99, 999, 99999]))
        case "number":
            return rng.randint(1, 999) / 10
        case "boolean":
            return rng.random() < 0.5
    return _text(rng, split)


def _spoken(value: Value) -> str:
    return json.dumps(value) if isinstance(value, bool) else str(value)


def _request(rng: Random, function: Function, arguments: Arguments) -> str:
    """Ask for an invented function by its name or its words."""
    words = function.name.replace("_", " ")
    named = rng.random() < 0.5
    opening = rng.choice(
        ("Call {f}", "Use {f}", "Run {f}", "Please call {f}", "I want to call {f}", "{f}")
        if named
        else ("Please {f}", "{f}", "Can you {f}", "I want to {f}", "I need to {f}", "Now {f}")
    ).format(f=function.name if named else words)
    opening = opening if named else opening[0].upper() + opening[1:]
    if not arguments:
        return opening + rng.choice([".", "", " now."])
    pairs = list(arguments.items())
    if rng.random() < 0.3:
        rng.shuffle(pairs)
    link = rng.choice([" ", " ", " = ", ": ", " is "])
    parts = [f"{name.replace('_', ' ')}{link}{_spoken(value)}" for name, value in pairs]
    listing = parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
    if rng.random() < 0.3:
        listing = ", ".join(parts)
    return f"{opening}{rng.choice([' with ', ' with ', ', ', ': ', ' where '])}{listing}."


def _others(rng: Random, split: Split, name: str) -> list[Function]:
    """Functions that stand in the list beside the one that is asked for."""
    candidates = [k.function for k in rng.sample(KNOWN_FUNCTIONS, 2)]
    candidates += [_invented(rng, split) for _ in range(2)]
    unique = {f.name: f for f in candidates if f.name != name}
    return rng.sample(list(unique.values()), min(rng.randint(0, 3), len(unique)))


def _opening(rng: Random, functions: list[Function], request: str) -> Segment:
    rng.shuffle(functions)
    listing = "\n".join(["Functions:", *(f.render() for f in functions)])
    return asked(*system_turn(rng.choice(SYSTEM_TEXTS), listing), turn(USER, request))


def _known_call(rng: Random, split: Split) -> tuple[KnownFunction, Arguments]:
    while True:
        known = rng.choice(KNOWN_FUNCTIONS)
        arguments = known.arguments(rng, split)
        if in_split((known.function.name, tuple(arguments.values())), split):
            return known, arguments


def _result(rng: Random, split: Split) -> tuple[dict[str, Value], str]:
    """Return what an invented function returns, and the sentence that reports it."""
    choice = rng.random()
    if choice < 0.35:
        return {"status": "ok"}, "Done."
    if choice < 0.5:
        reason = f"{_word(rng, split)} not found"
        return {"error": reason}, f"Sorry, that failed: {reason}."
    key = rng.choice((*_PARAMETERS[split], "result"))
    value: Value = rng.randint(0, 9999) if rng.random() < 0.5 else _text(rng, split)
    return {key: value}, f"The {key} is {value}."


def sample_known(rng: Random, split: Split) -> Document:
    """Draw a call of a listed function that the model knows, often with its result and reply."""
    known, arguments = _known_call(rng, split)
    request = rng.choice(known.requests).format(**arguments)
    calls = [call_text(known.function.name, arguments)]
    functions = [known.function, *_others(rng, split, known.function.name)]
    segments: list[Segment] = []
    if split is Split.TRAIN and rng.random() < 0.1:
        more, others = _known_call(rng, split)
        if more.function.name not in {f.name for f in functions}:
            functions.append(more.function)
            request += f" {rng.choice(more.requests).format(**others)}"
            calls.append(call_text(more.function.name, others))
    segments = [_opening(rng, functions, request), said("\n".join(calls))]
    if len(calls) == 1 and rng.random() < 0.5:
        result, sentence = known.reply(rng, arguments)
        segments += [asked(turn(TOOL, json.dumps(result))), said(sentence)]
    return Document("functions", "known", tuple(segments), calls[0])


def _invented_arguments(rng: Random, split: Split, function: Function) -> Arguments | None:
    """Values for the required and some optional parameters, if the instance is in the split."""
    given = [p for p in function.parameters if p.required or rng.random() < 0.6]
    arguments = {p.name: _value(rng, split, p) for p in given}
    key = (function.name, tuple(arguments.values()))
    return arguments if in_split(key, split) else None


def _invented_calls(
    rng: Random, split: Split
) -> tuple[list[Function], list[tuple[Function, Arguments]]]:
    """Return the listed functions, and those among them that are called: in training up to
    three."""
    while True:
        function = _invented(rng, split)
        arguments = _invented_arguments(rng, split, function)
        if arguments is not None:
            break
    others = _others(rng, split, function.name)
    calls, known = [(function, arguments)], {k.function.name for k in KNOWN_FUNCTIONS}
    for other in others if split is Split.TRAIN else ():
        values = _invented_arguments(rng, split, other)
        if other.name not in known and values is not None and rng.random() < 0.7:
            calls.append((other, values))
    return [function, *others], calls


def sample_unseen(rng: Random, split: Split) -> Document:
    """Draw calls of functions invented for this document."""
    functions, calls = _invented_calls(rng, split)
    segments: list[Segment] = []
    for function, arguments in calls:
        request = _request(rng, function, arguments)
        opening = asked(turn(USER, request)) if segments else _opening(rng, functions, request)
        segments += [opening, said(call_text(function.name, arguments))]
        if rng.random() < 0.3:
            result, sentence = _result(rng, split)
            segments += [asked(turn(TOOL, json.dumps(result))), said(sentence)]
    return Document(
        "functions", "unseen", tuple(segments), call_text(calls[0][0].name, calls[0][1])
    )


def sample_unneeded(rng: Random, split: Split) -> Document:
    """Functions are listed, but the user only talks or asks for a sum."""
    if rng.random() < 0.6:
        request, reply = chat.exchange(rng)
    else:
        request, reply, _ = arithmetic.exchange(rng, split)
    functions = [*_others(rng, split, "add"), _invented(rng, split)]
    opening = _opening(rng, functions, request)
    return Document("functions", "unneeded", (opening, said(reply)), reply)
