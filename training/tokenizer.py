"""Builds the tokenizer: byte-level BPE whose pieces make copying easy.

Digits stand alone.  Words that the corpus uses often are one token each, with and without the space
before them (``ignore_merges`` finds them whole, as in Llama 3).  Everything else falls apart into
pieces of at most two bytes that never swallow a space, so that a made-up name is spelled the same
in prose, after a bracket and inside JSON quotes.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from training.corpus.document import ADDED_TOKENS, SPECIAL_TOKENS, Split
from training.corpus.mixture import SAMPLERS
from training.corpus.words import made_up

VOCAB_SIZE = 1536
NUM_MERGES = 240
_PATTERN = r"'(?:s|t|re|ve|ll|d|m)(?!\p{L})| ?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]|\s"  # one pre-token
_SPACE = "\u0120"  # how byte-level BPE spells a space


def _pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def _corpus(rng: Random, num_documents: int) -> Iterator[str]:
    """Text of every family alike, without special tokens."""
    samplers = list(SAMPLERS.values())
    for index in range(num_documents):
        document = samplers[index % len(samplers)](rng, Split.TRAIN)
        for segment in document.segments:
            text = segment.text
            for token in (*SPECIAL_TOKENS, *ADDED_TOKENS):
                text = text.replace(token, "\n")
            yield text


def _merges(rng: Random, num_words: int) -> list[tuple[str, str]]:
    """Return the most useful pairs of bytes inside words."""
    words = [made_up(rng, Split.TRAIN) for _ in range(num_words)]
    words += [word.capitalize() for word in words[::2]]
    words += [
        word for text in _corpus(rng, num_words // 4) for word in text.split() if word.isalpha()
    ]
    tokenizer = Tokenizer(models.BPE())
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=len(alphabet) + NUM_MERGES,
        initial_alphabet=alphabet,
        max_token_length=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(words, trainer)
    pieces = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    return [(piece[0], piece[1]) for piece, _ in pieces if len(piece) == 2]


def _frequent_words(texts: Iterable[str], count: int, known: set[str]) -> list[str]:
    """Return the most frequent pre-tokens of two characters or more, most frequent first."""
    split, seen = _pre_tokenizer(), Counter[str]()
    for text in texts:
        seen.update(piece for piece, _ in split.pre_tokenize_str(text))
    ranked = sorted(seen.items(), key=lambda item: (-item[1], item[0]))
    words = [word for word, _ in ranked if len(word) > 1 and word not in known]
    both: dict[str, None] = {}
    for word in words:
        bare = word.removeprefix(_SPACE)
        forms = [bare, _SPACE + bare] if bare.isalpha() and len(bare) > 1 else [word]
        both.update(dict.fromkeys(form for form in forms if form not in known))
        if len(both) >= count:
            break
    return list(both)[:count]


def build(seed: int = 0, num_documents: int = 60_000) -> Tokenizer:
    """Count words in the corpus and assemble the vocabulary; the same for the same seed."""
    rng = Random(seed)
    merges = _merges(rng, num_documents // 2)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = [*SPECIAL_TOKENS, *ADDED_TOKENS, *alphabet, *("".join(pair) for pair in merges)]
    room = VOCAB_SIZE - len(vocabulary)
    vocabulary += _frequent_words(_corpus(rng, num_documents), room, set(vocabulary))
    ids = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges, ignore_merges=True))
    tokenizer.pre_tokenizer = _pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in SPECIAL_TOKENS])
    tokenizer.add_tokens([AddedToken(t, normalized=False) for t in ADDED_TOKENS])
    return tokenizer


def load(path: Path) -> Tokenizer:
    """Read ``tokenizer.json``."""
    return Tokenizer.from_file(str(path))
