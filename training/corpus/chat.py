"""Draws short chat turns: small talk, the model itself, Quire, and what the model does not know."""

from random import Random

from training.corpus.chat_intents import INTENTS, UNKNOWN_QUESTIONS, UNKNOWN_REPLY, Intent
from training.corpus.chat_knowledge import OPPOSITES
from training.corpus.document import Document, Split, conversation, in_split
from training.corpus.words import COUNTRIES, DAYS, MONTHS, made_up

SYSTEM_TEXTS = (
    "",
    "",
    "",
    "You are a helpful assistant.",
    "You are quire-mini, a helpful assistant.",
    "Answer in one sentence.",
    "Be short and friendly.",
)
_OPENINGS = (
    "",
    "",
    "",
    "",
    "please tell me, ",
    "can you tell me, ",
    "hi, ",
    "hello, ",
    "hey, ",
    "so ",
    "now ",
    "ok, ",
    "I have a question: ",
    "tell me: ",
    "excuse me, ",
    "I want to know: ",
)
_ENDINGS = ("", "", "", " please", " exactly", ", please", " in short", " now", " then")
_FIRST_QUESTIONS = tuple(
    (question, intent.reply)
    for question in ("who are you", "what are you", "how are you", "what can you do")
    for intent in INTENTS
    if question in intent.questions
)
_THINGS = (
    "history war music physics moon sun stock market football internet ocean computer king queen "
    "book tower bridge bank law health cancer gravity atoms dinosaurs pizza rice bread chess "
    "mountain river island planet star school university love time life world cup election"
).split()


def _finish(rng: Random, text: str, question: bool) -> str:
    if rng.random() < 0.6:
        text = text[0].upper() + text[1:]
    return text + rng.choice(["?", "?", "?", "", "."] if question else ["", ".", "!", ""])


def _phrase(rng: Random, intent: Intent) -> str:
    core = rng.choice(intent.questions)
    if intent.greeting:
        return _finish(rng, core, question=False)
    if rng.random() < 0.4:  # as most people ask, and what another task changes first
        return _finish(rng, core, question=True)
    text = rng.choice(_OPENINGS) + core + rng.choice(_ENDINGS)
    return _finish(rng, text, question=True)


def _unknown(rng: Random) -> tuple[str, str]:
    thing = rng.choice(_THINGS) if rng.random() < 0.6 else made_up(rng, Split.TRAIN)
    thing = rng.choice(["", "the "]) + thing if rng.random() < 0.7 else thing.capitalize()
    text = rng.choice(UNKNOWN_QUESTIONS).format(x=thing)
    return _finish(rng, rng.choice(_OPENINGS) + text, question=True), UNKNOWN_REPLY


def _knowledge(rng: Random) -> tuple[str, str]:
    choice = rng.random()
    if choice < 0.4:
        country, city = rng.choice(list(COUNTRIES.items()))
        question = rng.choice(["what is the capital of {c}", "which city is the capital of {c}"])
        return _finish(rng, question.format(c=country), question=True), f"Answer: {city}"
    if choice < 0.7:
        pair = rng.choice(OPPOSITES.split("|")).split()
        rng.shuffle(pair)
        question = rng.choice(["what is the opposite of {w}", "opposite of {w}"])
        return _finish(rng, question.format(w=pair[0]), question=True), f"Answer: {pair[1]}"
    circle = rng.choice([DAYS, MONTHS])
    index = rng.randrange(len(circle))
    step, word = rng.choice([(1, "after"), (-1, "before")])
    question = f"what comes {word} {circle[index]}"
    return _finish(rng, question, question=True), f"Answer: {circle[(index + step) % len(circle)]}"


def exchange(rng: Random) -> tuple[str, str]:
    """Draw one user turn and its reply."""
    choice = rng.random()
    if choice < 0.1:
        return _unknown(rng)
    if choice < 0.2:
        return _knowledge(rng)
    if choice < 0.27:  # asked first by most people, and one letter away from "How are you?"
        question, reply = rng.choice(_FIRST_QUESTIONS)
        return _finish(rng, question, question=True), reply
    intent = rng.choice(INTENTS)
    return _phrase(rng, intent), intent.reply


def sample(rng: Random, split: Split) -> Document:
    """Draw one to six exchanges; a held-out document has one whose wording was never trained on."""
    if split is Split.HELD_OUT:
        while True:
            question, reply = exchange(rng)
            if in_split(question, split):
                return conversation("chat", "chat", [(question, reply)], rng.choice(SYSTEM_TEXTS))
    exchanges: list[tuple[str, str]] = []
    count = rng.choice([1, 2, 3, 4, 6])
    while len(exchanges) < count:
        pair = exchange(rng)
        if in_split(pair[0], split):
            exchanges.append(pair)
    return conversation("chat", "chat", exchanges, rng.choice(SYSTEM_TEXTS))
