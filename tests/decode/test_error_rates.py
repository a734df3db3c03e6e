"""Error rates counted by hand."""

import pytest

from jaxformer.decode.error_rates import count_errors, error_rates, rates


def test_rates_are_summed_edits_over_summed_reference_length():
    hypotheses = [['K', 'AE', 'T'], ['D', 'AO'], ['F', 'IH', 'SH', 'S']]
    references = [[['K', 'AE', 'T']], [['D', 'AO', 'G']], [['F', 'EH', 'SH']]]
    # no edit of 3; one deletion of 3; one substitution and one insertion of 3
    assert error_rates(hypotheses, references) == {'per': pytest.approx(3 / 9), 'wer': pytest.approx(2 / 3)}


def test_what_each_hypothesis_adds():
    hypotheses = [['A', 'B'], ['A'], []]
    references = [[['C', 'A', 'B', 'D'], ['A', 'B', 'C']], [['A']], [['A', 'B']]]
    errors, symbols, wrong = count_errors(hypotheses, references)
    assert (errors.tolist(), symbols.tolist(), wrong.tolist()) == ([1, 0, 2], [3, 1, 2], [True, False, True])
    assert rates(errors, symbols, wrong, ('a', 'b')) == {'a': 3 / 6, 'b': 2 / 3}
    with pytest.raises(ValueError, match='over nothing'):
        rates(errors[:0], symbols[:0], wrong[:0])


def test_a_word_is_right_where_it_equals_any_pronunciation_and_is_measured_against_the_nearest():
    references = [[['T', 'AH', 'M', 'EY', 'T', 'OW'], ['T', 'AH', 'M', 'AA', 'T', 'OW']]]
    assert error_rates([['T', 'AH', 'M', 'AA', 'T', 'OW']], references) == {'per': 0, 'wer': 0}
    assert error_rates([['T', 'AH', 'M', 'AA', 'T']], references) == {'per': pytest.approx(1 / 6), 'wer': 1}


def test_of_equally_near_references_the_first_gives_the_length():
    hypothesis = [['A', 'B']]
    assert error_rates(hypothesis, [[['A'], ['A', 'B', 'C']]])['per'] == 1.0
    assert error_rates(hypothesis, [[['A', 'B', 'C'], ['A']]])['per'] == pytest.approx(1 / 3)


def test_symbols_are_compared_whole_not_letter_by_letter():
    assert error_rates([['AE1']], [[['AE0']]]) == {'per': 1, 'wer': 1}


def test_an_empty_hypothesis_is_all_deletions_and_more_can_be_wrong_than_there_is():
    assert error_rates([[]], [[['A', 'B']]]) == {'per': 1, 'wer': 1}
    assert error_rates([['A', 'B', 'C']], [[['D']]])['per'] == 3
    assert error_rates([[]], [[[]]]) == {'per': 0, 'wer': 0}


def test_tuples_and_lists_are_the_same_symbols():
    assert error_rates([('A', 'B')], [[['A', 'B']]])['wer'] == 0


@pytest.mark.parametrize(('hypotheses', 'references'), [([], []), ([['A']], []), ([], [[['A']]])])
def test_unequal_counts_and_nothing_at_all_are_refused(hypotheses, references):
    with pytest.raises(ValueError, match=f'{len(hypotheses)} hypotheses against {len(references)} references'):
        error_rates(hypotheses, references)
