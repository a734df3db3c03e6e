"""What a model is asked to collect beside its logits: known names in a tuple, else a UserError instead of silence."""

import jax
import jax.numpy as jnp
import pytest
from ml_collections import ConfigDict

from configs import base
from jaxformer import config
from jaxformer.errors import UserError
from jaxformer.model import transformer

TOKENS = jnp.array([[1, 5, 6]], jnp.int32)
INPUTS = {'seq2seq': (TOKENS, TOKENS), 'lm': (TOKENS,), 'mlm': (TOKENS,), 'classifier': (TOKENS,)}
DATA = {'seq2seq': 'cmudict', 'lm': 'stdlib', 'mlm': 'stdlib', 'classifier': 'stdlib_labels'}


def shapes(family, collect):
    """Of (logits, what is collected) of a small model of a family; nothing is computed."""
    edited: ConfigDict = base.get_config()
    changes = {'d_model': 6, 'num_heads': 3, 'num_layers': 2, 'd_ff': 5, 'family': family}
    config.override(edited, {f'model.{name}': value for name, value in changes.items()})
    if family != 'seq2seq':
        config.override(edited, {'data.name': DATA[family], 'data.tokenizer': 'bytes', 'data.buckets': ((9,),)})
    model = transformer.build(config.resolve(edited).model, 11, 4 if family == 'classifier' else 0)
    params = jax.eval_shape(lambda: transformer.init(model, 0))
    return jax.eval_shape(lambda p: model.apply({'params': p}, *INPUTS[family], collect=collect), params)


@pytest.mark.parametrize('family', INPUTS)
def test_names_are_known_or_refused(family):
    assert shapes(family, ())[1] == {}
    assert all(maps.shape == (2, 1, 3, 3, 3) for maps in shapes(family, ('attention',))[1].values())
    with pytest.raises(UserError, match=r"collect=\('atention',\): .*'attention'"):
        shapes(family, ('atention',))
    with pytest.raises(UserError, match=r"collect='attention': .*\('attention',\)"):
        shapes(family, 'attention')
