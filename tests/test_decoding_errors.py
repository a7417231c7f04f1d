import functools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midge.decoding import ErrorCounts, TextErrors, align, count_errors, errors, text_errors

SHORT = st.text("abc", max_size=6)
LONGER = st.text("ab", max_size=24)


def enumerated(reference, hypothesis):
    """(errors, substitutions, deletions, insertions) of every alignment."""

    @functools.cache
    def alignments(row, column):
        if row == len(reference) and column == len(hypothesis):
            return {(0, 0, 0, 0)}
        found = set()
        if row < len(reference) and column < len(hypothesis):
            wrong = int(reference[row] != hypothesis[column])
            paired = alignments(row + 1, column + 1)
            found |= {(e + wrong, s + wrong, d, i) for e, s, d, i in paired}
        if row < len(reference):
            found |= {(e + 1, s, d + 1, i) for e, s, d, i in alignments(row + 1, column)}
        if column < len(hypothesis):
            found |= {(e + 1, s, d, i + 1) for e, s, d, i in alignments(row, column + 1)}
        return found

    return alignments(0, 0)


def counted(pairs):
    operations = [pair.operation for pair in pairs]
    return ErrorCounts(*(operations.count(operation) for operation in "=SDI"))


@given(SHORT, SHORT)
@settings(deadline=None)
def test_counts_are_those_of_the_best_of_all_alignments(reference, hypothesis):
    num_errors, substitutions, deletions, insertions = min(enumerated(reference, hypothesis))
    found = count_errors(reference, hypothesis)
    assert found.num_errors == num_errors
    assert (found.num_substitutions, found.num_deletions, found.num_insertions) == (
        substitutions,
        deletions,
        insertions,
    )
    assert found.num_reference == len(reference)
    assert found.num_correct + substitutions + insertions == len(hypothesis)


@given(LONGER, LONGER)
@settings(deadline=None)
def test_an_alignment_spells_both_and_has_the_counts(reference, hypothesis):
    pairs = align(reference, hypothesis)
    assert "".join(pair.reference or "" for pair in pairs) == reference
    assert "".join(pair.hypothesis or "" for pair in pairs) == hypothesis
    assert counted(pairs) == count_errors(reference, hypothesis)


@given(LONGER, LONGER)
@settings(deadline=None)
def test_a_task_cut_in_halves_has_the_same_counts(reference, hypothesis):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "MAX_NUM_CELLS", 4)
        pairs = align(reference, hypothesis)
    assert "".join(pair.reference or "" for pair in pairs) == reference
    assert "".join(pair.hypothesis or "" for pair in pairs) == hypothesis
    assert counted(pairs) == count_errors(reference, hypothesis)


@given(LONGER, LONGER, LONGER)
@settings(deadline=None)
def test_the_number_of_errors_is_a_distance(first, second, third):
    def distance(one, other):
        return count_errors(one, other).num_errors

    assert distance(first, first) == 0
    assert (distance(first, second) == 0) == (first == second)
    assert distance(first, second) == distance(second, first)
    assert distance(first, third) <= distance(first, second) + distance(second, third)


@given(LONGER, LONGER)
@settings(deadline=None)
def test_exchange_makes_deletions_of_insertions(reference, hypothesis):
    one, other = count_errors(reference, hypothesis), count_errors(hypothesis, reference)
    assert one.num_substitutions == other.num_substitutions
    assert (one.num_deletions, one.num_insertions) == (other.num_insertions, other.num_deletions)


@pytest.mark.parametrize(
    "reference, hypothesis, operations",
    [
        ("", "", ""),
        ("ab", "", "DD"),
        ("", "ab", "II"),
        ("ab", "ab", "=="),
        ("ab", "bc", "D=I"),  # as many errors as two substitutions, but one unit is right
        ("abcd", "cdab", "DD==II"),
        ("ab", "x", "SD"),  # a pair comes first
        ("a", "xy", "SI"),
        ("aab", "ab", "=D="),  # equal ends are pairs
    ],
)
def test_ties_are_decided_always_alike(reference, hypothesis, operations):
    pairs = align(reference, hypothesis)
    assert "".join(pair.operation for pair in pairs) == operations


def test_fewest_errors_go_before_most_right_units():
    # By sclite's weights (substitution 4, others 3), 6 errors with "de" right are less: 18 < 20.
    assert count_errors("abcde", "dexyz") == ErrorCounts(num_substitutions=5)


def test_words_of_any_kind_are_units():
    assert count_errors([1, (2, 3)], [1, None]) == ErrorCounts(1, 1, 0, 0)


def test_a_thousand_words_are_aligned():
    words = [str(number % 97) for number in range(1000)]
    wrong = [word for place, word in enumerate(words) if place % 10]
    assert count_errors(words, wrong) == ErrorCounts(num_correct=900, num_deletions=100)
    assert counted(align(words, wrong)) == ErrorCounts(num_correct=900, num_deletions=100)


def test_counts_add_up():
    parts = [count_errors("abc", "abd"), count_errors("a", ""), count_errors("", "x")]
    total = sum(parts, ErrorCounts())
    assert total == ErrorCounts(2, 1, 1, 1)
    assert total.rate == 3 / 4


def test_rates_without_a_reference():
    assert ErrorCounts().rate == 0.0
    assert ErrorCounts(num_insertions=1).rate == float("inf")


def test_a_text_is_scored_by_word_character_and_sentence():
    found = text_errors(" THE  CAT SAT", "THE CAT SAD ")
    assert found.words == ErrorCounts(num_correct=2, num_substitutions=1)
    assert found.characters == ErrorCounts(num_correct=10, num_substitutions=1)
    assert found.sentences == ErrorCounts(num_substitutions=1)
    right = text_errors("A B", "A  B")
    assert right.sentences == ErrorCounts(num_correct=1)
    assert (found + right).sentences.rate == 0.5
    assert found + TextErrors() == found


def test_a_space_is_a_character():
    found = text_errors("IN TO", "INTO")
    assert found.characters == ErrorCounts(num_correct=4, num_deletions=1)
    assert found.words == ErrorCounts(num_substitutions=1, num_deletions=1)
