"""A program for the sandbox, and a tool of ``report.py``: ``quire push count_words.py``."""

from collections import Counter

from quire.programs.sdk import inferlet


@inferlet("count-words")
async def main(api, text: str, most: int = 3) -> list[str]:
    """The words that stand most often in a text."""
    counted = Counter(word.strip(".,:;!?").lower() for word in text.split())
    return [f"{word} {num}" for word, num in counted.most_common(most)]
