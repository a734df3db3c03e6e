"""Models of transformers with random weights, carried over and back: the same logits here and there.

Sizes are odd and all different. Rows of a batch have different lengths, the rest is padding where the model has an id
for it; what stands at padding is compared nowhere.
"""

import functools
import json

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from others import REASON, difference, randomise, torch

from jaxformer import config
from jaxformer.inspection import export, import_
from jaxformer.inspection.hugging_face import LAYOUTS
from jaxformer.inspection.layout import Row
from jaxformer.model import transformer

transformers = pytest.importorskip('transformers', reason=f'transformers is {REASON}')
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

V, PAD, B, T, S = 37, 35, 3, 9, 7
GPT2 = {'vocab_size': V, 'n_positions': 11, 'n_embd': 15, 'n_layer': 2, 'n_head': 3, 'n_inner': 22, 'bos_token_id': 36}
LLAMA = {
    'vocab_size': V, 'hidden_size': 24, 'intermediate_size': 22, 'num_hidden_layers': 3, 'num_attention_heads': 6,
    'num_key_value_heads': 2, 'bos_token_id': 3, 'pad_token_id': PAD, 'max_position_embeddings': 64,
}  # fmt: skip
BERT = {
    'vocab_size': V, 'hidden_size': 15, 'intermediate_size': 22, 'num_hidden_layers': 2, 'num_attention_heads': 3,
    'max_position_embeddings': 11, 'type_vocab_size': 4, 'pad_token_id': PAD,
}  # fmt: skip
T5 = {
    'vocab_size': V, 'd_model': 13, 'd_kv': 5, 'd_ff': 22, 'num_layers': 2, 'num_decoder_layers': 3, 'num_heads': 3,
    'relative_attention_num_buckets': 10, 'relative_attention_max_distance': 6, 'pad_token_id': PAD,
    'decoder_start_token_id': PAD,
}  # fmt: skip
MARIAN = {
    'vocab_size': V, 'd_model': 18, 'encoder_layers': 2, 'decoder_layers': 3, 'encoder_ffn_dim': 22,
    'decoder_ffn_dim': 22, 'encoder_attention_heads': 3, 'decoder_attention_heads': 3, 'max_position_embeddings': 11,
    'pad_token_id': PAD, 'decoder_start_token_id': PAD, 'eos_token_id': 0, 'forced_eos_token_id': 0,
}  # fmt: skip

CASES = {
    'gpt2': ('GPT2LMHeadModel', GPT2, {}),
    'gpt2-untied': (
        'GPT2LMHeadModel',
        GPT2,
        {
            'activation_function': 'relu', 'scale_attn_weights': False, 'tie_word_embeddings': False, 'n_inner': None,
            'pad_token_id': PAD,
        },
    ),
    'llama': ('LlamaForCausalLM', LLAMA, {'rope_parameters': {'rope_type': 'default', 'rope_theta': 123.0}}),
    'llama-biases': (
        'LlamaForCausalLM',
        LLAMA,
        {
            'attention_bias': True, 'head_dim': 10, 'hidden_act': 'gelu',
            'tie_word_embeddings': True, 'rms_norm_eps': 0.01,
        },
    ),
    'bert': ('BertForMaskedLM', BERT, {}),
    'bert-tanh': ('BertForMaskedLM', BERT, {'hidden_act': 'gelu_new', 'layer_norm_eps': 0.01}),
    'bert-encoder': ('BertModel', BERT, {'hidden_act': 'silu'}),
    'bert-classes': ('BertForSequenceClassification', BERT, {'num_labels': 5}),
    'bert-tokens': ('BertForTokenClassification', BERT, {'num_labels': 5}),
    't5': ('T5ForConditionalGeneration', T5, {}),
    't5-unscaled': (
        'T5ForConditionalGeneration', T5, {'feed_forward_proj': 'gated-silu', 'tie_word_embeddings': False}
    ),
    't5-gated': ('T5ForConditionalGeneration', T5, {'feed_forward_proj': 'gated-gelu', 'tie_word_embeddings': False}),
    'marian': ('MarianMTModel', MARIAN, {'activation_function': 'swish', 'scale_embedding': True}),
    'marian-odd': ('MarianMTModel', MARIAN, {'d_model': 15, 'activation_function': 'relu'}),
    'marian-separate': ('MarianMTModel', MARIAN, {'share_encoder_decoder_embeddings': False}),
    'marian-untied': (
        'MarianMTModel', MARIAN, {'share_encoder_decoder_embeddings': False, 'tie_word_embeddings': False}
    ),
}  # fmt: skip


def build(name):
    """The model of a case as transformers makes it."""
    architecture, settings, changes = CASES[name]
    cls = getattr(transformers, architecture)
    model = cls(cls.config_class(**{**settings, **changes}, attn_implementation='eager'))
    if name == 't5-gated':  # T5 1.1 has a softmax of its own, which transformers 5 ties when it makes one
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    return randomise(model, seed=len(name))


def batch_of(cfg, seed=0):
    """(our inputs, which positions of the logits are real)."""
    rng = np.random.default_rng(seed)

    def tokens(width):
        lengths = rng.permutation(np.linspace(2, width, B).astype(int)) if cfg.model.ids.pad >= 0 else [width] * B
        real_BT = np.arange(width) < np.array(lengths)[:, None]
        return np.where(real_BT, rng.integers(5, 30, (B, width)), max(cfg.model.ids.pad, 0)), real_BT

    (target_BT, real_BT), (source_BS, _) = tokens(T), tokens(S)
    if cfg.model.family == 'seq2seq':
        return (source_BS, target_BT), real_BT
    if cfg.model.family == 'lm':
        return (target_BT,), real_BT
    types_BT = rng.integers(0, cfg.model.embedding.token_types, (B, T))
    first_only = cfg.model.family == 'classifier' and cfg.model.head.pooling == 'first'
    return (target_BT, types_BT), np.ones((B, 1), bool) if first_only else real_BT


@torch.no_grad()
def theirs(model, cfg, inputs):
    """Logits of transformers (of a bare encoder: what it encodes)."""
    tensors = [torch.from_numpy(part) for part in inputs]
    pad, start = cfg.model.ids.pad, cfg.model.ids.start

    def shifted(labels_BT):
        return torch.cat([torch.full((B, 1), start), labels_BT[:, :-1]], dim=1)

    if cfg.model.family == 'seq2seq':
        source_BS, target_BT = tensors
        output = model(
            input_ids=source_BS, attention_mask=(source_BS != pad).long(), decoder_input_ids=shifted(target_BT)
        )
    elif cfg.model.family == 'lm':
        real_BT = torch.cat([torch.ones(B, 1), tensors[0][:, :-1] != pad], dim=1)
        output = model(input_ids=shifted(tensors[0]), attention_mask=real_BT.long())
    else:
        mask_BT = (tensors[0] != pad).long()
        output = model(input_ids=tensors[0], token_type_ids=tensors[1], attention_mask=mask_BT)
    logits = output.last_hidden_state if 'last_hidden_state' in output else output.logits
    return logits.numpy().reshape(B, -1, logits.shape[-1])


class Carried:
    """A case: transformers' model, its directory, and the same model here."""

    def __init__(self, name, directory):
        self.name, self.directory = name, directory
        self.model = build(name)
        self.model.save_pretrained(directory)
        edited, self.params = import_.read(directory)
        self.cfg = config.resolve(edited)
        self.flat = flax.traverse_util.flatten_dict(self.params, sep='/')
        self.inputs, self.real = batch_of(self.cfg)
        model = transformer.build(self.cfg.model, V)

        def apply(params):
            inputs = [jnp.asarray(part) for part in self.inputs]
            if self.cfg.model.family not in ('mlm', 'classifier'):
                return model.apply({'params': params}, *inputs)[0]
            tokens_BT, type_BT = inputs
            if CASES[name][0] == 'BertModel':
                return model.apply({'params': params}, tokens_BT, type_BT=type_BT, method='hidden')
            return model.apply({'params': params}, tokens_BT, type_BT=type_BT)[0]

        self._apply = jax.jit(apply)

    def ours(self, params=None):
        return np.asarray(self._apply(self.params if params is None else params))[self.real]

    def theirs(self, model=None):
        return theirs(model or self.model, self.cfg, self.inputs)[self.real]


@pytest.fixture(scope='module')
def carried(tmp_path_factory):
    return functools.cache(lambda name: Carried(name, tmp_path_factory.mktemp(name)))


@pytest.mark.parametrize('name', CASES)
def test_logits_are_those_of_transformers(name, carried):
    case = carried(name)
    error = difference(case.ours(), case.theirs())
    print(f'{name}: {error:.1e}')
    assert error < 3e-5


@pytest.mark.parametrize('name', CASES)
def test_an_export_is_the_model_that_was_imported(name, carried, tmp_path):
    case = carried(name)
    export.write(case.cfg, case.params, tmp_path)
    cls = type(case.model)
    again, report = cls.from_pretrained(tmp_path, attn_implementation='eager', output_loading_info=True)
    unknown = {key for key in report['missing_keys'] if not key.startswith('pooler.')}
    assert not unknown and not report['unexpected_keys'] and not report['mismatched_keys']
    np.testing.assert_array_equal(case.theirs(again.eval()), case.theirs())
    edited, params = import_.read(tmp_path)
    assert config.resolve(edited) == case.cfg
    flat = flax.traverse_util.flatten_dict(params, sep='/')
    assert flat.keys() == case.flat.keys()
    for path, values in flat.items():
        assert values.tobytes() == case.flat[path].tobytes() and values.dtype == case.flat[path].dtype


@pytest.mark.parametrize('name', CASES)
def test_every_tensor_matters(name, carried):
    case = carried(name)
    architecture = json.loads((case.directory / 'config.json').read_text())['architectures'][0]
    layout = next(layout for layout in LAYOUTS if layout.name == architecture)
    shapes = {path: values.shape for path, values in case.flat.items()}
    fields = config.flatten(case.cfg)
    reference = case.ours()
    counted = 0
    for row in layout.rows:
        if not row.counts(fields, shapes):
            continue
        tensors = row.split(case.flat)
        for zeroed, values in tensors.items():
            assert np.abs(values).min() > 0, f'{zeroed} is not random'
            without = row.join([0 * v if n == zeroed else v for n, v in tensors.items()], shapes, np.float32)
            logits = case.ours(flax.traverse_util.unflatten_dict({**case.flat, **without}, sep='/'))
            if _shifts_all_scores(row, case.cfg):
                assert difference(logits, reference) < 2e-6
            else:
                assert difference(logits, reference) > 1e-5, f'{zeroed} changes nothing'
            counted += 1
    assert counted >= 20


def _shifts_all_scores(row: Row, cfg):
    """A bias of the keys adds the same to all scores of a query, unless the keys are turned: softmax undoes it."""
    return row.paths[0].endswith('key_bias') and cfg.model.position != 'rotary'
