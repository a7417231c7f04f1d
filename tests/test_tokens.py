"""Tokens: round trips, words, normalization, and errors that name the utterance."""

from __future__ import annotations

import functools
import json
import string
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.configuration import from_table, to_table
from midge.tokens import (
    Graphemes,
    SentencePieces,
    TokenError,
    Tokens,
    TokensConfig,
    Word,
    build_tokens,
)

SENTENCES = (
    "the quick brown fox jumps over the lazy dog",
    "pack my box with five dozen liquor jugs",
    "how vexingly quick daft zebras jump",
    "sphinx of black quartz judge my vow",
    "don't the five boxing wizards jump quickly",
)
CONFIGS = (
    TokensConfig(),
    TokensConfig(kind="sentencepiece", vocab_size=50),
    TokensConfig(kind="sentencepiece", vocab_size=60, model_type="bpe", case="lower"),
)
letters = st.text(string.ascii_lowercase + "' ", max_size=40)


@functools.cache
def tokens_of(config: TokensConfig) -> Tokens:
    return build_tokens(config, [(f"u{i}", text) for i, text in enumerate(SENTENCES)])


@pytest.mark.parametrize("config", CONFIGS)
@settings(deadline=None, max_examples=100)
@given(text=letters)
def test_text_survives(config, text):
    tokens = tokens_of(config)
    labels = tokens.encode(text)
    assert all(1 <= label <= tokens.vocab_size for label in labels)
    assert tokens.decode(labels) == tokens.normalize(text)


@pytest.mark.parametrize("config", CONFIGS)
@settings(deadline=None, max_examples=100)
@given(data=st.data())
def test_words_of_any_labels(config, data):
    tokens = tokens_of(config)
    labels = data.draw(st.lists(st.integers(1, tokens.vocab_size), max_size=20))
    words = tokens.words(labels)
    assert tokens.decode(labels) == " ".join(word.text for word in words)
    end = -1
    for word in words:
        assert end < word.first <= word.last
        end = word.last
        spelled = "".join(tokens.symbols[label - 1] for label in labels[word.first : end + 1])
        assert spelled.removeprefix("\u2581") == word.text
    covered = {i for word in words for i in range(word.first, word.last + 1)}
    for index in set(range(len(labels))) - covered:
        assert tokens.symbols[labels[index] - 1] in (" ", "\u2581")


@pytest.mark.parametrize("config", CONFIGS)
@settings(deadline=None, max_examples=50)
@given(text=letters)
def test_words_of_a_text_are_its_words(config, text):
    tokens = tokens_of(config)
    words = tokens.words(tokens.encode(text))
    assert [word.text for word in words] == tokens.normalize(text).split()


@pytest.mark.parametrize("config", CONFIGS)
def test_tokens_survive_json(config):
    tokens = tokens_of(config)
    again = Tokens.from_json(json.loads(json.dumps(tokens.to_json())))
    assert type(again) is type(tokens)
    assert (again.config, again.symbols) == (tokens.config, tokens.symbols)
    assert all(again.encode(text) == tokens.encode(text) for text in SENTENCES)


@pytest.mark.parametrize("config", CONFIGS)
def test_building_twice_gives_the_same(config):
    again = build_tokens(config, [(f"u{i}", text) for i, text in enumerate(SENTENCES)])
    assert again.to_json() == tokens_of(config).to_json()


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("text, character", [("route 66", "6"), ("caf\u00e9", "\u00e9")])
def test_a_character_outside_the_set_names_utterance_character_and_set(config, text, character):
    tokens = tokens_of(config)
    character = tokens.normalize(character)
    with pytest.raises(TokenError) as raised:
        tokens.encode(text, "utterance-7")
    message = str(raised.value)
    assert message.startswith(f"utterance utterance-7: character {character!r} (U+00")
    assert tokens.normalize("abcdefghijklmnopqrstuvwxyz") in message
    assert isinstance(raised.value, ValueError)


def test_graphemes_are_the_sorted_characters_of_the_text():
    tokens = build_tokens(TokensConfig(), [("a", "one"), ("b", "two  one")])
    assert isinstance(tokens, Graphemes)
    assert tokens.symbols == (" ", "E", "N", "O", "T", "W")
    assert tokens.vocab_size == 6
    assert tokens.encode("wet") == [6, 2, 5]


def test_words_have_the_indices_of_their_labels():
    tokens = build_tokens(TokensConfig(), [("a", "one two")])
    space, one, two = tokens.symbols.index(" ") + 1, tokens.encode("one"), tokens.encode("two")
    labels = [space, *one, space, space, *two, space]
    assert tokens.words(labels) == [Word("ONE", 1, 3), Word("TWO", 6, 8)]
    assert tokens.decode(labels) == "ONE TWO"
    assert tokens.words([]) == [] == tokens.words([space])


def test_pieces_are_as_many_as_asked_and_larger_than_characters():
    tokens = tokens_of(CONFIGS[1])
    assert isinstance(tokens, SentencePieces)
    assert tokens.vocab_size == 50
    assert len(tokens.encode(SENTENCES[0])) < len(SENTENCES[0])
    assert "<unk>" not in tokens.symbols


def test_a_long_text_is_not_skipped():
    # sentencepiece by itself leaves out texts of more than 4192 bytes.
    long = "zebra " * 1000
    tokens = build_tokens(
        TokensConfig(kind="sentencepiece", vocab_size=8), [("a", long), ("b", "ab ra")]
    )
    assert tokens.decode(tokens.encode("zebra")) == "ZEBRA"


@pytest.mark.parametrize(
    "config, text, expected",
    [
        (TokensConfig(), " one\t two\n", "ONE TWO"),
        (TokensConfig(case="lower"), "ONE", "one"),
        (TokensConfig(case="keep"), "One", "One"),
        (TokensConfig(), "stra\u00dfe", "STRASSE"),
        (TokensConfig(), "cafe\u0301", "CAF\u00c9"),
        (TokensConfig(remove=".,-"), "well, well - so.", "WELL WELL SO"),
        (TokensConfig(unicode_form="NFKC"), "\ufb01ne \uff21", "FINE A"),
        (TokensConfig(), "\u00a0one\u2003two", "ONE TWO"),
    ],
)
def test_normalization(config, text, expected):
    assert config.normalize(text) == expected


@pytest.mark.parametrize("case", ["upper", "lower", "keep"])
@settings(deadline=None, max_examples=300)
@given(text=st.text(max_size=20))
def test_normalization_is_done_once(case, text):
    config = TokensConfig(case=case, remove=".,;")
    once = config.normalize(text)
    assert config.normalize(once) == once
    assert once == unicodedata.normalize("NFC", once)


@settings(deadline=None, max_examples=100)
@given(texts=st.lists(st.text(max_size=20), min_size=1, max_size=5))
def test_graphemes_cover_their_own_text_whatever_it_is(texts):
    config = TokensConfig(case="keep")
    if not any(map(config.normalize, texts)):
        return
    tokens = build_tokens(config, [(str(i), text) for i, text in enumerate(texts)])
    for text in texts:
        assert tokens.decode(tokens.encode(text)) == config.normalize(text)


@pytest.mark.parametrize("labels", [[0], [7], [-1]])
def test_labels_out_of_range(labels):
    tokens = build_tokens(TokensConfig(), [("a", "one two")])
    with pytest.raises(ValueError, match=r"labels should be in 1\.\.6"):
        tokens.decode(labels)


@pytest.mark.parametrize("config", CONFIGS)
@pytest.mark.parametrize("texts", [[], [("a", "")], [("a", " \n ")]])
def test_no_text_is_an_error(config, texts):
    with pytest.raises(ValueError, match="texts should hold at least one character"):
        build_tokens(config, texts)


def test_more_pieces_than_the_text_has_is_an_error_with_the_limit():
    texts = [("a", SENTENCES[0])]
    with pytest.raises(ValueError, match=r"vocab_size should be at most \d+ .* got 5000") as raised:
        build_tokens(TokensConfig(kind="sentencepiece", vocab_size=5000), texts)
    limit = int(str(raised.value).split("at most ")[1].split()[0])
    config = TokensConfig(kind="sentencepiece", vocab_size=limit)
    assert build_tokens(config, texts).vocab_size == limit


def test_fewer_pieces_than_characters_is_an_error():
    config = TokensConfig(kind="sentencepiece", vocab_size=5)
    with pytest.raises(ValueError, match="vocab_size should be another .* got 5"):
        build_tokens(config, [("a", SENTENCES[0])])


def test_the_sign_of_sentencepiece_is_refused():
    with pytest.raises(TokenError, match="utterance b: .*sentencepiece's own sign"):
        build_tokens(CONFIGS[1], [("a", "one"), ("b", "t\u2581wo")])
    with pytest.raises(TokenError, match="utterance c"):
        tokens_of(CONFIGS[1]).encode("t\u2581wo", "c")


@pytest.mark.parametrize(
    "values, message",
    [
        ({"vocab_size": 10}, "vocab_size should be left out for graphemes"),
        ({"kind": "sentencepiece"}, "vocab_size should be a positive number"),
        ({"kind": "sentencepiece", "vocab_size": 0}, "vocab_size should be a positive number"),
    ],
)
def test_wrong_configurations(values, message):
    with pytest.raises(ValueError, match=message):
        TokensConfig(**values)


@pytest.mark.parametrize("config", CONFIGS)
def test_a_configuration_survives_its_table(config):
    assert from_table(TokensConfig, to_table(config)) == config


@pytest.mark.parametrize(
    "stored",
    [
        {},
        {"config": {"kind": "graphemes"}},
        {"config": {"kind": "graphemes"}, "symbols": ["AB"]},
        {"config": {"kind": "graphemes"}, "symbols": ["A", "A"]},
        {"config": {"kind": "sentencepiece", "vocab_size": 3}, "model": "AAAA"},
        {"config": {"kind": "sentencepiece", "vocab_size": 3}, "model": "?"},
        {"config": {"kind": "letters"}},
    ],
)
def test_broken_storage_is_an_error(stored):
    with pytest.raises(ValueError):
        Tokens.from_json(stored)
