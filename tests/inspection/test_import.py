"""Checkpoints of others: read whole or refused by the name of what is wrong."""

import json

import bridge
import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxformer import checkpoint, config, files
from jaxformer.errors import UserError
from jaxformer.inspection import compare, import_, parameters
from jaxformer.main import main


def with_tensors(directory, **changes):
    bridge.edit(directory, tensors={name.replace('__', '.'): value for name, value in changes.items()})


@pytest.mark.parametrize(
    ('name', 'settings', 'said'),
    [
        ('gpt2', {'activation_function': 'quick_gelu'}, 'activation_function="quick_gelu": not supported; only "gelu"'),
        (
            'gpt2',
            {'scale_attn_by_inverse_layer_idx': True},
            'scale_attn_by_inverse_layer_idx=true: not supported; only',
        ),
        ('gpt2', {'n_head': 4}, 'n_embd=15: must be a multiple of n_head'),
        ('gpt2', {'n_embd': None}, 'n_embd: missing'),
        ('gpt2', {'n_embd': '15'}, 'n_embd="15": must be a number'),
        ('gpt2', {'n_layer': 1.5}, 'n_layer=1.5: must be an integer'),
        ('gpt2', {'bos_token_id': 50256}, 'bos_token_id: config.model.ids.start=50256: must be below model.vocab'),
        ('gpt2', {'quantization_config': {'bits': 4}}, 'quantization_config={"bits": 4}: not supported; only null'),
        ('gpt2', {'model_type': 'bloom'}, 'model_type="bloom": not one of gpt2, llama, bert, t5, marian'),
        ('gpt2', {'architectures': ['GPT2DoubleHeads']}, 'architectures=["GPT2DoubleHeads"]: not one of GPT2LMHeadM'),
        ('llama', {'rope_scaling': {'type': 'linear'}}, 'rope_scaling={"type": "linear"}: not supported; only null'),
        (
            'llama',
            {'rope_parameters': {'rope_type': 'yarn', 'rope_theta': 9.0}},
            'rope_parameters.rope_type="yarn": not supported; only "default"',
        ),
        ('llama', {'mlp_bias': True}, 'mlp_bias=true: not supported; only false'),
        ('bert', {'position_embedding_type': 'relative_key'}, 'position_embedding_type="relative_key": not supported'),
        ('bert', {'hidden_act': 'relu'}, 'hidden_act="relu": not supported; only "gelu"'),
        ('bert', {'is_decoder': True}, 'is_decoder=true: not supported; only false'),
        ('t5', {'feed_forward_proj': 'gated-relu'}, 'feed_forward_proj="gated-relu": not supported'),
        ('marian', {'decoder_ffn_dim': 23}, 'decoder_ffn_dim=23: must be encoder_ffn_dim'),
        ('marian', {'normalize_before': True}, 'normalize_before=true: not supported; only false'),
    ],
)
def test_a_setting_that_is_not_supported_is_named_with_its_value(name, settings, said, tmp_path):
    bridge.written(name, tmp_path)
    bridge.edit(tmp_path, settings)
    with pytest.raises(UserError) as error:
        import_.read(tmp_path)
    assert f'{tmp_path}/config.json: {said}' in str(error.value) and '\n' not in str(error.value)


NORM = 'model.layers.1.input_layernorm.weight'


@pytest.mark.parametrize(
    ('tensors', 'said'),
    [
        ({NORM: None}, f'tensor {NORM} is missing, and [24] by config.json (LlamaForCausalLM)'),
        ({'model.layers.2.extra.weight': np.zeros(3, 'f')}, 'tensor model.layers.2.extra.weight is left over'),
        ({'model.layers.0.self_attn.q_proj.bias': np.zeros(60, 'f')}, 'q_proj.bias is left over: there is none by'),
        ({NORM: np.zeros(23, 'f')}, f'tensor {NORM} is [23], and [24] by config.json'),
        ({NORM: np.zeros(24, 'i4')}, f'tensor {NORM} is of type I32; only F32, F16 and BF16 are read'),
        ({'lm_head.weight': None}, 'tensor lm_head.weight is missing'),
    ],
)
def test_a_tensor_that_is_missing_left_over_or_another_is_named(tensors, said, tmp_path):
    bridge.written('llama', tmp_path)
    bridge.edit(tmp_path, tensors=tensors)
    with pytest.raises(UserError) as error:
        import_.read(tmp_path)
    assert said in str(error.value) and str(tmp_path) in str(error.value)


def test_files_that_are_damaged_or_missing_are_named(tmp_path):
    bridge.written('gpt2', tmp_path)
    weights, settings = tmp_path / 'model.safetensors', tmp_path / 'config.json'
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-4])
    with pytest.raises(UserError, match='model.safetensors: not a whole safetensors file'):
        import_.read(tmp_path)
    weights.unlink()
    (tmp_path / 'pytorch_model.bin').write_bytes(b'')
    with pytest.raises(UserError, match='model.safetensors: missing; only safetensors are read'):
        import_.read(tmp_path)
    for text, said in (('{', 'not a JSON file'), ('[]', 'no object'), (None, 'missing')):
        settings.unlink(missing_ok=True)
        if text is not None:
            settings.write_text(text)
        with pytest.raises(UserError, match=f'config.json: {said}'):
            import_.read(tmp_path)
    with pytest.raises(UserError, match='nowhere/config.json: missing'):
        import_.read(tmp_path / 'nowhere')


def test_shards_are_one_model(tmp_path):
    _, params = bridge.written('bert', tmp_path)
    weights = tmp_path / 'model.safetensors'
    tensors = load_file(weights)
    places = {name: f'model-{number % 3}.safetensors' for number, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, tmp_path / file)
    weights.unlink()
    index = tmp_path / 'model.safetensors.index.json'
    index.write_text(json.dumps({'metadata': {}, 'weight_map': places}))
    bridge.assert_same(import_.read(tmp_path)[1], params)
    (tmp_path / 'model-1.safetensors').unlink()
    with pytest.raises(UserError, match='model-1.safetensors: not a whole safetensors file'):
        import_.read(tmp_path)
    index.write_text('{}')
    with pytest.raises(UserError, match='has no weight_map'):
        import_.read(tmp_path)


def test_types_of_numbers(tmp_path):
    _, params = bridge.written('llama', tmp_path)
    tensors = load_file(tmp_path / 'model.safetensors')
    weights = bridge.flatten(params)['embedding']

    def read(types):
        bridge.edit(tmp_path, tensors={name: values.astype(types(name)) for name, values in tensors.items()})
        edited, params = import_.read(tmp_path)
        return edited.model.precision.parameters, bridge.flatten(params)

    said, flat = read(lambda name: np.float16)
    assert said == 'float32' and {values.dtype for values in flat.values()} == {np.dtype('float32')}
    np.testing.assert_array_equal(flat['embedding'], weights.astype(np.float16).astype(np.float32))
    said, flat = read(lambda name: ml_dtypes.bfloat16)
    assert said == 'float32' and {values.dtype for values in flat.values()} == {np.dtype('float32')}
    np.testing.assert_array_equal(flat['embedding'], weights.astype(ml_dtypes.bfloat16).astype(np.float32))
    said, flat = read(lambda name: np.float32 if 'norm' in name else ml_dtypes.bfloat16)
    assert said == 'float32'
    np.testing.assert_array_equal(flat['embedding'], weights.astype(ml_dtypes.bfloat16).astype(np.float32))
    np.testing.assert_array_equal(flat['decoder/final_norm/scale'], bridge.flatten(params)['decoder/final_norm/scale'])


def test_a_small_step_from_an_import_of_bfloat16_moves_it(tmp_path):
    """5e-5 is less than half of what lies between 1 and the next bfloat16: as such it would be lost."""
    bridge.written('gpt2', tmp_path, model__precision__parameters='bfloat16')
    edited, params = import_.read(tmp_path)
    assert config.resolve(edited).model.precision.parameters == 'float32'
    for path, values in bridge.flatten(params).items():
        assert np.all(values - np.float32(5e-5) * np.sign(values) != values), path


def test_numbers_that_are_not_finite_are_warned_of_by_the_name_of_their_tensor(tmp_path, caplog):
    bridge.written('llama', tmp_path)
    import_.read(tmp_path)
    assert 'finite' not in caplog.text
    broken = np.ones(24, 'f')
    broken[[2, 5]] = np.nan, np.inf
    halves = np.full((37, 24), np.inf, np.float16)
    bridge.edit(tmp_path, tensors={NORM: broken, 'lm_head.weight': halves})
    _, params = import_.read(tmp_path)
    assert np.isnan(bridge.flatten(params)['decoder/layers/self_attention_norm/scale'][1, 2])
    assert f'tensor {NORM}: 2 of 24 numbers are not finite' in caplog.text and str(tmp_path) in caplog.text
    assert f'tensor lm_head.weight: {37 * 24} of {37 * 24} numbers are not finite' in caplog.text
    assert caplog.text.count('not finite') == 2


def test_a_tied_softmax_that_differs_is_a_softmax_of_its_own(tmp_path):
    _, params = bridge.written('gpt2', tmp_path)
    bridge.edit(tmp_path, tensors={'lm_head.weight': params['embedding']})
    bridge.assert_same(import_.read(tmp_path)[1], params)  # once more the same: no parameter
    other = params['embedding'] + 1
    bridge.edit(tmp_path, tensors={'lm_head.weight': other})
    edited, read = import_.read(tmp_path)
    assert edited.model.embedding.softmax == 'untied'
    bridge.assert_same(read, {**params, 'softmax': other})


def test_copies_buffers_and_heads_that_are_not_used_are_left_out(tmp_path):
    _, params = bridge.written('bert', tmp_path)
    noise = np.ones((1, 11), 'i8')
    extra = {
        'bert.embeddings.position_ids': noise,
        'cls.predictions.decoder.weight': params['embedding'],
        'cls.predictions.decoder.bias': params['softmax_bias'],
        'cls.seq_relationship.weight': np.ones((2, 15), 'f'),
        'bert.pooler.dense.weight': np.ones((15, 15), 'f'),
    }
    bridge.edit(tmp_path, tensors=extra)
    bridge.assert_same(import_.read(tmp_path)[1], params)
    bridge.edit(tmp_path, tensors={'cls.predictions.decoder.bias': params['softmax_bias'] + 1})
    with pytest.raises(UserError, match='decoder.bias is not cls.predictions.bias once more'):
        import_.read(tmp_path)


def test_older_names_and_bare_encoders(tmp_path):
    _, params = bridge.written('bert', tmp_path, model__head__transform='off', model__embedding__softmax_bias='off')
    tensors = load_file(tmp_path / 'model.safetensors')
    older = {
        name.removeprefix('bert.').replace('Norm.weight', 'Norm.gamma').replace('Norm.bias', 'Norm.beta'): values
        for name, values in tensors.items()
    }
    assert 'embeddings.LayerNorm.gamma' in older and not any(name.startswith('bert.') for name in older)
    save_file(older, tmp_path / 'model.safetensors')
    bridge.assert_same(import_.read(tmp_path)[1], params)

    _, params = bridge.written('gpt2', tmp_path / 'gpt2')
    tensors = load_file(tmp_path / 'gpt2' / 'model.safetensors')
    bare = {name.removeprefix('transformer.'): values for name, values in tensors.items()}
    bare['h.0.attn.bias'] = np.ones((1, 1, 11, 11), 'f')
    save_file(bare, tmp_path / 'gpt2' / 'model.safetensors')
    bridge.assert_same(import_.read(tmp_path / 'gpt2')[1], params)


def test_settings_that_are_not_said_are_as_in_transformers(tmp_path):
    bridge.written('gpt2', tmp_path / 'gpt2', model__d_ff=60, model__max_length=1024)
    kept = ('model_type', 'vocab_size', 'n_embd', 'n_layer', 'n_head', 'bos_token_id')
    bare(tmp_path / 'gpt2', kept)
    model = import_.read(tmp_path / 'gpt2')[0].model
    assert (model.d_ff, model.max_length, model.norm_epsilon) == (4 * 15, 1024, 1e-5)
    assert (model.feed_forward, model.gelu, model.attention.score) == ('gelu', 'tanh', 'scaled_dot')
    assert (model.ids.pad, model.ids.start, model.dropout.attention) == (-1, 1, 0.1)

    bridge.written('llama', tmp_path / 'llama', model__num_kv_heads=6, model__d_k=4, model__d_v=4)
    kept = ('model_type', 'vocab_size', 'hidden_size', 'intermediate_size', 'num_hidden_layers', 'num_attention_heads')
    bare(tmp_path / 'llama', kept)
    bridge.edit(tmp_path / 'llama', {'rope_theta': 5e5})  # as transformers 4 writes it
    model = import_.read(tmp_path / 'llama')[0].model
    assert (model.num_kv_heads, model.d_k, model.d_v, model.rotary.base) == (6, 4, 4, 5e5)
    assert (model.embedding.softmax, model.attention.bias, model.max_length) == ('untied', 'none', 2048)

    bridge.written('t5', tmp_path / 't5', model__decoder_layers=2, model__relative__num_buckets=32)
    bare(tmp_path / 't5', ('model_type', 'vocab_size', 'd_model', 'd_kv', 'd_ff', 'num_layers', 'num_heads'))
    model = import_.read(tmp_path / 't5')[0].model
    assert (model.decoder_layers, model.relative.max_distance, model.feed_forward) == (2, 128, 'relu')
    assert (model.embedding.logit_scale, model.ids.pad, model.ids.start) == ('rsqrt_d_model', 0, 0)


def bare(directory, kept):
    path = directory / 'config.json'
    settings = json.loads(path.read_text())
    path.write_text(json.dumps({name: settings[name] for name in kept}))


def test_an_import_is_a_run_that_can_be_looked_at(tmp_path, capsys):
    _, params = bridge.written('bert', tmp_path / 'model')
    (tmp_path / 'model' / 'vocab.json').write_text(json.dumps({'[PAD]': 0, '[MASK]': 7, 'a': 9}))
    run = tmp_path / 'run'
    assert main(['import', f'--input={tmp_path}/model', f'--workdir={run}']) == 0
    cfg = config.from_dict(files.read_json(run / 'config.json'))
    assert cfg.model.ids.mask == 7
    bridge.assert_same(params, checkpoint.restore_params(run / 'checkpoints', 0))
    assert parameters.from_checkpoint(run) == parameters.from_config(cfg, 37)
    assert compare.compare([run, run]).config == {}
    written = json.loads((run / 'vocab.json').read_text())['symbols']
    assert len(written) == 37
    assert [written[id_] for id_ in (0, 1, 7, 9)] == ['[PAD]', '<1>', '[MASK]', 'a']
    assert 'no text can be read' in capsys.readouterr().out
    assert main(['inspect', f'--workdir={run}', 'attention', '--input=a text']) == 2
    assert 'without a tokenizer that reads a text' in capsys.readouterr().err
    before = sorted(run.rglob('*'))
    assert main(['import', f'--input={tmp_path}/model', f'--workdir={run}']) == 2
    assert 'holds a run (or a grid) already' in capsys.readouterr().err
    assert main(['import', f'--input={tmp_path}/nothing', f'--workdir={tmp_path}/other']) == 2
    assert 'nothing/config.json: missing' in capsys.readouterr().err
    assert sorted(run.rglob('*')) == before and not (tmp_path / 'other').exists()
