"""Draws questions about chunks of pages, as the applications' prompts ask them."""

from collections.abc import Sequence
from random import Random

from training.corpus import pages
from training.corpus.document import Document, Split, conversation
from training.corpus.facts import UNKNOWN, Fact
from training.corpus.pages import Chunk, Page

Exchange = tuple[str, str]
_FORMS = ("What is the {a} of {n}?", "What is the {a} of {n}?", "What is {n}'s {a}?")
_SEPARATORS = (" ", " ", "\n")


def question_about(rng: Random, fact: Fact) -> str:
    return rng.choice(_FORMS).format(n=fact[0], a=fact[1])


def _ordered(rng: Random, split: Split, context: str, question: str) -> str:
    """Return the question before the context and again behind it, as the applications write it;
    behind it alone, or now and then before it alone, which is far harder to learn. Training has
    mostly the form of the applications."""
    shares = (16, 3, 1) if split is Split.TRAIN else (12, 7, 1)
    order = rng.choices(("both", "behind", "before"), shares)[0]
    before = "" if order == "behind" else f"Question: {question}\n"
    behind = "" if order == "before" else f"\nQuestion: {question}"
    return f"{before}Context: {context}{behind}"


def instructed(
    rng: Random, context: str, task: str, question: str, before_share: float = 0.65
) -> str:
    """Return a context, what is to be done with it, and the question last, before the answer: a
    small model reads it far better there than before the task. Without a context: one more task.
    ``before_share``: how often the question stands before the context, too."""
    asked_last = f"{task}\nQuestion: {question}"
    if not context:
        return asked_last
    before = f"Question: {question}\n" if rng.random() < before_share else ""
    return f"{before}Context: {context}\n{asked_last}"


def shown_chunks(
    rng: Random, split: Split, num_chunks: int, size: int, named_share: float = 0.9
) -> tuple[Page, list[Chunk], str]:
    """Some chunks of a page, in any order, and their text."""
    named = rng.random() < named_share
    layout = rng.choice(pages.LAYOUTS)
    num_facts = max(3, round(size * num_chunks / rng.uniform(8, 20)))
    page = pages.draw_page(rng, split, num_facts + rng.randint(0, num_facts), named=named)
    cut = pages.chunks(page, layout, size, min(30, size // 4), with_headings=rng.random() < 0.7)
    chosen = rng.sample(cut, min(num_chunks, len(cut)))
    written = [chunk.text if named else _situated(chunk) for chunk in chosen]
    return page, chosen, rng.choice(_SEPARATORS).join(written)


def _situated(chunk: Chunk) -> str:
    return f"{situation(chunk)}\n{chunk.text}"


def situation(chunk: Chunk) -> str:
    names = list(chunk.subjects)
    if not names:
        return UNKNOWN
    listed = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
    return f"It is about {listed}."


def chunk_size(rng: Random, split: Split) -> int:
    """Words of a chunk: short ones teach most for each token that is read, long ones are asked."""
    sizes = [24, 40, 64] if split is Split.TRAIN else [24, 40]
    return rng.choice([*sizes, 100, 160, 256, 256, 256])


def most_questions(rng: Random, split: Split, size: int) -> int:
    """More questions about long chunks, which cost most tokens to read."""
    if split is Split.HELD_OUT:
        return 1
    if size < 100:
        return rng.choice([3, 6, 8])
    return rng.choice([8, 12, 16] if size < 400 else [16, 20, 24, 28])


def _facts_of(shown: Sequence[Chunk]) -> list[Fact]:
    return list(dict.fromkeys(fact for chunk in shown for fact in chunk.facts))


def questions_about(
    rng: Random, split: Split, page: Page, shown: list[Chunk], count: int, absent_share: float
) -> list[Fact]:
    """Draw what is asked about the chunks, with its answer."""
    present = _facts_of(shown)
    absent = pages.absent_questions(rng, split, page, shown)
    rng.shuffle(present)
    chosen = list[Fact]()
    while len(chosen) < count and (present or absent):
        is_absent = rng.random() < absent_share if present and absent else bool(absent)
        if is_absent:
            chosen.append((*absent.pop()[:2], UNKNOWN))
        else:
            chosen.append(present.pop())
    return chosen


def _read(rng: Random, split: Split, num_chunks: int, size: int, absent_share: float) -> Document:
    """Draw questions about chunks; the first carries them."""
    page, shown, context = shown_chunks(rng, split, num_chunks, size)
    most = most_questions(rng, split, size * num_chunks)
    if split is Split.TRAIN and rng.random() < 0.2:  # the first question is the one that is asked
        most = rng.choice([2, 4, 6])
    exchanges = list[Exchange]()
    for fact in questions_about(rng, split, page, shown, most, absent_share):
        text = question_about(rng, fact)
        lead = f"Question: {text}" if exchanges else _ordered(rng, split, context, text)
        exchanges.append((lead, f"Answer: {fact[2]}"))
    kind = "absent" if exchanges[0][1].endswith(f" {UNKNOWN}") else "present"
    return conversation("leaf" if num_chunks == 1 else "pages", kind, exchanges)


def sample_leaf(rng: Random, split: Split) -> Document:
    """Draw one chunk of up to 256 words, which says it or not: mostly not in training, as two of a
    tree's three leaves have no answer."""
    return _read(rng, split, 1, chunk_size(rng, split), 0.6 if split is Split.TRAIN else 0.5)


def sample_pages(rng: Random, split: Split) -> Document:
    """Draw three chunks as the search found them, mostly of the size of the applications; now and
    then four short ones. Few questions have no answer, because a model that does not find a value
    in so much text says that there is none."""
    short = [48, 80, 128] if split is Split.HELD_OUT else [64, 128]
    size = rng.choice([*short, 256, 256, 256, 256])
    absent_share = 0.12 if split is Split.TRAIN else 0.2
    return _read(rng, split, 3 if size > 128 else rng.choice([3, 4]), size, absent_share)
