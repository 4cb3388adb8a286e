"""Texts of the workflows' applications: the prompts are theirs, and the answers stand in them."""

import json
import re
from random import Random

import pytest

from benchmarks.ayo.written import WRITERS
from quire.node.documents.reading_worker import pdf_text
from quire.programs.workflow.applications.parts import SYNTHESIS
from quire.programs.workflow.chunker import chunks as chunks_of_a_query
from quire.programs.workflow.chunker import with_surroundings
from training.corpus import facts, given_answers, pages, reading, workflows
from training.corpus.document import Document, Split, in_split
from training.corpus.facts import UNKNOWN


def documents(sample: object, count: int = 80) -> list[Document]:
    assert callable(sample)
    rng = Random(11)
    return [sample(rng, split) for split in Split for _ in range(count)]


def pattern(prompt: str) -> re.Pattern[str]:
    """What a prompt with named parts matches; a part that comes again has the same text."""
    seen = set[str]()

    def group(part: re.Match[str]) -> str:
        name = part[1]
        if name in seen:
            return f"(?P={name})"
        seen.add(name)
        return f"(?P<{name}>(?:.|\n)*)"

    return re.compile(re.sub(r"\\\{(\w+)\\\}", group, re.escape(prompt)) + "$")


def asked(document: Document) -> str:
    return document.prompt.partition("<|user|>")[2].partition("<|end|>")[0]


def test_the_prompts_of_the_applications_are_trained() -> None:
    for sample, field in (
        (reading.sample_leaf, "prompt"),
        (given_answers.sample_refine, "refine_prompt"),
        (given_answers.sample_combine, "combine_prompt"),
    ):
        form = pattern(SYNTHESIS[field])
        num = sum(form.match(asked(d)) is not None for d in documents(sample))
        assert num > 30, field


def test_chunks_are_those_of_the_chunker() -> None:
    rng = Random(2)
    for _ in range(40):
        page = pages.draw_page(rng, Split.TRAIN, rng.randint(3, 40))
        layout = rng.choice(pages.LAYOUTS)
        text, _ = pages.write_text(page, layout)
        size, overlap = rng.choice([(24, 6), (64, 16), (256, 30)])
        ours = [chunk.text for chunk in pages.chunks(page, layout, size, overlap)]
        assert ours == list(chunks_of_a_query(text, size, overlap))
        situated = pages.surrounded(page, layout, size, overlap, 4)
        assert [(chunk.text, around) for chunk, around in situated] == list(
            with_surroundings(text, size, overlap, 4)
        )


def test_the_text_of_a_page_is_that_of_its_file() -> None:
    """What is left of a PDF or of Markdown when the node has read it."""
    rng = Random(4)
    _, markdown, _, pdf, _ = pages.LAYOUTS
    for _ in range(8):
        page = pages.draw_page(rng, Split.TRAIN, 80, other_share=1.2)
        assert pages.write_text(page, markdown)[0] == WRITERS["md"](page).decode().strip()
        text, places = pages.write_text(page, pdf)
        read = pdf_text(WRITERS["pdf"](page))
        ours, theirs = ([line for line in one.split("\n") if line] for one in (text, read))
        assert ours == theirs
        assert "\n\n\n" in text
        for place in places:
            written = " ".join(text[place.start : place.end].split())
            assert written == place.sentence.text


def test_a_chunk_knows_what_it_says() -> None:
    rng = Random(3)
    for _ in range(60):
        page = pages.draw_page(rng, Split.TRAIN, 20)
        for chunk in pages.chunks(page, pages.LAYOUTS[0], 48, 12):
            for name, _, value in chunk.facts:
                assert name in chunk.text
                assert value in chunk.text
            for name in chunk.subjects:
                assert name in chunk.text


@pytest.mark.parametrize("sample", [reading.sample_leaf, reading.sample_pages])
def test_an_answer_stands_in_the_chunks_and_an_unknown_one_does_not(sample: object) -> None:
    seen = dict.fromkeys(("present", "absent"), 0)
    for document in documents(sample):
        seen[document.kind] += 1
        text = asked(document)
        name, attribute = _pair(text)
        value = document.answer.removeprefix("Answer: ")
        forms = [form.format(n=name, a=attribute, v="") for form in pages._FORMS]
        stated = any(form.rstrip(". ") in " ".join(text.split()) for form in forms)
        if value == UNKNOWN:
            assert document.kind == "absent"
            assert not stated
        else:
            assert " ".join(value.split()) in " ".join(text.split())
    assert min(seen.values()) > 10


def _pair(text: str) -> tuple[str, str]:
    found = re.search(r"Question: What is (?:the (\w+) of (\w+)|(\w+)'s (\w+))\?", text)
    assert found is not None
    attribute, name, other_name, other_attribute = found.groups()
    return name or other_name, attribute or other_attribute


def test_verdicts_are_balanced() -> None:
    kinds = [document.kind for document in documents(workflows.sample_judge, 200)]
    assert 0.4 < kinds.count("no") / len(kinds) < 0.6


def test_a_refined_answer_is_the_contexts_or_the_one_so_far() -> None:
    for document in documents(given_answers.sample_refine):
        answer = document.answer.removeprefix("Answer: ")
        so_far = re.search(r"Answer so far: (.*)\n", asked(document))
        assert so_far is not None
        assert (document.kind == "not found") <= (answer == so_far.group(1))
        assert (document.kind == "found") <= (answer != UNKNOWN)


def _refined(split: Split, count: int = 150) -> list[tuple[str, str, str]]:
    """The question, answer so far and answer of each exchange."""
    rng, found = Random(7), list[tuple[str, str, str]]()
    for _ in range(count):
        text = given_answers.sample_refine(rng, split).text
        form = (
            r"Answer so far: (.*)\nRefine the answer.\nQuestion: (.*)<\|end\|>.*Answer: (.*)<\|end"
        )
        found += [(question, so_far, told) for so_far, question, told in re.findall(form, text)]
    return found


def test_an_answer_so_far_is_mostly_one_that_a_chunk_could_have_given() -> None:
    """Training has what the applications ask: one of the attribute that the question names."""
    kept, gave_way, came = 0, 0, 0
    rng = Random(5)
    possible = {
        name: {draw(rng, Split.TRAIN) for _ in range(500)}
        for name, draw in facts.ATTRIBUTES.items()
        if name in given_answers._RECOGNISED
    }
    fits, others = 0, 0
    for question, so_far, answer in _refined(Split.TRAIN):
        kept += so_far == answer != UNKNOWN
        came += so_far == UNKNOWN != answer
        gave_way += UNKNOWN != so_far != answer
        attribute = next((one for one in possible if re.search(rf"\b{one}\b", question)), None)
        if attribute is not None and so_far != UNKNOWN:
            fits += so_far in possible[attribute]
            others += so_far not in possible[attribute]
    assert min(kept, came, gave_way) > 60
    assert kept > came > gave_way
    assert fits > 4 * others


def test_a_first_question_is_often_the_only_one() -> None:
    rng = Random(9)
    made = [given_answers.sample_refine(rng, Split.TRAIN) for _ in range(200)]
    alone = sum(sum(segment.learned for segment in one.segments) == 1 for one in made)
    assert 8 < alone < 60


def test_values_of_a_training_page_begin_alike_and_held_out_ones_stay_as_they_were() -> None:
    def alike(split: Split) -> int:
        rng, found = Random(3), 0
        for _ in range(60):
            codes = [fact[2] for fact in pages.draw_page(rng, split, 60).facts if fact[1] == "code"]
            found += len(codes) - len({code[:3] for code in codes})
        return found

    assert alike(Split.TRAIN) > 10 * max(1, alike(Split.HELD_OUT))


def test_a_similar_value_begins_as_the_other_does_and_is_no_held_out_word() -> None:
    rng = Random(2)
    for _ in range(200):
        assert facts.similar_value(rng, "city", "Rome", "Oslo") == "Rome"
        code = facts.similar_value(rng, "code", "1234", "9876")
        assert code[0] == "9"
        assert code[-1] == "4"
        street = facts.similar_value(rng, "street", "Yais 6", "Tepeko 14")
        word, number = street.split()
        assert number == "6"
        assert word.istitle()
        assert in_split(word.lower(), Split.TRAIN)
        assert facts.similar_value(rng, "password", "apzai", "oupkesh").islower()


def test_combined_answers_are_the_most_frequent_or_the_first_that_can_be_right() -> None:
    misread = 0
    for document in documents(given_answers.sample_combine):
        given = re.findall(r"^\d+\. (.*)$", asked(document), re.M)
        known = [one for one in given if one != UNKNOWN]
        best = max(known, key=known.count) if known else UNKNOWN
        if document.answer != f"Answer: {best}":
            misread += 1
            assert best == known[0]
            assert document.answer == f"Answer: {known[1]}"
            possible = _values(_attribute(asked(document)))
            assert best not in possible
            assert known[1] in possible
    assert misread


def _attribute(request: str) -> str:
    """The attribute that the question of ``request`` names."""
    question = re.search(r"Question: (.*\?)", request)
    assert question is not None
    (attribute,) = (one for one in facts.ATTRIBUTES if re.search(rf"\b{one}\b", question[1]))
    return attribute


def _values(attribute: str) -> set[str]:
    """All values of an attribute that has a few hundred at most."""
    rng = Random(3)
    return {facts.ATTRIBUTES[attribute](rng, Split.TRAIN) for _ in range(5000)}


def test_a_situated_chunk_names_whom_it_tells_about() -> None:
    inherited = 0
    for document in documents(workflows.sample_situate):
        around, _, rest = asked(document).partition("\nChunk: ")
        names = re.findall(r"[A-Z]\w+", document.answer.removeprefix("Answer: It is about"))
        assert len(names) <= 3
        for name in names:
            if document.answer != f"Answer: {UNKNOWN}":
                assert name in around
                inherited += name not in rest
    assert inherited > 5


def test_arrays_are_json_and_their_bracket_is_the_grammars() -> None:
    for sample in (workflows.sample_queries, workflows.sample_plan):
        for document in documents(sample):
            elements = json.loads(document.answer)
            assert all(isinstance(one, str) for one in elements)
            assert json.dumps(elements) == document.answer
            assert document.prompt.endswith("<|assistant|>[")


def test_what_nobody_can_know_needs_a_search() -> None:
    for document in documents(workflows.sample_search):
        about_a_person = re.search(
            r"Question: What is (?:the (?!capital|opp)\w+ of|\w+'s)", asked(document)
        )
        assert (about_a_person is not None) <= (document.kind == "yes")


def test_what_a_search_found_counts_before_the_answer_so_far() -> None:
    kinds = set()
    for document in documents(workflows.sample_searched):
        kinds.add(document.kind)
        so_far, _, rest = asked(document).partition("\nContext: ")
        context, _, _ = rest.partition("\nQuestion: ")
        answer = document.answer.removeprefix("Answer: ")
        if document.kind == "not searched":
            assert context == ""
            assert so_far == f"Answer so far: {answer}"
        else:
            assert (answer != UNKNOWN) <= (answer in " ".join(context.split()))
    assert kinds == {"not searched", "found", "unknown"}
