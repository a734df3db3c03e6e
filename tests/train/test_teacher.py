"""A run that learns from another one beside the labels."""

import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.special
import scipy.stats
import small

from jaxformer import files, losses
from jaxformer.data import corpus
from jaxformer.decode.lines import decode_lines
from jaxformer.decode.open import open_run
from jaxformer.errors import UserError
from jaxformer.main import main
from jaxformer.train import loop, memory, verify

STUDENT = {**small.QUICK, 'train.num_steps': 6, 'train.checkpoint_every': 3, 'eval.every': 0}
SMALLER = {'model.d_model': 8, 'model.num_heads': 2, 'model.d_ff': 6}


@pytest.fixture(scope='module')
def teacher(tmp_path_factory):
    workdir = tmp_path_factory.mktemp('teacher') / 'run'
    loop.train(small.make({**STUDENT, 'train.num_steps': 12}), workdir)
    return workdir


@pytest.mark.parametrize('temperature', [1.0, 2.5])
def test_the_loss_is_the_divergence_of_the_softened_distributions(temperature):
    generator = np.random.default_rng(0)
    ours, theirs = generator.normal(size=(2, 2, 3, 5)) * 4
    weights = np.array([[1.0, 1, 0], [1, 0, 0]])
    p, q = (scipy.special.softmax(x / temperature, axis=-1) for x in (theirs, ours))
    expected = temperature**2 * (scipy.stats.entropy(p, q, axis=-1) * weights).sum()
    found = losses.distillation(jnp.asarray(ours), jnp.asarray(theirs), jnp.asarray(weights), temperature)
    assert found == pytest.approx(expected, rel=1e-5)
    to_both = jax.grad(lambda a, b: losses.distillation(a, b, jnp.ones((2, 3)), temperature), argnums=(0, 1))
    to_ours, to_theirs = to_both(jnp.asarray(ours), jnp.asarray(theirs))
    np.testing.assert_allclose(to_ours, temperature * (q - p), rtol=1e-4, atol=1e-6)
    assert not np.any(to_theirs)


def test_who_agrees_with_its_teacher_has_nothing_to_learn(teacher, tmp_path):
    """Weight 1, the teacher's own parameters, and no dropout: the loss is 0, and with the labels it is not."""
    same = {'train.teacher': str(teacher), 'train.start_from': str(teacher), 'train.num_steps': 2}
    without = {'model.dropout.residual': 0.0, 'model.dropout.embedding': 0.0, 'optim.learning_rate': 1e-9}
    loop.train(small.make({**STUDENT, **same, **without, 'train.teacher_weight': 1.0}), tmp_path / 'all')
    loop.train(small.make({**STUDENT, **same, **without, 'train.teacher_weight': 0.25}), tmp_path / 'some')
    loop.train(small.make({**STUDENT, **without, **same, 'train.teacher': ''}), tmp_path / 'none')
    loss_of = {name: small.lines(tmp_path / name, 'train/loss')[1] for name in ('all', 'some', 'none')}
    assert loss_of['all'] == pytest.approx(0, abs=1e-5)
    assert loss_of['some'] == pytest.approx(0.75 * loss_of['none'], rel=1e-4)


def test_a_smaller_student_goes_on_to_the_bit_also_in_parts(teacher, tmp_path):
    named = {**STUDENT, **SMALLER, 'train.teacher': f'{teacher}@12'}
    verify.resume(small.make(named), 4)
    loop.train(small.make(named), tmp_path / 'whole')
    loop.train(small.make({**named, 'train.accumulation': 2}), tmp_path / 'parts')
    loop.train(small.make({**named, 'train.teacher': ''}), tmp_path / 'alone')
    whole, parts, alone = (list(small.lines(tmp_path / n, 'train/loss').values()) for n in ('whole', 'parts', 'alone'))
    np.testing.assert_allclose(parts, whole, rtol=1e-5)
    assert small.lines(tmp_path / 'whole', 'compilations')[6]['teacher'] == 1  # for its one bucket, at all six steps
    assert abs(whole[-1] - alone[-1]) > 1e-3


def test_a_teacher_of_no_weight_is_not_asked(tmp_path):
    loop.train(small.make({**STUDENT, 'train.teacher': '/nowhere', 'train.teacher_weight': 0.0}), tmp_path / 'none')
    loop.train(small.make(STUDENT), tmp_path / 'alone')
    none, alone = (list(small.lines(tmp_path / name, 'train/loss').values()) for name in ('none', 'alone'))
    assert none == alone and len(none) == 6


def test_a_student_learns_what_its_teacher_wrote(teacher, tmp_path, capsys):
    """By the two commands of the documentation: each training source with the beams that the teacher finds for it."""
    out, beam = tmp_path / 'out.txt', ['--config.eval.search=beam', '--config.eval.num_best=2']
    assert main(['decode', f'--workdir={teacher}', '--split=train', f'--output={out}', *beam]) == 0
    cfg = small.make({**STUDENT, **SMALLER, 'data.targets': str(out), 'train.teacher': str(teacher)})
    mine, theirs = (corpus.load(data).split('train') for data in (cfg.data, small.make(STUDENT).data))
    sources = [theirs.source_text(i) for i in range(len(theirs))]
    search = {'eval.search': 'beam', 'eval.num_best': 2}
    found = [
        line.split(' ||| ')[:2] for lines in decode_lines(teacher, None, sources, search) for line in lines.split('\n')
    ]
    expected = [(sources[int(number)], [text]) for number, text in found if text.strip()]
    assert [(mine.source_text(i), mine.reference_texts(i)) for i in range(len(mine))] == expected
    assert len(found) == 2 * len(sources) and len({text for _, text in found}) > 2
    assert loop.train(cfg, tmp_path / 'student')['dev/examples'] > 0
    again = tmp_path / 'again.txt'
    assert main(['decode', f'--workdir={tmp_path}/student', '--split=train', f'--output={again}']) == 0
    assert len(again.read_text().splitlines()) == len(sources)  # of the data, not of what another taught
    out.unlink()
    capsys.readouterr()
    assert main(['eval', f'--workdir={tmp_path}/student']) == 0  # dev is as it was
    assert 'changed since' not in capsys.readouterr().err
    assert main(['eval', f'--workdir={tmp_path}/student', '--split=train']) == 2
    assert 'data.targets=' in capsys.readouterr().err
    assert main(['decode', f'--workdir={teacher}', '--split=all']) == 2
    assert "split 'all'" in capsys.readouterr().err
    assert main(['decode', f'--workdir={teacher}', '--split=dev', '--input=-']) == 2
    assert 'there is no split to read' in capsys.readouterr().err


def test_the_memory_of_a_teacher_is_counted(teacher):
    """Its parameters lie beside the state and are no part of it; its logits come in with the batch."""
    cfg = small.make({**STUDENT, **SMALLER, 'train.teacher': str(teacher)})
    alone, taught = (memory.of_step(c, 15)[9, 9] for c in (small.make({**STUDENT, **SMALLER}), cfg))
    params = open_run(teacher).params
    assert taught.teacher == sum(leaf.nbytes for leaf in jax.tree.leaves(params)) > 0 == alone.teacher
    assert taught.arguments - alone.arguments == 6 * 9 * 15 * 4  # B, T, V, float32
    assert taught.teacher_temporaries > 0 == alone.teacher_temporaries
    assert taught.total >= alone.total + taught.teacher + 6 * 9 * 15 * 4


@pytest.mark.parametrize(
    ('changes', 'text'),
    [
        ({'train.teacher': '/nowhere'}, r'train.teacher=/nowhere: /nowhere: no such directory'),
        ({'train.teacher': '{run}@7'}, r'train.teacher=.*@7: .*no checkpoint of step 7; the steps there are: 6, 9, 12'),
        ({'train.teacher': '{run}@last'}, r'train.teacher=.*@last: last is no step; write RUN@STEP'),
        ({'train.teacher': '{run}', 'data.num_symbols': 9}, r'train.teacher=.*: its symbols'),
        ({'train.teacher': '{run}', 'model.vocab_size': 99}, r'train.teacher=.*: model.vocab_size is 15 there and 99'),
    ],
)
def test_who_cannot_teach_is_refused_before_anything_is_written(teacher, tmp_path, changes, text):
    named = {
        name: str(value).format(run=teacher) if name == 'train.teacher' else value for name, value in changes.items()
    }
    with pytest.raises(UserError, match=text):
        loop.train(small.make({**STUDENT, **named}), tmp_path / 'run')
    assert not (tmp_path / 'run' / 'config.json').exists()


def test_of_a_run_that_is_not_done_the_step_has_to_be_said(teacher, tmp_path):
    other = tmp_path / 'other'
    loop.train(small.make({**STUDENT, 'train.num_steps': 3}), other)
    small.writer.write_status(other, 'preempted', 3, 9)
    with pytest.raises(UserError, match=f'{other} is not done.*write {other}@3'):
        loop.train(small.make({**STUDENT, 'train.teacher': str(other)}), tmp_path / 'run')


@pytest.mark.parametrize(
    ('changes', 'gone', 'said'),
    [
        ({}, files.VOCAB, 'vocab.json: missing; put it back'),
        ({'model.vocab_size': 30}, None, 'model.vocab_size is 15 there and 30 here; make it equal'),
    ],
)
def test_what_a_plan_of_memory_finds_wrong_with_a_teacher(teacher, tmp_path, changes, gone, said):
    shutil.copytree(teacher, tmp_path / 'run')
    if gone:
        (tmp_path / 'run' / gone).unlink()
    cfg = small.make({**STUDENT, **SMALLER, **changes, 'train.teacher': str(tmp_path / 'run')})
    with pytest.raises(UserError, match=f'config.train.teacher=.*: .*{said}'):
        memory.of_step(cfg, 15)
