"""The explorer in a browser: by mouse and by keyboard it shows the numbers of the arrays, and it asks for nothing."""

import collections
import itertools
import json
import pathlib
import re

import browser
import numpy as np
import pytest

from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.open import OpenRun, open_run
from jaxformer.errors import UserError
from jaxformer.inspection import attention, explorer
from jaxformer.inspection.choice import Choice
from jaxformer.model import transformer

TEXTS = ('3 1 4 1', '2 7 </script> 8')
KEYS = {'ArrowLeft': 37, 'ArrowUp': 38, 'ArrowRight': 39, 'ArrowDown': 40, 'Tab': 9}


@pytest.fixture(scope='module')
def run(trained):
    return open_run(trained)


@pytest.fixture(scope='module')
def written(run, tmp_path_factory):
    return explorer.write(run, TEXTS, tmp_path_factory.mktemp('page') / 'new')


def test_the_page_holds_the_arrays_and_refers_to_nothing_outside(run, written):
    html = written.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:)[^"]*"', html) and not re.search('https?:', html)
    assert html.count('</script>') == 2  # that of a text ends none
    data = json.loads(re.search(r'id="data">(.*)</script>', html).group(1))
    assert [example['text'] for example in data['examples']] == list(TEXTS)
    cross = data['examples'][0]['kinds'][-1]
    assert (cross['kind'], cross['layers'], cross['heads']) == ('cross', [1, 2], [1, 2, 3])
    assert cross['columns'] == ['3', '1', '4', '1', '</s>'] and not any(cross['hidden'])


class Hand:
    """Mouse and keyboard on a page, and what it says of the cell under them."""

    def __init__(self, page):
        self.page = page

    def shown(self):
        return self.page.evaluate('reading.textContent'), self.page.evaluate('Number(reading.dataset.weight)')

    def hover(self, t, s):
        x, y = self.page.evaluate(
            f'(r => [r.x + left + ({s} + 0.5) * cell, r.y + above + ({t} + 0.5) * cell])'
            '(canvas.getBoundingClientRect())'
        )
        self.page.call('Input.dispatchMouseEvent', type='mouseMoved', x=x, y=y)
        return self.shown()

    def press(self, key, times=1):
        for _ in range(times):
            self.page.press(key, KEYS[key])

    def centre(self, selector):
        return self.page.evaluate(
            f'(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector({selector!r})'
            '.getBoundingClientRect())'
        )

    def text(self, name):
        return self.page.evaluate(f'document.getElementById({name!r}).textContent')


in_a_browser = pytest.mark.skipif(
    browser.EXECUTABLE is None, reason='no Chromium is installed (apt-get install chromium)'
)


@in_a_browser
def test_it_is_worked_by_mouse_and_by_keyboard(run, written, tmp_path):
    maps = [attention.of_run(run, text) for text in TEXTS]
    with browser.open_page(tmp_path / 'profile') as page:
        backgrounds = set()
        for width in (390, 1440):
            for scheme in ('light', 'dark'):
                page.open(written, width, scheme=scheme)
                page.screenshot(tmp_path / f'explorer-{width}-{scheme}.png')
                assert page.requests == [f'file://{written}'] and page.errors == []
                assert page.evaluate('document.documentElement.scrollWidth <= innerWidth')
                backgrounds.add(page.evaluate('getComputedStyle(document.body).backgroundColor'))
        assert len(backgrounds) == 2

        hand = Hand(page)
        # By the mouse: a head of the grid, then cells of its map, as many rows as columns or not.
        page.click(*hand.centre('[data-place="1,2"]'))
        assert page.evaluate("document.getElementById('map-title').textContent") == 'Cross-attention, layer 2, head 3'
        assert page.evaluate('[layer.value, head.value]') == ['1', '2']
        cross = maps[0].cross[1, 2]
        rows, columns = maps[0].axes('cross')
        for t, s in ((0, 2), (1, 0), (len(rows) - 1, len(columns) - 1)):
            text, weight = hand.hover(t, s)
            assert text == f'{rows[t]} (writing {maps[0].predicted[t]}) → {columns[s]}: {cross[t, s]:.4f}'
            assert weight == pytest.approx(cross[t, s], abs=1e-7)
        page.click(*hand.centre('input[value=decoder]'))
        text, weight = hand.hover(1, 3)
        assert text.endswith('cannot be seen') and weight == 0
        assert 'Causal' in page.evaluate("document.getElementById('about').textContent")

        # By the keyboard: the next text, the encoder, another head and layer, and to a cell.
        page.evaluate('example.focus()')
        hand.press('ArrowDown')
        hand.press('Tab')
        hand.press('ArrowLeft')
        hand.press('Tab')
        hand.press('ArrowUp')
        hand.press('Tab')
        hand.press('ArrowUp', 2)
        assert page.evaluate("document.getElementById('map-title').textContent") == (
            'Encoder self-attention, layer 1, head 1'
        )
        hand.press('Tab')
        assert page.evaluate('document.activeElement === canvas')
        hand.press('ArrowLeft', 9)
        hand.press('ArrowUp', 9)
        hand.press('ArrowDown', 2)
        hand.press('ArrowRight', 1)
        encoder = maps[1].encoder[0, 0]
        assert hand.shown()[1] == pytest.approx(encoder[2, 1], abs=1e-7) != pytest.approx(encoder[1, 2], abs=1e-7)
        assert hand.shown()[0] == f'{maps[1].source[2]} → {maps[1].source[1]}: {encoder[2, 1]:.4f}'
        hand.press('Tab')
        hand.press('ArrowRight')
        hand.press('ArrowDown')
        assert page.evaluate('document.activeElement.dataset.place') == '1,1'
        assert hand.shown()[1] == pytest.approx(maps[1].encoder[1, 1][2, 1], abs=1e-7)

        assert set(page.names('combobox')) == {'Text', 'Layer', 'Head'}
        assert page.names('radio') == ['encoder', 'decoder', 'cross'] and all(page.names('button'))
        assert 'Encoder self-attention, layer 2, head 2' in page.names('application')
        assert page.errors == []


def test_static_mixers_and_windows_are_shown_for_what_they_are(make_cfg):
    static = make_cfg(model__encoder_mixer='static', model__decoder_mixer='conv', model__position='none').model
    assert 'the same for every text' in explorer.about(static, 'encoder') and explorer.about(static, 'cross') == ''
    assert explorer.without(static) == 'No map of the decoder itself: it is a convolution over 3 positions.'
    local = make_cfg(model__attention__pattern='local', model__attention__window=1).model
    assert (
        explorer.about(local, 'decoder')
        == 'A window: keys up to 1 positions away. Causal: no look to the right of the diagonal.'
    )
    tri = np.abs(np.subtract.outer(range(4), range(4))) <= 1
    np.testing.assert_array_equal(explorer.visible(local, 'encoder', 0, 4, 4), tri)
    np.testing.assert_array_equal(explorer.visible(local, 'decoder', 0, 4, 4), np.tril(tri))
    assert explorer.visible(local, 'cross', 0, 4, 5).all()


@in_a_browser
def test_static_weights_and_windows_in_a_browser(make_cfg, tmp_path):
    """By mouse and by keyboard: weights that no text changes, squares that move with the layer, keys out of sight."""
    window = {'pattern': 'window2d', 'window': 2, 'grid_width': 3, 'shift': 1}
    cfg = make_cfg(
        model__encoder_mixer='static', **{f'model__attention__{name}': value for name, value in window.items()}
    )
    vocab = Vocabulary.of([str(i) for i in range(10)])
    model = transformer.build(cfg.model, len(vocab))
    run = OpenRun(pathlib.Path('nowhere'), cfg, vocab, model, transformer.init(model, 0), 0)
    texts = ('3 1 4 1 5 9', '2 7 1 8 2 8')
    maps = [attention.of_run(run, text) for text in texts]
    written = explorer.write(run, texts, tmp_path)
    squares = [[(t // 3 + n + 1) // 2 * 9 + (t % 3 + n + 1) // 2 for t in range(12)] for n in (-1, -2)]
    with browser.open_page(tmp_path / 'profile') as page:
        page.open(written, 1440)
        hand = Hand(page)
        page.click(*hand.centre('input[value=encoder]'))
        page.click(*hand.centre('[data-place="1,2"]'))
        assert 'Static: these weights are learned, and the same for every text.' in hand.text('about')
        assert 'Windows: squares of 2 by 2 in a grid of 3 columns, moved by 1 in every other layer.' in hand.text(
            'about'
        )
        seen = collections.Counter()
        for t, s in itertools.product(range(7), repeat=2):
            text, weight = hand.hover(t, s)
            shows = squares[1][t] == squares[1][s]
            assert weight == pytest.approx(maps[0].encoder[1, 2, t, s], abs=1e-7) and (weight > 0) == shows
            assert text.endswith(f': {weight:.4f}' if shows else 'cannot be seen')
            seen[shows] += 1
        assert seen[True] > 8 and seen[False] > 20

        # By the keyboard: another text has the same weights; the layer before it has other squares.
        page.evaluate('example.focus()')
        hand.press('ArrowDown')
        page.evaluate('canvas.focus()')
        hand.press('ArrowLeft', 9)
        hand.press('ArrowUp', 9)
        hand.press('ArrowRight', 4)
        hand.press('ArrowDown', 5)
        assert hand.shown()[0] == f'8 → 2: {maps[0].encoder[1, 2, 5, 4]:.4f}'
        assert 0 < hand.shown()[1] == pytest.approx(maps[1].encoder[1, 2, 5, 4], abs=1e-7)
        page.evaluate('layer.focus()')
        hand.press('ArrowUp')
        assert hand.shown() == ('8 → 2: cannot be seen', 0)
        page.evaluate('canvas.focus()')
        hand.press('ArrowUp')
        hand.press('ArrowLeft')
        assert hand.shown()[0] == f'2 → 8: {maps[1].encoder[0, 2, 4, 3]:.4f}'
        assert 0 < hand.shown()[1] == pytest.approx(maps[0].encoder[0, 2, 4, 3], abs=1e-7)
        np.testing.assert_allclose(maps[1].encoder, maps[0].encoder, atol=1e-7)

        page.click(*hand.centre('input[value=decoder]'))
        assert 'Static' not in hand.text('about') and 'Causal' in hand.text('about')
        assert hand.hover(3, 1)[0].endswith('cannot be seen') == (squares[0][3] != squares[0][1])
        assert page.errors == []


def test_mistakes_name_the_value(run, tmp_path, monkeypatch):
    monkeypatch.setattr(explorer, 'MOST', 100)
    with pytest.raises(UserError, match='choose --which, --layers or --heads'):
        explorer.write(run, TEXTS, tmp_path)
    (tmp_path / 'file').write_text('in the way')
    monkeypatch.undo()
    with pytest.raises(UserError, match='choose a directory'):
        explorer.write(run, TEXTS[:1], tmp_path / 'file', Choice(('cross',)))
