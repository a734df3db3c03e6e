"""Help pages in two languages, aligned by the ids of their elements."""

from pathlib import Path

import pytest

from jaxformer import config
from jaxformer.data import corpus, help_pages
from jaxformer.errors import UserError

INSTALLED = Path('/usr/share/libreoffice/help')

PAGE = """<html><head><title>No text</title></head><body><p>Navigation without an id</p>
<h1 id="hd_id1" dir="auto">{0} title of the page</h1>
<p id="par_id2" class="p">{0} with <span class="emph">marks</span> &amp; a
  line<br>end</p><p id="par_id3">{0} short</p>
<p id="N4">{0} is numbered by the build</p>
<ul><li><p id="par_id5">{0} first <p id="par_id6">{0} unclosed second item</p></li></ul>
<p id="par_id7">the same in both</p><p id="par_id8">{1}</p></body></html>"""


def test_elements_are_headings_and_paragraphs_with_an_id_of_the_translation():
    assert help_pages.elements(PAGE.format('Here', 'x')) == {
        'hd_id1': 'Here title of the page',
        'par_id2': 'Here with marks & a line end',
        'par_id3': 'Here short',
        'par_id5': 'Here first',
        'par_id6': 'Here unclosed second item',
        'par_id7': 'the same in both',
        'par_id8': 'x',
    }


def test_what_is_too_short_or_of_another_length_or_the_same_is_no_pair():
    ours = help_pages.elements(PAGE.format('Here', 'one two three'))
    theirs = help_pages.elements(PAGE.format('Dort', 'ein ' * 9))
    assert list(help_pages.aligned(ours, theirs)) == [
        ('Here title of the page', 'Dort title of the page'),
        ('Here with marks & a line end', 'Dort with marks & a line end'),
        ('Here unclosed second item', 'Dort unclosed second item'),
    ]
    assert list(help_pages.aligned({'par_id1': 'a b c'}, {'par_id1': 'a b'})) == [('a b c', 'a b')]
    assert not list(help_pages.aligned({'par_id1': 'a b'}, {'par_id1': 'c d'}))  # three words at least
    assert not list(help_pages.aligned({'par_id1': 'a ' * 61}, {'par_id1': 'c ' * 61}))
    assert not list(help_pages.aligned({'par_id1': 'Style names here'}, {'par_id1': 'Formatvorlagennamen'}))


@pytest.fixture
def data(tmp_path, make_data):
    for language, word in (('en', 'Here'), ('de', 'Dort')):
        for number in range(60):
            page = tmp_path / language / 'text' / f'{number}.html'
            page.parent.mkdir(parents=True, exist_ok=True)
            page.write_text(PAGE.format(word, f'{word} only on page {number}'), encoding='utf-8')
    (tmp_path / 'en' / 'only.html').write_text(PAGE.format('Here', 'Here without a translation'))
    folders = {'source': str(tmp_path / 'en'), 'target': str(tmp_path / 'de')}
    return make_data(tmp_path / 'data', 'help_pages', tokenizer='characters', **folders)


def test_pages_belong_to_a_split_whole_and_no_pair_to_two(data):
    found = corpus.load(data)
    splits = {name: found.split(name) for name in ('train', 'dev', 'test')}
    texts = [(name, split.source_text(i)) for name, split in splits.items() for i in range(len(split))]
    assert len(texts) == len({text for _, text in texts}) == 3 + 60
    own = {name: [text for split, text in texts if split == name and 'only on page' in text] for name in splits}
    assert all(own.values()) and len(own['train']) > 40


def test_a_changed_page_is_other_data(data, tmp_path):
    before = help_pages.fingerprint(data)
    assert help_pages.fingerprint(data) == before
    (tmp_path / 'de' / 'text' / '7.html').write_text('<p id="par_id1">anders</p>')
    assert help_pages.fingerprint(data) != before


def test_a_folder_without_pages_is_named(tmp_path, make_data):
    data = make_data(tmp_path / 'data', 'help_pages', source=str(tmp_path / 'none'), target=str(tmp_path / 'none'))
    with pytest.raises(UserError, match='data.source=.*none: no help pages .* install libreoffice-help-en-us'):
        help_pages.fingerprint(data)


@pytest.mark.skipif(not INSTALLED.exists(), reason='needs apt-get install libreoffice-help-en-us libreoffice-help-de')
def test_the_installed_pages_give_28_thousand_pairs(tmp_path):
    cfg = config.resolve(config.load(Path(__file__).parents[2] / 'configs' / 'help_en_de.py'))
    pairs = help_pages.HelpPages(
        cfg.data.source, cfg.data.target, data_dir=tmp_path, file_format='array_record'
    ).pairs()
    assert 28_000 < sum(map(len, pairs.values())) < 28_500
