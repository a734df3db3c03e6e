"""Distances and angles equal numpy's on the arrays as they are; what is only on one side is named."""

import json
import math
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import checkpoint
from jaxformer.errors import UserError
from jaxformer.inspection import difference
from jaxformer.main import main


@pytest.fixture(scope='module')
def runs(tmp_path_factory):
    """Two directories with a step each, of known parameters."""
    found = []
    one = {
        'a': jnp.asarray([[3.0, 0.0], [0.0, 4.0]]),
        'same': jnp.ones(3),
        'old': jnp.ones((2, 5)),
        'zero': jnp.zeros(2),
    }
    two = {'a': jnp.asarray([[0.0, 3.0], [0.0, 4.0]]), 'same': jnp.ones(3), 'new': jnp.ones(7), 'zero': jnp.ones(2)}
    one['wide'], two['wide'] = jnp.ones((2, 3)), jnp.ones((3, 2))
    for step, params in ((3, one), (7, two)):
        run = pathlib.Path(tmp_path_factory.mktemp('run'))
        (run / 'config.json').write_text('{}')
        checkpoint.save(run / 'checkpoints', step, {'params': {'part': params}}, {}, {}, 1)
        found.append(f'{run}@{step}')
    return found


def test_by_hand(runs):
    found = difference.between(*runs)
    assert (found.added, found.gone) == ({'part/new': (7,)}, {'part/old': (2, 5)})
    assert found.reshaped == {'part/wide': ((2, 3), (3, 2))}
    assert set(found.apart) == {'part/a', 'part/same', 'part/zero'}
    a = found.apart['part/a']
    assert (a.distance, a.relative) == (pytest.approx(18**0.5), pytest.approx(18**0.5 / 5))
    assert a.cosine == pytest.approx(16 / 25)
    assert found.apart['part/same'] == difference.Apart(0.0, 0.0, pytest.approx(1))
    zero = found.apart['part/zero']
    assert zero.relative == math.inf and math.isnan(zero.cosine)
    assert found.whole.distance == pytest.approx((18 + 2) ** 0.5)
    back = difference.between(*reversed(runs))
    assert (back.added, back.gone) == (found.gone, found.added) and back.whole.distance == found.whole.distance


def test_two_steps_of_a_run(trained):
    found = difference.between(f'{trained}@30', f'{trained}@60')
    before, after = (checkpoint.restore_params(trained / 'checkpoints', step) for step in (30, 60))
    flat = [
        np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)]).astype(float) for tree in (before, after)
    ]
    assert not found.added and not found.gone and not found.reshaped
    assert len(found.apart) == len(jax.tree.leaves(before))
    assert found.whole.distance == pytest.approx(np.linalg.norm(flat[1] - flat[0])) and found.whole.distance > 0
    norms = np.linalg.norm(flat, axis=1)
    assert found.whole.cosine == pytest.approx(flat[0] @ flat[1] / norms.prod())
    text = difference.as_text(found).splitlines()
    assert text[-1].startswith('all of them') and len(text) == 2 + 1 + 1 + len(found.apart) + 1


def test_the_command(runs, trained, tmp_path, capsys):
    assert main(['compare', *runs, '--json']) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown['added'] == {'part/new': [7]} and shown['apart']['part/zero']['cosine'] == 'nan'
    assert main(['compare', *runs]) == 0
    assert 'reshaped: part/wide 2 x 3 -> 3 x 2' in capsys.readouterr().out
    assert main(['compare', f'{trained}@60', str(trained)]) == 2
    assert f'compare {trained}: not RUN@step' in capsys.readouterr().err
    assert main(['compare', f'{trained}@60', f'{trained}@61']) == 2
    assert 'no checkpoint of step 61; the steps there are: 30, 60' in capsys.readouterr().err
    assert main(['compare', *runs, runs[0]]) == 2
    named = shutil.copytree(trained, tmp_path / 'run@60')  # a directory that is called so
    assert main(['compare', str(named), str(trained)]) == 0
    assert 'no field differs' in capsys.readouterr().out


def test_what_cannot_be_read_is_named(trained, tmp_path, caplog):
    run = pathlib.Path(shutil.copytree(trained, tmp_path / 'run'))
    max(run.glob('checkpoints/60/state/**/d/*'), key=lambda file: file.stat().st_size).unlink()
    found = difference.between(f'{run}@30', f'{run}@60')
    lost = [path for path, entry in found.apart.items() if entry is None]
    assert lost and f'{lost[0]} cannot be read' in caplog.text and not found.gone
    with pytest.raises(UserError, match='no such directory'):
        difference.between(f'{run}@30', 'nowhere@7')


def saved(run, params):
    run.mkdir()
    (run / 'config.json').write_text('{}')
    checkpoint.save(run / 'checkpoints', 1, {'params': params}, {}, {}, 1)
    return f'{run}@1'


def test_what_is_not_defined_is_a_dash_and_nothing_in_common_is_said(tmp_path, capsys):
    a = saved(tmp_path / 'a', {'w': jnp.ones((2, 3)), 'zero': jnp.zeros(2)})
    b = saved(tmp_path / 'b', {'w': jnp.ones((2, 3)), 'zero': jnp.ones(2)})
    c = saved(tmp_path / 'c', {'w': jnp.ones((2, 5)), 'zero': jnp.zeros(7)})
    d = saved(tmp_path / 'd', {'w': jnp.full((2, 3), jnp.nan), 'zero': jnp.ones(2)})
    assert main(['compare', a, b]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()[-3:])
    assert rows['zero'].split() == ['1.414', '-', '-'] and rows['w'].split() == ['0', '0.000%', '1.000000']
    assert main(['compare', a, c]) == 0
    out = capsys.readouterr().out
    assert 'reshaped: w 2 x 3 -> 2 x 5' in out and 'nothing can be compared' in out
    assert 'nan' not in out and 'all of them' not in out
    assert main(['compare', a, c, '--json']) == 0 and json.loads(capsys.readouterr().out)['whole'] is None
    assert main(['compare', a, d]) == 0
    assert capsys.readouterr().out.splitlines()[-1].split()[-3:] == ['nan', 'nan%', 'nan']  # of what is in them
