"""The page of a report, as a browser shows it."""

import re

import browser
import pytest

from jaxformer.ablate import report


def test_the_page_names_its_figures_and_refers_to_nothing_outside(workdir):
    report.write(workdir)
    html = (workdir / 'report.html').read_text()
    ids = re.findall(r'\bid="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert set(re.findall(r'(?:url\(|href=")#([^")]+)', html)) <= set(ids)
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', html)
    assert (
        html.count('<svg') == html.count('role="img"') == html.count('<desc') == 7
    )  # five metrics, training loss, parameters
    assert '#0abc' not in html


@pytest.mark.skipif(browser.EXECUTABLE is None, reason='no Chromium is installed (apt-get install chromium)')
def test_the_page_in_a_browser(whole, tmp_path):
    page_path = report.write(whole)['html']
    with browser.open_page(tmp_path / 'profile') as page:
        backgrounds = {}
        for width in (390, 1440):
            for scheme in ('light', 'dark'):
                page.open(page_path, width, scheme=scheme)
                page.screenshot(tmp_path / f'report-{width}-{scheme}.png')
                assert page.requests == [f'file://{page_path}']
                assert page.errors == []
                assert page.evaluate('document.documentElement.scrollWidth <= innerWidth')
                backgrounds[scheme] = page.evaluate('getComputedStyle(document.body).backgroundColor')
        assert backgrounds['light'] != backgrounds['dark']

        images = page.names('image')
        assert len(images) == 7 and images[0].startswith('Dev PER by step Mean over seeds at the last step: base')
        assert images[-1].startswith('Dev PER against parameters (1) num_heads=1: 1,000 parameters, dev PER')
        assert page.names('table') == ['Results', 'What the examples leave open', 'Cells']
        assert set(page.names('region')) >= {'Results', 'What the examples leave open', 'Cells'}
        buttons = page.names('button')
        assert buttons[:4] == ['row', 'num_heads', 'dev PER % ↓', 'Δ dev PER'] and all(buttons)
        assert page.names('rowheader')[:3] == ['base', '(1)', '(2)']

        column = page.evaluate("[...document.querySelectorAll('thead th')].findIndex(h => h.innerText.includes('PER'))")
        order = (
            '[...document.querySelectorAll(".results tbody tr")]'
            f'.map(r => [r.cells[0].innerText, r.cells[{column}].innerText])'
        )
        sort = f'document.querySelectorAll("thead th")[{column}].getAttribute("aria-sort")'
        said = 'document.querySelector("[role=status]").innerText'
        original = page.evaluate(order)
        ascending = ['(1)', 'base', '(2)']  # what has no value is last
        page.evaluate(f'document.querySelectorAll("thead button")[{column}].focus()')
        for key, code, text in (('Enter', 13, '\r'), (' ', 32, ' ')):
            page.press(key, code, text)
            assert page.evaluate(sort) == 'ascending' and page.evaluate(said) == 'Sorted by dev PER % ↓, ascending'
            assert [name for name, _ in page.evaluate(order)] == ascending
            page.press(key, code, text)
            assert page.evaluate(sort) == 'descending'
            assert [name for name, _ in page.evaluate(order)] == ['base', '(1)', '(2)']
            page.press(key, code, text)
            assert page.evaluate(sort) == 'none' and page.evaluate(said) == 'Rows in their own order'
            assert page.evaluate(order) == original
        page.press('Tab', 9)
        assert page.evaluate('document.activeElement.innerText') == buttons[column + 1]

        place = page.evaluate(
            f'(r => [r.x + r.width / 2, r.y + r.height / 2])(document.querySelectorAll("thead button")[{column}]'
            '.getBoundingClientRect())'
        )
        page.click(*place)
        assert page.evaluate(sort) == 'ascending' and [name for name, _ in page.evaluate(order)] == ascending
        page.evaluate(f'document.querySelectorAll("thead button")[{column + 1}].click()')
        assert page.evaluate(sort) == 'none'  # one column sorts at a time
        assert page.errors == []


@pytest.mark.skipif(browser.EXECUTABLE is None, reason='no Chromium is installed (apt-get install chromium)')
def test_the_browser_test_would_notice(tmp_path):
    (tmp_path / 'bad.html').write_text(
        '<img src="http://127.0.0.1:9/x.png"><script>console.error("oh"); nope()</script>'
    )
    with browser.open_page(tmp_path / 'profile') as page:
        page.open(tmp_path / 'bad.html', 390)
        assert 'http://127.0.0.1:9/x.png' in page.requests
        assert len(page.errors) >= 2
