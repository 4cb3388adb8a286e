"""``TokenizerSuite``: requirements on every ``Tokenizer``."""

from __future__ import annotations

from quire.core.interfaces import Tokenizer

TEXTS = (
    "",
    "hello",
    " leading and trailing ",
    "tabs\tand\nnew lines\r\n",
    "naïve café Ελληνικά 漢字 🙂",
    "{'json': [1, 2.5, null]}",
    "\x00\x01\x7f",
)


class TokenizerSuite:
    """Subclass it, define how to make the tokenizer, let pytest collect it.

    ``lossless``: decoding an encoded text restores it (as byte-level tokenizers do).
    """

    lossless = True

    def make_tokenizer(self) -> Tokenizer:
        raise NotImplementedError("say how to make the tokenizer under test")

    def test_round_trip(self) -> None:
        tokenizer = self.make_tokenizer()
        for text in TEXTS:
            decoded = tokenizer.decode(tokenizer.encode(text, special=False))
            assert decoded == text or not self.lossless
            again = tokenizer.encode(decoded, special=False)
            assert tokenizer.decode(again) == decoded

    def test_ids_are_in_the_vocabulary(self) -> None:
        tokenizer = self.make_tokenizer()
        for text in TEXTS:
            assert all(0 <= token < tokenizer.vocab_size for token in tokenizer.encode(text))
        assert tokenizer.eos_token_ids
        assert all(0 <= token < tokenizer.vocab_size for token in tokenizer.eos_token_ids)

    def test_bytes_of_tokens_make_the_text(self) -> None:
        tokenizer = self.make_tokenizer()
        for text in TEXTS if self.lossless else ():
            tokens = tokenizer.encode(text, special=False)
            assert b"".join(map(tokenizer.token_bytes, tokens)) == text.encode()

    def test_special_tokens_add_no_bytes(self) -> None:
        tokenizer = self.make_tokenizer()
        for token in tokenizer.eos_token_ids:
            assert tokenizer.token_bytes(token) == b""
            spelled = tokenizer.decode([token])
            assert spelled
            assert tokenizer.decode([token], skip_special=True) == ""
            assert token in tokenizer.encode(f"a{spelled}b")
            assert token not in tokenizer.encode(f"a{spelled}b", special=False)

    def test_is_free_of_state(self) -> None:
        tokenizer = self.make_tokenizer()
        first = [tokenizer.encode(text) for text in TEXTS]
        assert [tokenizer.encode(text) for text in TEXTS] == first
        assert [self.make_tokenizer().encode(text) for text in TEXTS] == first
