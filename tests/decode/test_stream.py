"""A line out for each line in, as they come: whatever bytes they hold, however long they are, file or open pipe."""

import io
import os
import random
import threading

import pytest
from test_lines import LINES, RUNS, run

from jaxformer.data.text import split_lines
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode import stream
from jaxformer.decode.lines import Writer, decode_lines
from jaxformer.main import main

ODD = ('a\u2028b\u0085c\x0bd\x0ce\x1cf', '\U0001f469\u200d\U0001f4bb {} \u0151\t</s> <pad>', 'nul\0nul', 'x\ufeffy')
ODD += ('lone\rcr',)


def read(content, longest=100, size=1000):
    lines = stream.Lines(io.BytesIO(content), longest)
    found = []
    while window := lines.window(size):
        assert len(window) <= size
        found += window
    return found, lines


@pytest.mark.parametrize('size', [1, 3, 100])
@pytest.mark.parametrize('block', [1, 5, 1 << 16])
def test_lines_are_those_of_split_lines_however_they_are_read(size, block, monkeypatch):
    """B52, B53: one line each for odd separators; line ends of both kinds; no last newline; a byte order mark."""
    monkeypatch.setattr(stream, '_BLOCK', block)
    text = '\n'.join((*ODD, '', '  ', 'crlf\r', 'two\r\r', '', 'last'))
    for end in ('', '\n', '\r\n', '\n\n'):
        found, lines = read(b'\xef\xbb\xbf' + (text + end).encode(), size=size)
        assert [line.text for line in found] == split_lines(text + end) and found[0].text == ODD[0]
        assert lines.damaged == 0 and not any(line.too_long for line in found)
    assert read(b'')[0] == read(b'\xef\xbb\xbf')[0] == [] and [line.text for line in read(b'\n')[0]] == ['']


def test_bytes_that_are_not_utf8_are_marked_and_counted():
    found, lines = read(b'a\xffb\n\xed\xa0\x80\nfine \xc5\x91\n\xef\xbf\xbd is itself\n\xc5')
    assert [line.text for line in found] == ['a\ufffdb', '\ufffd' * 3, 'fine \u0151', '\ufffd is itself', '\ufffd']
    assert lines.damaged == 3


def test_of_a_line_that_is_too_long_nothing_is_kept(monkeypatch):
    monkeypatch.setattr(stream, '_BLOCK', 7)
    found, lines = read(b'a\n' + b'x' * 101 + b'\n' + b'y' * 100 + b'\n' + b'z' * 1000, 100)
    assert [line.too_long for line in found] == [0, 101, 0, 1000]
    assert [len(line.text) for line in found] == [1, 0, 100, 0]
    lines = stream.Lines(io.BytesIO(b'x' * 100_000), 10)
    while not lines._ended:
        lines._take(lines._source.read(7))
        assert len(lines._begun) <= 10 + 7


def test_what_comes_through_a_pipe_is_answered_while_the_pipe_is_open(tmp_path):
    workdir = run('seq2seq', tmp_path / 'run')
    expected = decode_lines(workdir, None, LINES)
    reader, writer = os.pipe()
    answered = threading.Event()
    answers = []

    def write(content):
        answers.append(content)
        answered.set()

    with os.fdopen(reader, 'rb') as source, os.fdopen(writer, 'wb', buffering=0) as sink:
        work = threading.Thread(target=Writer(workdir).stream, args=(source, write))
        work.start()
        for line, answer in zip(LINES, expected, strict=True):
            sink.write(f'{line}\n'.encode())
            assert answered.wait(60)
            answered.clear()
            assert answers.pop() == f'{answer}\n'.encode()
        sink.close()
        work.join(60)
    assert not work.is_alive() and not answers


def test_windows_change_nothing(tmp_path, monkeypatch):
    """Order, numbers of n best, and draws, which depend on the number of the line."""
    workdir = run('seq2seq', tmp_path / 'run')
    given = [line for i in range(30) for line in (*LINES, ' '.join(str((i * j) % 9) for j in range(i % 5)))]
    for changes in ({'eval.search': 'sample'}, {'eval.search': 'beam', 'eval.num_best': 2}):
        content = io.BytesIO()
        monkeypatch.setattr('jaxformer.decode.lines._BATCHES', 7)
        Writer(workdir, None, changes).stream(io.BytesIO('\n'.join(given).encode()), content.write)
        expected = '\n'.join(decode_lines(workdir, None, given, changes))
        assert content.getvalue().decode() == expected + '\n'


def fuzzed(count):
    """Lines of bytes: noise, text of all scripts, blanks, names of special symbols, line ends of others, long ones."""
    draw = random.Random(7)
    pieces = [text.encode() for text in (*ODD, '', ' ', '\t', '\r', '\ufeff', '7 3', '<unk>', '\u3000', '\ufdd0')]
    for number in range(count):
        kind = draw.randrange(4)
        if number % 2500 == 1:
            yield b'x' * draw.choice((200, 300_000))
        elif kind == 0:
            yield draw.randbytes(draw.randrange(30)).replace(b'\n', b'')
        elif kind == 1:
            yield ''.join(chr(draw.randrange(0x20, 0xD800)) for _ in range(draw.randrange(9))).encode()
        else:
            yield b''.join(draw.choice(pieces) for _ in range(draw.randrange(kind)))


@pytest.mark.parametrize('tokenizer', ['bytes', 'native'])
def test_nothing_crashes_on_ten_thousand_fuzzed_lines(tokenizer, tmp_path, monkeypatch, caplog):
    """Each has its line, and the empty ones are those of blank lines and of those that are too long."""
    vocab = Vocabulary.learn('bytes', [], 0) if tokenizer == 'bytes' else RUNS['seq2seq'][2]
    files = {'data.name': 'parallel', 'data.source': 'a', 'data.target': 'b', 'data.tokenizer': tokenizer}
    fields = files | {'eval.batch_size': 256, 'eval.max_decode_length': 3, 'data.buckets': ((33, 9),)}
    monkeypatch.setitem(RUNS, 'seq2seq', ('tiny', fields, vocab))
    workdir = run('seq2seq', tmp_path / 'run')
    lines = list(fuzzed(10_000))
    (tmp_path / 'in').write_bytes(b'\n'.join(lines))
    limit = '--config.eval.max_source_length=100'
    assert main(['decode', f'--workdir={workdir}', f'--input={tmp_path}/in', f'--output={tmp_path}/out', limit]) == 0
    outputs = (tmp_path / 'out').read_bytes().decode().split('\n')
    assert outputs.pop() == '' and len(outputs) == 10_000
    texts = [line.decode(errors='replace') for line in lines]
    blank = [not text.strip('\ufeff' if i == 0 else '').strip() or len(lines[i]) > 150 for i, text in enumerate(texts)]
    short = [i for i, line in enumerate(lines) if not 80 < len(line) <= 150]
    if tokenizer == 'bytes':  # of which any may be put out; an output may still be an end at once, or a blank
        assert all(not outputs[i] for i in short if blank[i]) and len(short) > 9_900
        assert sum(bool(outputs[i]) for i in short if not blank[i]) > 4_000
        assert 'are too long and left out' in caplog.text
    assert ' of 10000 lines are not UTF-8' in caplog.text


def test_the_output_is_whole_or_as_it_was(tmp_path, monkeypatch, capsys):
    workdir = run('seq2seq', tmp_path / 'run')
    source, output = tmp_path / 'in', tmp_path / 'out'
    source.write_text('7 3\n' * 5)
    output.write_text('kept')
    flags = ['decode', f'--workdir={workdir}', f'--input={source}', f'--output={output}']
    with monkeypatch.context() as patch:
        patch.setattr(Writer, 'lines', lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            main(flags)
    assert output.read_text() == 'kept' and len(list(tmp_path.iterdir())) == 3
    link = tmp_path / 'link'
    link.symlink_to(output)
    assert main([*flags[:-1], f'--output={link}']) == 0 and link.is_symlink() and output.read_text().count('\n') == 5
    before = source.read_bytes()
    for same in (source, tmp_path / 'linked'):
        if same != source:
            same.symlink_to(source)
        assert main([*flags[:-1], f'--output={same}']) == 2 and source.read_bytes() == before
        assert f'--output={same}: is the --input, which it would replace; choose another' in capsys.readouterr().err
    assert main([*flags[:-1], '--output=/dev/null']) == 0 and not os.path.isfile('/dev/null')


def test_progress_is_shown_on_a_terminal_alone(tmp_path, monkeypatch):
    workdir = run('seq2seq', tmp_path / 'run')

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    for terminal in (Terminal(), io.StringIO()):
        monkeypatch.setattr('sys.stderr', terminal)
        Writer(workdir).stream(io.BytesIO(b'7 3\n1 2\n'), io.BytesIO().write, 8)
        assert ('2 lines (100 % read)' in terminal.getvalue()) == isinstance(terminal, Terminal)
        assert isinstance(terminal, Terminal) or terminal.getvalue() == ''
