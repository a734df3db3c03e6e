import pathlib

import pytest
from etils import epath

from jaxformer import config
from jaxformer.train import loop

CONFIGS = pathlib.Path(__file__).parents[2] / 'configs'


@pytest.fixture(scope='session')
def make_cfg(tmp_path_factory):
    """configs/tiny.py with changes, its data in a directory of these tests; one bucket, so that little is compiled."""
    data_dir = str(tmp_path_factory.mktemp('data'))

    def make(**changes):
        edited = config.load(CONFIGS / 'tiny.py')
        config.override(edited, {'data.dir': data_dir, 'data.buckets': ((9, 9),)})
        config.override(edited, {name.replace('__', '.'): value for name, value in changes.items()})
        return config.resolve(edited)

    return make


@pytest.fixture(scope='session')
def trained(make_cfg, tmp_path_factory):
    """The directory of a short run with checkpoints at 30 and 60. Not to be changed: copy it first."""
    workdir = epath.Path(tmp_path_factory.mktemp('runs')) / 'trained'
    loop.train(make_cfg(train__num_steps=60, train__checkpoint_every=30, eval__every=0), workdir)
    return workdir
