"""`decode_lines`: what a run writes, by the search of its config or by another one that is asked for."""

import pathlib

import jax
import pytest

from jaxformer import checkpoint, config, files
from jaxformer.data.vocab import Vocabulary
from jaxformer.decode.lines import decode_lines
from jaxformer.errors import UserError
from jaxformer.model import transformer

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'
SMALL = {'model.d_model': 12, 'model.num_heads': 2, 'model.d_ff': 10, 'model.num_layers': 1}
SMALL |= {'eval.max_decode_length': 5, 'eval.batch_size': 2, 'runtime.compilation_cache': ''}
RUNS = {
    'seq2seq': ('tiny', {}, Vocabulary.of([str(i) for i in range(11)])),
    'lm': ('gpt_tiny', {'data.tokenizer': 'bytes'}, Vocabulary.learn('bytes', [], 0)),
}
LINES = ['7 3', '', '1 2', '3 7']


def run(family, workdir):
    """A run that was not trained; its parameters are drawn wide, so that outputs are varied."""
    name, changes, vocab = RUNS[family]
    edited = config.load(CONFIGS / f'{name}.py')
    config.override(edited, SMALL | changes | {'data.dir': str(workdir / 'gone')})
    cfg = config.resolve(edited)
    workdir.mkdir()
    files.write_json(workdir / 'config.json', config.to_dict(cfg))
    files.write_json(workdir / 'vocab.json', vocab.to_json())
    params = jax.tree.map(lambda leaf: leaf * 1.7, transformer.init(transformer.build(cfg.model, len(vocab)), 5))
    checkpoint.save(workdir / 'checkpoints', 1, {'params': params}, {}, config.to_dict(cfg), 1)
    return workdir


@pytest.mark.parametrize('family', RUNS)
def test_a_search_that_is_asked_for_takes_the_place_of_that_of_the_config(family, tmp_path):
    workdir = run(family, tmp_path / 'run')
    greedy = decode_lines(workdir, None, LINES)
    beam = {'eval.search': 'beam', 'eval.beam_size': '3', 'eval.length_penalty': '0'}
    one = decode_lines(workdir, None, LINES, beam | {'eval.beam_size': 1})
    assert one == greedy and greedy[1] == '' and len(set(greedy)) > 2  # without a penalty a single beam is greedy
    several = [block.split('\n') for block in decode_lines(workdir, None, LINES, beam | {'eval.num_best': '2'})]
    assert [len(block) for block in several] == [2, 1, 2, 2]
    assert [block[0].split(' ||| ')[0] for block in several] == ['0', '1', '2', '3']
    assert [block[0].split(' ||| ')[1] for block in several] != greedy
    sample = {'eval.search': 'sample', 'eval.sample_seed': 3}
    assert len({*map(tuple, (decode_lines(workdir, 1, LINES, sample), decode_lines(workdir, 1, LINES), greedy))}) == 2
    with pytest.raises(UserError, match='--config.model.d_model: decode changes only eval; the model is that of'):
        decode_lines(workdir, None, LINES, {'model.d_model': 24})
    with pytest.raises(UserError, match='config.eval.beam: no such field; did you mean config.eval.beam_size'):
        decode_lines(workdir, None, LINES, {'eval.beam': 4})


def test_a_prompt_is_read_and_no_part_of_what_is_written(tmp_path):
    """Draws of a line do not depend on the lines before it, but on its number; those of equal prompts differ."""
    workdir = run('lm', tmp_path / 'run')
    sample = {'eval.search': 'sample'}
    whole = decode_lines(workdir, None, ['7 3', '1 2', '7 3', '7 3'], sample)
    assert len(set(whole)) == 4
    assert decode_lines(workdir, None, ['', '1 2', '', '7 3'], sample) == ['', whole[1], '', whole[3]]
    forced = decode_lines(workdir, None, ['7 3', '1 2'], {'eval.search': 'beam', 'eval.forced_prefix': 'ab'})
    assert all(line.startswith('ab') for line in forced)


def test_what_has_no_room_is_refused_before_it_is_decoded(tmp_path):
    """B24: the prompt, what is to follow and the limit are named. One symbol less fits."""
    workdir = run('lm', tmp_path / 'run')
    with pytest.raises(UserError, match='line 2: 124 symbols and .*max_decode_length=5 go beyond .*max_length=128'):
        decode_lines(workdir, None, ['', 'x' * 124])
    assert len(decode_lines(workdir, None, ['', 'x' * 123])) == 2


def test_outputs_that_are_cut_are_counted_with_the_remedy(tmp_path, caplog):
    """Of one symbol none has room for its end, unless that is all; the blank line has nothing to cut."""
    workdir = run('seq2seq', tmp_path / 'run')
    outputs = decode_lines(workdir, None, LINES, {'eval.max_decode_length': '1'})
    written = sum(map(bool, outputs))
    said = f'{written} of 4 outputs are cut at config.eval.max_decode_length=1; raise it for whole ones'
    assert written and said in caplog.text
