"""The explorer in a browser: by mouse and by keyboard it shows the numbers of the arrays, and it asks for nothing."""

import json
import re

import browser
import numpy as np
import pytest

from jaxformer.decode.open import open_run
from jaxformer.errors import UserError
from jaxformer.inspection import attention, explorer
from jaxformer.inspection.choice import Choice

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


@pytest.mark.skipif(browser.EXECUTABLE is None, reason='no Chromium is installed (apt-get install chromium)')
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

        def shown():
            return page.evaluate('reading.textContent'), page.evaluate('Number(reading.dataset.weight)')

        def hover(t, s):
            x, y = page.evaluate(
                f'(r => [r.x + left + ({s} + 0.5) * cell, r.y + above + ({t} + 0.5) * cell])'
                '(canvas.getBoundingClientRect())'
            )
            page.call('Input.dispatchMouseEvent', type='mouseMoved', x=x, y=y)
            return shown()

        def press(key, times=1):
            for _ in range(times):
                page.press(key, KEYS[key])

        def centre(selector):
            return page.evaluate(
                f'(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelector({selector!r})'
                '.getBoundingClientRect())'
            )

        # By the mouse: a head of the grid, then cells of its map, as many rows as columns or not.
        page.click(*centre('[data-place="1,2"]'))
        assert page.evaluate("document.getElementById('map-title').textContent") == 'Cross-attention, layer 2, head 3'
        assert page.evaluate('[layer.value, head.value]') == ['1', '2']
        cross = maps[0].cross[1, 2]
        rows, columns = maps[0].axes('cross')
        for t, s in ((0, 2), (1, 0), (len(rows) - 1, len(columns) - 1)):
            text, weight = hover(t, s)
            assert text == f'{rows[t]} (writing {maps[0].predicted[t]}) → {columns[s]}: {cross[t, s]:.4f}'
            assert weight == pytest.approx(cross[t, s], abs=1e-7)
        page.click(*centre('input[value=decoder]'))
        text, weight = hover(1, 3)
        assert text.endswith('cannot be seen') and weight == 0
        assert 'Causal' in page.evaluate("document.getElementById('about').textContent")

        # By the keyboard: the next text, the encoder, another head and layer, and to a cell.
        page.evaluate('example.focus()')
        press('ArrowDown')
        press('Tab')
        press('ArrowLeft')
        press('Tab')
        press('ArrowUp')
        press('Tab')
        press('ArrowUp', 2)
        assert page.evaluate("document.getElementById('map-title').textContent") == (
            'Encoder self-attention, layer 1, head 1'
        )
        press('Tab')
        assert page.evaluate('document.activeElement === canvas')
        press('ArrowLeft', 9)
        press('ArrowUp', 9)
        press('ArrowDown', 2)
        press('ArrowRight', 1)
        encoder = maps[1].encoder[0, 0]
        assert shown()[1] == pytest.approx(encoder[2, 1], abs=1e-7) != pytest.approx(encoder[1, 2], abs=1e-7)
        assert shown()[0] == f'{maps[1].source[2]} → {maps[1].source[1]}: {encoder[2, 1]:.4f}'
        press('Tab')
        press('ArrowRight')
        press('ArrowDown')
        assert page.evaluate('document.activeElement.dataset.place') == '1,1'
        assert shown()[1] == pytest.approx(maps[1].encoder[1, 1][2, 1], abs=1e-7)

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


def test_mistakes_name_the_value(run, tmp_path, monkeypatch):
    monkeypatch.setattr(explorer, 'MOST', 100)
    with pytest.raises(UserError, match='choose --which, --layers or --heads'):
        explorer.write(run, TEXTS, tmp_path)
    (tmp_path / 'file').write_text('in the way')
    monkeypatch.undo()
    with pytest.raises(UserError, match='choose a directory'):
        explorer.write(run, TEXTS[:1], tmp_path / 'file', Choice(('cross',)))
