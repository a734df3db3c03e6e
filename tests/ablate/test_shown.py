import pytest

from jaxformer.ablate import shown


@pytest.mark.parametrize(
    ('count', 'text'),
    [(0, '0'), (999, '999'), (1000, '1.00 k'), (123_456, '123 k'), (9.996e5, '1.00 M'), (6.75e18, '6.75 E'),
     (42.04e12, '42.0 T'), (99.96e9, '100 G'), (3.2e21, '3200 E')],
)  # fmt: skip
def test_operations_have_three_digits(count, text):
    assert shown.operations(count) == text


@pytest.mark.parametrize(('seconds', 'text'), [(0.4, '0 s'), (99, '99 s'), (100, '1.7 min'), (6000, '1.7 h')])
def test_durations(seconds, text):
    assert shown.duration(seconds) == text
