"""What a grid would take of memory is said before anything runs, cell by cell."""

import json

import jax

from configs import tiny as tiny_config
from jaxformer import config
from jaxformer.main import main

GRID = '''"""Widths of the feed-forward."""

from configs import tiny

get_config = tiny.get_config


def grid():
    return [{}, {'model.d_ff': 2048}]
'''


def test_the_memory_of_each_cell_is_that_of_its_compiled_step(tmp_path, capsys):
    (tmp_path / 'grid.py').write_text(GRID)
    flags = ['plan', f'--grid={tmp_path / "grid.py"}', f'--workdir={tmp_path / "grid"}', '--memory']
    assert main([*flags, '--json']) == 0
    content = json.loads(capsys.readouterr().out)
    small, large = content['memory']
    cfg = config.resolve(tiny_config.get_config())
    assert [cell['id'] for cell in content['cells']] == [small['id'], large['id']]
    more = content['cells'][1]['parameters'] - content['cells'][0]['parameters']
    assert large['arguments'] - small['arguments'] == 3 * 4 * more  # parameters and two moments of Adam in float32
    assert large['temporaries'] > small['temporaries'] and large['total'] > large['arguments']
    rows, (S, _), T = cfg.eval.batch_size, cfg.data.buckets[-1], cfg.eval.max_decode_length
    kept = cfg.model.decoder_layers * cfg.model.num_kv_heads * (cfg.model.d_k + cfg.model.d_v) * 4
    assert small['decode_cache'] == rows * kept * (S + T) + rows * S + 4 + T
    assert main(flags) == 0
    printed = capsys.readouterr().out
    assert f'{large["total"] / 2**20:,.1f} MiB' in printed and f'each of {jax.device_count()} device (cpu)' in printed
    assert not (tmp_path / 'grid').exists()
