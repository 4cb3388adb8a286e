"""Pages of facts: titles, headings, paragraphs and lists as documents have them, and their chunks.

A page is written once as HTML, PDF or Markdown (``benchmarks/ayo``) and once as what is left of
these when a document has been read (``Layout``), which is what the model sees in a workflow.
"""

import re
import textwrap
from bisect import bisect_left
from dataclasses import dataclass
from random import Random

from training.corpus.document import Split
from training.corpus.facts import ATTRIBUTES, Fact, draw_facts, similar_value
from training.corpus.words import CITIES, MONTHS, made_up, similar_name

_FORMS = ("The {a} of {n} is {v}.", "{n}'s {a} is {v}.", "{n} has {a} {v}.", "{n}: {a} {v}.")
_WITHOUT_NAME = ("The {a} is {v}.", "Its {a} is {v}.", "The {a} here is {v}.")
_OTHER = (
    "It was a warm day.",
    "The garden is green.",
    "Nobody knows the reason.",
    "This text has several parts.",
    "The meeting starts at noon.",
    "They live in the same town.",
    "Some of them are friends.",
    "Please keep this list.",
    "The rest is not written down.",
    "More is said below.",
    "This was checked last week.",
    "All names are spelled as they were found.",
)
_ABOUT = (
    "{n} likes music and books.",
    "{n} went to a meeting.",
    "Here is more about {n}.",
    "Nobody asked {n} about it.",
    "{n} and {m} met in {c}.",
    "{n} wrote a long letter to {m}.",
    "Some people know {n} well.",
    "{n} was here in {k}.",
)
_TITLES = ("Notes about {w}", "The people of {w}", "{w}", "A list from {w}", "What {w} knows")
_TOKEN = re.compile(r"\w+|[^\w\s]")


@dataclass(frozen=True, slots=True)
class Sentence:
    """``fact`` is what it says, if anything; ``names`` whether it names the subject itself."""

    text: str
    fact: Fact | None = None
    names: bool = True


@dataclass(frozen=True, slots=True)
class Section:
    heading: str
    is_list: bool
    sentences: tuple[Sentence, ...]


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    sections: tuple[Section, ...]

    @property
    def facts(self) -> list[Fact]:
        return [s.fact for section in self.sections for s in section.sentences if s.fact]


@dataclass(frozen=True, slots=True)
class Layout:
    """How the text of a page looks after reading: marks of the title, of headings and of items,
    what stands between blocks, and the width and number of the lines of a PDF's page (0: none)."""

    title: str
    heading: str
    item: str
    gap: str
    width: int = 0
    num_lines: int = 0


LAYOUTS = (
    Layout("", "", "- ", "\n"),  # HTML
    Layout("# ", "## ", "- ", "\n\n"),  # Markdown
    Layout("# ", "# ", "* ", "\n\n"),
    Layout("", "", "- ", "\n", 80, 36),  # PDF
    Layout("", "", "", "\n", 66, 30),
)
_PAGE_BREAK = "\n\n\n"


def draw_page(
    rng: Random,
    split: Split,
    num_facts: int,
    *,
    named: bool = True,
    other_share: float | None = None,
) -> Page:
    """Draw a page of ``num_facts`` facts. ``named``: each sentence names whom it tells about; else
    only the first about each does. ``other_share``: sentences without a fact for each with one
    (None: drawn)."""
    is_hard = split is Split.TRAIN
    facts = _hard_facts(rng, num_facts) if is_hard else draw_facts(rng, split, num_facts)
    is_list = named and rng.random() < 0.1  # a file of nothing but lines
    if is_list:
        groups, headings = [facts], [rng.choice(_TITLES).format(w=_word(rng, split))]
    elif not named or rng.random() < 0.5:
        order = list(dict.fromkeys(name for name, _, _ in facts))
        facts.sort(key=lambda fact: order.index(fact[0]))
        groups = [[fact for fact in facts if fact[0] == name] for name in order]
        headings = order
    else:
        size = rng.randint(3, 10)
        groups = [facts[start : start + size] for start in range(0, len(facts), size)]
        headings = [rng.choice(_TITLES).format(w=_word(rng, split)) for _ in groups]
    if other_share is None:
        other_share = rng.choice([0.0, 0.15, 0.4, 0.8, 1.2])
    names = list(dict.fromkeys(name for name, _, _ in facts))
    one_form = rng.choice([None, *_FORMS])
    sections = []
    for heading, group in zip(headings, groups, strict=True):
        sentences = [
            _sentence(rng, fact, one_form, named=named or index == 0)
            for index, fact in enumerate(group)
        ]
        for _ in range(round(other_share * len(group) + rng.random() - 0.5)):
            # without names a sentence about others would change whom the next one tells about
            text = _other(rng, names if named else [])
            sentences.insert(rng.randint(1, len(sentences)), Sentence(text))
        sections.append(Section(heading, is_list or rng.random() < 0.25, tuple(sentences)))
    return Page(rng.choice(_TITLES).format(w=_word(rng, split)), tuple(sections))


def _hard_facts(rng: Random, count: int) -> list[Fact]:
    """Return facts that are easily taken for each other: most names are made up, many of them
    alike, often all share a few attributes, and values begin as others do."""
    drawn = draw_facts(
        rng,
        Split.TRAIN,
        count,
        num_attributes=rng.choice([None, None, 2, 3]),
        made_up_share=0.85,
        similar_share=rng.choice([0.0, 0.0, 0.3, 0.6]),
    )
    return _with_similar_values(rng, drawn, rng.choice([0.0, 0.0, 0.3, 0.6]))


def _with_similar_values(rng: Random, drawn: list[Fact], share: float) -> list[Fact]:
    """Return the facts, ``share`` of them with a value that begins as an earlier one's does."""
    changed, values = list[Fact](), dict[str, list[str]]()
    for name, attribute, value in drawn:
        before = values.setdefault(attribute, [])
        if before and rng.random() < share:
            value = similar_value(rng, attribute, value, rng.choice(before))
        before.append(value)
        changed.append((name, attribute, value))
    return changed


def _word(rng: Random, split: Split) -> str:
    return rng.choice([rng.choice(CITIES), made_up(rng, split).capitalize()])


def _sentence(rng: Random, fact: Fact, form: str | None, *, named: bool) -> Sentence:
    name, attribute, value = fact
    forms = _FORMS if named else _WITHOUT_NAME
    chosen = form if form and named else rng.choice(forms)
    return Sentence(chosen.format(a=attribute, n=name, v=value), fact, named)


def _other(rng: Random, names: list[str]) -> str:
    if not names or rng.random() < 0.5:
        return rng.choice(_OTHER)
    about = {"n": rng.choice(names), "m": rng.choice(names), "c": rng.choice(CITIES)}
    return rng.choice(_ABOUT).format(**about, k=rng.choice(MONTHS))


@dataclass(frozen=True, slots=True)
class Place:
    """Where a sentence stands in the text of a page."""

    start: int
    end: int
    sentence: Sentence


def write_text(
    page: Page, layout: Layout, *, with_headings: bool = True
) -> tuple[str, list[Place]]:
    """Return the text of a page, and the places of its sentences in it."""
    text, places = "", list[Place]()
    if with_headings:
        text = f"{layout.title}{page.title}{layout.gap}"
    for section in page.sections:
        if with_headings:
            text += f"{layout.heading}{section.heading}{layout.gap}"
        for index, sentence in enumerate(section.sentences):
            if section.is_list:
                text += f"{chr(10) if index else ''}{layout.item}"
            elif index:
                text += " "
            places.append(Place(len(text), len(text) + len(sentence.text), sentence))
            text += sentence.text
        text += layout.gap
    return _on_sheets(text.strip(), places, layout) if layout.width else (text.strip(), places)


def _on_sheets(text: str, places: list[Place], layout: Layout) -> tuple[str, list[Place]]:
    """Return a PDF's text: its lines are wrapped, and behind each sheet there are empty ones."""
    wrapped = "\n".join(textwrap.fill(line, layout.width) for line in text.split("\n"))
    assert len(wrapped) == len(text), "a wrapped line has a break in place of a space"
    ends = [match.start() for match in re.finditer("\n", wrapped)]
    breaks = ends[layout.num_lines - 1 :: layout.num_lines]
    starts = [0, *(end + 1 for end in breaks)]
    sheets = [wrapped[a:b] for a, b in zip(starts, [*breaks, len(wrapped)], strict=True)]

    def moved(place: int) -> int:
        return place + (len(_PAGE_BREAK) - 1) * bisect_left(breaks, place)

    moved_places = [Place(moved(p.start), moved(p.end), p.sentence) for p in places]
    return _PAGE_BREAK.join(sheets), moved_places


@dataclass(frozen=True, slots=True)
class Chunk:
    """A chunk's text, the facts that stand in it as a whole, those that it cuts, and the first
    three whom it tells about."""

    text: str
    facts: tuple[Fact, ...]
    cut: tuple[Fact, ...]
    subjects: tuple[str, ...]


def chunks(page: Page, layout: Layout, size: int, overlap: int, **options: bool) -> list[Chunk]:
    """Return chunks of ``size`` words and marks, as the workflows' chunker cuts them."""
    return [chunk for chunk, _ in surrounded(page, layout, size, overlap, 0, **options)]


def surrounded(
    page: Page, layout: Layout, size: int, overlap: int, neighbours: int, **options: bool
) -> list[tuple[Chunk, str]]:
    """Return each chunk, and the text from the first to the last of the ``neighbours + 1`` around
    it, as the workflows' chunker gives it to who puts a chunk into its context."""
    text, places = write_text(page, layout, **options)
    spans = [match.span() for match in _TOKEN.finditer(text)]
    firsts = range(0, max(len(spans) - overlap, min(len(spans), 1)), size - overlap)
    cut = [(spans[first][0], spans[min(first + size, len(spans)) - 1][1]) for first in firsts]
    found = []
    for number, (start, end) in enumerate(cut):
        begin = max(0, min(number - neighbours // 2, len(cut) - 1 - neighbours))
        last = min(begin + neighbours, len(cut) - 1)
        around = text[cut[begin][0] : cut[last][1]]
        found.append((_chunk(text, start, end, places), around))
    return found


def _chunk(text: str, start: int, end: int, places: list[Place]) -> Chunk:
    whole, cut, subjects = list[Fact](), list[Fact](), dict[str, None]()
    for place in places:
        fact = place.sentence.fact
        if fact is None or place.end <= start or place.start >= end:
            continue
        inside = start <= place.start and place.end <= end
        (whole if inside else cut).append(fact)
        name = place.start + place.sentence.text.find(fact[0])
        is_named = place.sentence.names and start <= name and name + len(fact[0]) <= end
        if is_named or (inside and not place.sentence.names):
            subjects[fact[0]] = None
    return Chunk(text[start:end], tuple(whole), tuple(cut), tuple(subjects)[:3])


def absent_questions(rng: Random, split: Split, page: Page, shown: list[Chunk]) -> list[Fact]:
    """Return names and attributes of which the chunks say nothing: the page's other facts (as the
    chunks that a tree reads meet them), known names with another attribute, names like a known one
    or quite others with a known attribute."""
    # in their order, and not as a set, so that equal seeds draw equal questions in any process
    said = dict.fromkeys(fact[:2] for chunk in shown for fact in (*chunk.facts, *chunk.cut))
    names = list(dict.fromkeys(name for name, _ in said)) or ["Kabo"]
    attributes = list(dict.fromkeys(attribute for _, attribute in said)) or ["age"]
    rng.shuffle(names)
    rng.shuffle(attributes)
    elsewhere = [fact for fact in page.facts if fact[:2] not in said]
    crossed = [(name, a, "") for name in names[:3] for a in attributes[:3]]
    other = [(name, rng.choice(list(ATTRIBUTES)), "") for name in names[:2]]
    alike = [(similar_name(rng, split, name), rng.choice(attributes), "") for name in names[:4]]
    nobody = [(made_up(rng, split).capitalize(), rng.choice(attributes), "") for _ in range(4)]
    found_elsewhere = rng.sample(elsewhere, min(6, len(elsewhere)))
    asked = [*found_elsewhere, *crossed, *other, *alike, *nobody]
    rng.shuffle(asked)
    return [fact for fact in asked if fact[:2] not in said]
