"""What is written is read again bit for bit; what a layout cannot express is refused by its field."""

import json

import bridge
import flax.traverse_util
import numpy as np
import pytest
from safetensors.numpy import load_file

from jaxformer import config
from jaxformer.data.vocab import Vocabulary
from jaxformer.errors import UserError
from jaxformer.inspection import export, import_
from jaxformer.inspection.hugging_face import LAYOUTS
from jaxformer.inspection.layout import CHANGES_NO_WEIGHT, fields_of
from jaxformer.main import main

NOT_SAID = ('data.', 'eval.', 'train.', 'optim.')
"""Fields that a layout does not carry."""


@pytest.mark.parametrize('parameters', ['float32', 'bfloat16'])
@pytest.mark.parametrize('name', bridge.CONFIGS)
def test_an_import_gives_back_what_was_exported(name, parameters, tmp_path):
    cfg, params = bridge.written(name, tmp_path, model__precision__parameters=parameters)
    edited, read = import_.read(tmp_path)
    flat = {path: values.astype(np.float32) for path, values in bridge.flatten(params).items()}  # exact
    bridge.assert_same(read, flax.traverse_util.unflatten_dict(flat, sep='/'))
    different = [path for path in config.diff(cfg, config.resolve(edited)) if not path.startswith(NOT_SAID)]
    free = [CHANGES_NO_WEIGHT, *(['model.precision.parameters'] if parameters == 'bfloat16' else [])]
    free += ['model.max_length'] if name == 't5' else []  # has no table of positions
    assert all(path.startswith(tuple(free)) for path in different), different
    assert edited.model.precision.parameters == 'float32'
    assert json.loads((tmp_path / 'config.json').read_text())['torch_dtype'] == parameters


@pytest.mark.parametrize(
    ('name', 'changes'),
    [
        ('gpt2', {'model__embedding__softmax': 'untied', 'model__feed_forward': 'silu', 'model__ids__pad': -1}),
        ('gpt2', {'model__gelu': 'exact', 'model__attention__score': 'dot'}),
        ('llama', {'model__attention__bias': 'all', 'model__feed_forward': 'geglu'}),
        ('bert', {'model__head__transform': 'off', 'model__embedding__softmax_bias': 'off'}),
        (
            'bert',
            {
                'model__family': 'classifier', 'model__head__num_classes': 5, 'model__head__pooler': 'on',
                'data__name': 'stdlib_labels',
            },
        ),
        (
            'bert',
            {
                'model__family': 'classifier', 'model__head__num_classes': 5, 'model__head__pooling': 'tokens',
                'data__name': 'stdlib_labels', 'data__labels': 'syntax',
            },
        ),
        ('t5', {'model__feed_forward': 'geglu', 'model__embedding__softmax': 'untied'}),
        ('t5', {'model__embedding__logit_scale': 'none', 'model__feed_forward': 'swiglu'}),
        ('marian', {'model__embedding__tables': 'separate', 'model__embedding__scale': 'none'}),
        ('marian', {'model__embedding__tables': 'separate', 'model__embedding__softmax': 'untied'}),
    ],
)  # fmt: skip
def test_every_choice_of_a_layout_goes_there_and_back(name, changes, tmp_path):
    if changes.get('model__family') == 'classifier':
        changes = {**changes, 'model__embedding__softmax_bias': 'off', 'model__head__transform': 'off'}
    cfg, params = bridge.written(name, tmp_path, **changes)
    edited, read = import_.read(tmp_path)
    bridge.assert_same(read, params)
    back = config.resolve(edited)
    for path in changes:
        path = path.replace('__', '.')
        if path != 'data.name':
            assert config.flatten(back)[path] == config.flatten(cfg)[path], path


@pytest.mark.parametrize(
    ('name', 'changes', 'said'),
    [
        ('gpt2', {'model__norm': 'rmsnorm'}, "GPT2LMHeadModel: config.model.norm='rmsnorm': must be 'layernorm'"),
        ('gpt2', {'model__residual': 'sandwich'}, "config.model.residual='sandwich': must be 'pre'"),
        ('gpt2', {'model__num_kv_heads': 1}, 'GPT2LMHeadModel: config.model.num_kv_heads=1: must be 3'),
        ('gpt2', {'model__d_k': 4}, 'GPT2LMHeadModel: config.model.d_k=4: must be 5'),
        ('gpt2', {'model__attention__bias': 'qkv'}, "config.model.attention.bias='qkv': must be 'all'"),
        ('gpt2', {'model__feed_forward': 'swiglu'}, "'swiglu': must be one of gelu, relu, silu for its activation"),
        ('gpt2', {'model__feed_forward': 'none'}, "config.model.feed_forward='none': must be one of gelu, relu, silu"),
        ('gpt2', {'model__embedding__scale': 'sqrt_d_model'}, "config.model.embedding.scale='sqrt_d_model'"),
        ('gpt2', {'model__attention__pattern': 'local'}, "config.model.attention.pattern='local': must be 'full'"),
        ('gpt2', {'model__mixer': 'gru', 'model__position': 'learned'}, "config.model.decoder_mixer='gru'"),
        ('llama', {'model__rotary__layout': 'interleaved'}, "config.model.rotary.layout='interleaved'"),
        ('llama', {'model__d_v': 4}, 'LlamaForCausalLM: config.model.d_v=4: must be 10'),
        ('llama', {'model__d_model': 25}, 'LlamaForCausalLM: config.model.d_model=25: must be a multiple of num_att'),
        ('llama', {'model__feed_forward_bias': 'on'}, "config.model.feed_forward_bias='on': must be 'off'"),
        ('bert', {'model__embedding__norm': 'off'}, "config.model.embedding.norm='off': must be 'on'"),
        ('bert', {'model__feed_forward': 'relu'}, "config.model.feed_forward='relu': must be one of gelu"),
        ('bert', {'model__embedding__softmax': 'untied'}, "config.model.embedding.softmax='untied': must be 'tied'"),
        ('t5', {'model__relative__tables': 'per_layer'}, "config.model.relative.tables='per_layer'"),
        ('t5', {'model__feed_forward': 'geglu', 'model__gelu': 'exact'}, "config.model.gelu='exact'"),
        ('marian', {'model__norm_epsilon': 1e-6}, 'config.model.norm_epsilon=1e-06: must be 1e-05'),
        ('marian', {'model__embedding__softmax': 'untied'}, "config.model.embedding.softmax='untied': must be true"),
    ],
)  # fmt: skip
def test_what_a_layout_cannot_express_is_refused_by_its_field(name, changes, said, tmp_path):
    cfg = bridge.make_cfg(name, **changes)
    with pytest.raises(UserError) as error:
        export.write(cfg, bridge.random_params(cfg), tmp_path / 'out')
    assert said in str(error.value) and '\n' not in str(error.value)
    others = {'lm': ('GPT2', 'Llama'), 'mlm': ('Bert',), 'seq2seq': ('T5', 'Marian')}[cfg.model.family]
    named = [part.split(': ')[0] for part in str(error.value).split('; ') if ': config.' in part]
    assert all(name.startswith(others) for name in named)  # nothing about other kinds of model
    assert not (tmp_path / 'out').exists()


@pytest.mark.parametrize('layout', LAYOUTS, ids=lambda layout: layout.name)
def test_no_field_is_forgotten(layout):
    """Each field of a model is said by a layout, or its choices leave it without effect (or it is of training)."""
    fields = dict(layout.fields) | {path: None for key in layout.keys for path in key.may_set}
    free = {
        'model.mixer', 'model.num_layers', 'model.remat', 'model.scan_unroll', 'model.ids.mask',
        'model.attention.kernel', 'model.attention.block',
        'model.max_length',  # rows of a table; longer inputs are refused, nothing else
        'model.attention.window', 'model.attention.global_positions', 'model.attention.grid_width',
        'model.attention.shift',  # with pattern full
        'model.linformer.rank', 'model.conv.width', 'model.conv.dilations', 'model.recurrent.width',  # other mixers
    }  # fmt: skip
    of = {'rotary': ('model.rotary.',), 'sinusoidal': ('model.sinusoidal.',), 't5_relative': ('model.relative.',)}
    groups = [CHANGES_NO_WEIGHT, 'model.precision.']
    groups += [group for position, all_ in of.items() if position != layout.fields['model.position'] for group in all_]
    if layout.fields['model.family'] == 'lm':
        free |= {'model.encoder_layers', 'model.encoder_mixer'}
    elif layout.fields['model.family'] != 'seq2seq':
        free |= {'model.decoder_layers', 'model.decoder_mixer', 'model.ids.start'}
    if layout.fields['model.family'] == 'classifier':
        free |= {'model.head.transform', 'model.embedding.softmax', 'model.embedding.softmax_bias'}
    else:
        free |= {'model.head.pooling', 'model.head.pooler', 'model.head.num_classes'}
    if layout.fields['model.family'] != 'mlm':
        free |= {'model.head.transform'}
    if not any('gelu' in str(value) for key in layout.keys for value in getattr(key, 'values', ())):
        free |= {'model.gelu'}
    every = [path for path in config.flatten(bridge.make_cfg('gpt2')) if path.startswith('model.')]
    forgotten = [
        path for path in every if path not in fields and path not in free and not path.startswith(tuple(groups))
    ]
    assert forgotten == []


def test_settings_are_those_of_the_layout(tmp_path):
    bridge.written('llama', tmp_path)
    settings = json.loads((tmp_path / 'config.json').read_text())
    assert settings['architectures'] == ['LlamaForCausalLM'] and settings['model_type'] == 'llama'
    assert (settings['hidden_size'], settings['num_key_value_heads'], settings['head_dim']) == (24, 2, 10)
    assert settings['rope_parameters'] == {'rope_theta': 123.0, 'rope_type': 'default'}  # of transformers 5
    assert settings['rope_theta'] == 123.0  # of transformers 4
    assert settings['tie_word_embeddings'] is False and settings['hidden_act'] == 'silu'
    assert 'quantization_config' not in settings and 'rope_scaling' not in settings
    for layout in LAYOUTS:
        if layout.name == 'LlamaForCausalLM':
            assert fields_of(layout, settings)['model.rotary.base'] == 123.0


def test_tensors_are_laid_out_as_written_elsewhere(tmp_path):
    """By hand: nn.Linear is [outputs, inputs]; the Conv1D of GPT-2 [inputs, outputs], with q, k and v side by side."""
    _, params = bridge.written('llama', tmp_path / 'llama')
    tensors = load_file(tmp_path / 'llama' / 'model.safetensors')
    key = params['decoder']['layers']['self_attention']['key'][1]  # [D, G, K]
    weight = tensors['model.layers.1.self_attn.k_proj.weight']
    assert weight.shape == (2 * 10, 24)
    for group in range(2):
        np.testing.assert_array_equal(weight[10 * group : 10 * (group + 1)], key[:, group].T)
    out = params['decoder']['layers']['self_attention']['out'][0]  # [H, E, D]
    np.testing.assert_array_equal(tensors['model.layers.0.self_attn.o_proj.weight'][:, 10:20], out[1].T)
    inner = params['decoder']['layers']['feed_forward']['inner'][0]
    np.testing.assert_array_equal(tensors['model.layers.0.mlp.gate_proj.weight'], inner.T)

    _, params = bridge.written('gpt2', tmp_path / 'gpt2')
    tensors = load_file(tmp_path / 'gpt2' / 'model.safetensors')
    attention = params['decoder']['layers']['self_attention']
    weight, bias = (tensors[f'transformer.h.1.attn.c_attn.{part}'] for part in ('weight', 'bias'))
    for number, part in enumerate(('query', 'key', 'value')):
        columns = slice(15 * number, 15 * (number + 1))
        np.testing.assert_array_equal(weight[:, columns], attention[part][1].reshape(15, 15))
        np.testing.assert_array_equal(bias[columns], attention[f'{part}_bias'][1].reshape(15))

    _, params = bridge.written('t5', tmp_path / 't5')
    tensors = load_file(tmp_path / 't5' / 'model.safetensors')
    table = tensors['decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight']
    np.testing.assert_array_equal(table, params['decoder']['position']['relative_bias'][0])
    assert sum('relative_attention_bias' in name for name in tensors) == 2


def test_sizes_that_the_data_gave_are_those_of_the_parameters(tmp_path):
    cfg = bridge.make_cfg('gpt2', model__vocab_size=0)
    params = bridge.random_params(bridge.make_cfg('gpt2'))
    export.write(cfg, params, tmp_path)
    assert json.loads((tmp_path / 'config.json').read_text())['vocab_size'] == 37


def test_a_layout_can_be_asked_for(tmp_path):
    cfg = bridge.make_cfg('gpt2')
    params = bridge.random_params(cfg)
    with pytest.raises(UserError, match="LlamaForCausalLM: config.model.norm='layernorm': must be 'rmsnorm'"):
        export.write(cfg, params, tmp_path / 'a', 'llama')
    with pytest.raises(UserError, match='bloom: not one of gpt2, llama, bert, t5, marian'):
        export.write(cfg, params, tmp_path / 'a', 'bloom')
    export.write(cfg, params, tmp_path / 'a', 'gpt2')
    with pytest.raises(UserError, match='holds a model already'):
        export.write(cfg, params, tmp_path / 'a')
    params['decoder']['memory'] = np.zeros(3, np.float32)
    with pytest.raises(UserError, match='GPT2LMHeadModel has no tensor for parameter decoder/memory'):
        export.write(cfg, params, tmp_path / 'b')
    (tmp_path / 'file').write_text('')
    del params['decoder']['memory']
    with pytest.raises(UserError, match='file/out: Not a directory'):
        export.write(cfg, params, tmp_path / 'file' / 'out')


def test_the_command_exports_what_it_imported(tmp_path, capsys):
    _, params = bridge.written('t5', tmp_path / 'model')
    run, out = tmp_path / 'run', tmp_path / 'out'
    assert main(['import', f'--input={tmp_path}/model', f'--workdir={run}']) == 0
    assert main(['export', f'--workdir={run}', f'--output={out}']) == 0
    assert (out / 'model.safetensors').read_bytes() == (tmp_path / 'model' / 'model.safetensors').read_bytes()
    assert json.loads((out / 'config.json').read_text()) == json.loads((tmp_path / 'model/config.json').read_text())
    assert 'eos_token_id' not in (out / 'config.json').read_text()  # its ids are its own
    (run / 'vocab.json').write_text(json.dumps(Vocabulary.of('abc').to_json()))
    assert main(['export', f'--workdir={run}', f'--output={tmp_path}/ours']) == 0
    assert json.loads((tmp_path / 'ours' / 'config.json').read_text())['eos_token_id'] == 2
    assert main(['export', f'--workdir={run}', '--step=7', f'--output={tmp_path}/no']) == 2
    assert 'no checkpoint of step 7' in capsys.readouterr().err
    assert not list(tmp_path.rglob('*.tmp'))
