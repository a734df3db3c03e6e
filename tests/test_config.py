"""The configuration: what is taken, what is refused and in which words, and what its hash stands for."""

import ast
import dataclasses
import json
from pathlib import Path

import pytest

from jaxformer import choices, config, optim, schema
from jaxformer.data import corpus, sources, vocab
from jaxformer.errors import UserError
from jaxformer.model import encoders, family, layers, mixers, positions, transformer, view

CONFIGS = Path(__file__).parents[1] / 'configs'
NAMED = sorted(path.stem for path in CONFIGS.glob('[!_]*.py'))


def resolved(changes=None, name='base'):
    """configs/<name>.py with the changes a command line would make."""
    edited = config.load(CONFIGS / f'{name}.py')
    config.override(edited, changes or {})
    return config.resolve(edited)


def get(cfg, path):
    for name in path.split('.'):
        cfg = getattr(cfg, name)
    return cfg


def refusal(changes):
    """The message of a refusal, which is one line: path, value and remedy are for the test to find in it."""
    with pytest.raises(UserError) as caught:
        resolved(changes)
    assert '\n' not in str(caught.value)
    return str(caught.value)


# Loading


def test_there_are_named_configs():
    assert {'base', 'big', 'g2p', 'tiny'} <= set(NAMED)


@pytest.mark.parametrize('name', NAMED)
def test_every_named_config_resolves_and_says_how_to_run_it(name):
    cfg = resolved(name=name)
    assert isinstance(cfg, schema.Config)
    docstring = ast.get_docstring(ast.parse((CONFIGS / f'{name}.py').read_text()))
    assert f'--config=configs/{name}.py' in docstring


def test_base_holds_the_numbers_of_the_paper():
    cfg = resolved()
    model = cfg.model
    assert (model.num_layers, model.d_model, model.d_ff, model.num_heads, model.d_k, model.d_v) == (
        6,
        512,
        2048,
        8,
        64,
        64,
    )
    assert (model.residual, model.position, model.attention.score) == ('post', 'sinusoidal', 'scaled_dot')
    assert (model.dropout.residual, model.dropout.embedding, model.dropout.attention) == (0.1, 0.1, 0.0)
    assert (cfg.optim.beta1, cfg.optim.beta2, cfg.optim.epsilon, cfg.optim.warmup_steps) == (0.9, 0.98, 1e-9, 4000)
    assert (cfg.optim.label_smoothing, cfg.train.num_steps) == (0.1, 100_000)


def test_base_writes_every_field_once_and_most_with_a_comment():
    source = (CONFIGS / 'base.py').read_text()
    lines = source.splitlines()
    names: dict[str, str] = {'config': ''}  # variable or attribute chain -> the group it stands for
    seen = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Assign):
            continue
        targets = [ast.unparse(target) for target in node.targets]
        path = next(target for target in targets if '.' in target) if any('.' in t for t in targets) else None
        if path is None:
            continue
        head, _, tail = path.partition('.')
        path = f'{names[head]}.{tail}'.lstrip('.')
        if 'ConfigDict()' in ast.unparse(node.value):
            names.update({target: path for target in targets if '.' not in target})
        else:
            seen.append((path, '#' in lines[node.end_lineno - 1]))
    assert sorted(path for path, _ in seen) == sorted(config.flatten(resolved()))
    # Some fields share the comment of the line above them; a field whose name says all has none.
    assert sum(commented for _, commented in seen) > 0.75 * len(seen)


def test_dataclasses_have_no_defaults():
    def check(cls):
        for field in dataclasses.fields(cls):
            assert field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING, field
            if dataclasses.is_dataclass(field.type):
                check(field.type)

    check(schema.Config)


@pytest.mark.parametrize(
    ('text', 'part'),
    [
        ('def get_config():\n    raise ValueError("first\\nsecond")', 'ValueError: first second'),
        ('raise ValueError("first\\nsecond")', 'ValueError: first second'),
        ('def get_config(:', 'SyntaxError'),
        ('def get_config():\n    return None', 'NoneType'),
        ('get_config = 3', 'get_config()'),
        ('x = 3', 'get_config()'),
    ],
)
def test_a_file_that_gives_no_config_is_named_in_one_line(tmp_path, text, part):
    path = tmp_path / 'mine.py'
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        config.load(path)
    assert str(path) in str(caught.value) and part in str(caught.value) and '\n' not in str(caught.value)


def test_a_missing_file_is_named():
    with pytest.raises(UserError, match='configs/nope.py: no such file'):
        config.load('configs/nope.py')


def test_the_config_json_of_a_run_is_a_configuration(tmp_path):
    path = tmp_path / 'config.json'
    cfg = resolved({'model.num_heads': 4, 'optim.clip_norm': 0.5})
    path.write_text(json.dumps(config.to_dict(cfg)))
    edited = config.load(path)
    assert config.resolve(edited) == cfg
    config.override(edited, {'data.buckets': '((3, 4),)', 'optim.clip_norm': 'None'})
    changed = config.resolve(edited)
    assert (changed.data.buckets, changed.optim.clip_norm) == (((3, 4),), None)
    path.write_text('{"seed": 1}')
    with pytest.raises(UserError, match=r'config.json: config: field model is missing'):
        config.load(path)
    with pytest.raises(UserError, match=r'nothing.json: no such file'):
        config.load(tmp_path / 'nothing.json')


@pytest.mark.parametrize(
    ('edit', 'part'),
    [
        ('config.model.d_modle = 3', 'config.model.d_modle: no such field; did you mean config.model.d_model?'),
        ('config.model.attention.scroe = "dot"', 'did you mean config.model.attention.score?'),
        ('del config.train', 'field train is missing'),
        ('del config.model', 'field model is missing'),
        ('del config.model.d_k', 'config.model: field d_k is missing'),
        ('config.train.num_steps = None', 'config.train.num_steps=None: must be an integer'),
        ('config.modell.d_model = 3', 'modell'),
    ],
)
def test_a_mistake_inside_a_config_file_is_named(tmp_path, edit, part):
    path = tmp_path / 'mine.py'
    path.write_text(
        f'from configs import base\ndef get_config():\n    config = base.get_config()\n    {edit}\n    return config\n'
    )
    with pytest.raises(UserError) as caught:
        config.resolve(config.load(path))
    assert part in str(caught.value) and '\n' not in str(caught.value)


# Overrides (B44)


@pytest.mark.parametrize(
    ('text', 'value'), [('1', 1.0), ('1.0', 1.0), ('.5', 0.5), ('None', None), (None, None), (2, 2.0)]
)
def test_a_field_without_a_value_can_be_set_and_unset(text, value):
    found = resolved({'optim.clip_norm': text}).optim.clip_norm
    assert found == value and isinstance(found, type(value))


@pytest.mark.parametrize(('text', 'value'), [('1', 1), ('1e-5', 1e-5), ('1E-5', 1e-5), ('.5', 0.5), ('1.', 1), (3, 3)])
def test_a_number_is_read_however_it_is_written(text, value):
    found = resolved({'optim.learning_rate': text}).optim.learning_rate
    assert found == value and isinstance(found, float)


@pytest.mark.parametrize('text', ['3', '3.0', ' 3', 3, 3.0, '3e0'])
def test_an_integer_is_an_integer_however_it_is_written(text):
    found = resolved({'train.num_steps': text}).train.num_steps
    assert found == 3 and isinstance(found, int)


@pytest.mark.parametrize('text', ['True', 'true', True, 'False', 'false', False])
def test_booleans(text):
    assert resolved({'data.shuffle': text}).data.shuffle is (str(text).lower() == 'true')


@pytest.mark.parametrize('value', ['((1, 2), (3, 4))', ((1, 2), (3, 4)), [[1, 2], [3, 4]]])
def test_a_tuple_stays_a_tuple(value):
    assert resolved({'data.buckets': value}).data.buckets == ((1, 2), (3, 4))


@pytest.mark.parametrize(
    ('path', 'value', 'kind'),
    [
        ('train.num_steps', '3.5', 'an integer'),
        ('train.num_steps', 3.5, 'an integer'),
        ('train.num_steps', 'None', 'an integer'),
        ('train.num_steps', None, 'an integer'),
        ('train.num_steps', True, 'an integer'),
        ('train.num_steps', 'many', 'an integer'),
        ('train.num_steps', '1e999', 'an integer'),
        ('train.num_steps', '{[]: 1}', 'an integer'),
        ('optim.learning_rate', 'fast', 'a number'),
        ('optim.learning_rate', '', 'a number'),
        ('optim.learning_rate', 'False', 'a number'),
        ('optim.learning_rate', '9' * 400, 'a number'),
        ('data.shuffle', '1', 'true or false'),
        ('data.shuffle', 1, 'true or false'),
        ('data.dir', 3, 'text'),
        ('data.buckets', '(3, 4)', 'a tuple of tuples of integers'),
        ('data.buckets', '((3, 4.5),)', 'a tuple of tuples of integers'),
        ('data.buckets', '((3, True),)', 'a tuple of tuples of integers'),
        ('model.conv.dilations', '3', 'a tuple of integers'),
        ('model.conv.dilations', '(3)', 'a tuple of integers'),
        ('model.attention.global_positions', '((0, 1),)', 'a tuple of integers'),
        ('model.attention.global_positions', '(0, 1.5)', 'a tuple of integers'),
    ],
)
def test_a_value_of_the_wrong_type_is_refused_with_field_value_and_type(path, value, kind):
    message = refusal({path: value})
    assert message.startswith(f'config.{path}={value!r}: must be {kind}')


@pytest.mark.parametrize(
    ('path', 'near'),
    [
        ('model.num_head', 'model.num_heads'),
        ('num_heads', 'model.num_heads'),
        ('model.label_smoothing', 'optim.label_smoothing'),
        ('train.num_step', 'train.num_steps'),
        ('modle.d_model', 'model.d_model'),
        ('model.attention.scores', 'model.attention.score'),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_name(path, near):
    assert refusal({path: 4}) == f'config.{path}: no such field; did you mean config.{near}?'


# Derived fields


def test_derived_fields_follow_the_field_they_derive_from():
    model = resolved({'model.num_heads': 4, 'model.d_model': 24, 'model.num_layers': 3}).model
    assert (model.num_kv_heads, model.d_k, model.d_v, model.encoder_layers, model.decoder_layers) == (4, 6, 6, 3, 3)


@pytest.mark.parametrize('order', [1, -1])
def test_a_derived_field_that_is_set_stays_and_ties_no_other(order):
    changes = {'model.d_k': 9, 'model.num_kv_heads': 1, 'model.num_heads': 4, 'model.decoder_layers': 2}
    model = resolved(dict(list(changes.items())[::order])).model
    assert (model.d_k, model.num_kv_heads, model.decoder_layers) == (9, 1, 2)
    assert (model.d_v, model.d_model, model.num_heads, model.encoder_layers, model.num_layers) == (128, 512, 4, 6, 6)


def test_a_head_width_never_rounds_silently():
    message = refusal({'model.d_model': 257})
    assert message.startswith('config.model.d_model=257: must be a multiple of model.num_heads=8')
    assert 'model.d_k and model.d_v' in message
    assert refusal({'model.d_model': 257, 'model.d_k': 9}).endswith('or set model.d_v')
    model = resolved({'model.d_model': 257, 'model.d_k': 32, 'model.d_v': 32}).model
    assert (model.d_model, model.d_k, model.d_v) == (257, 32, 32)


# Validation


LM = {'model.family': 'lm', 'data.name': 'stdlib', 'data.tokenizer': 'bytes', 'data.buckets': ((64,),)}
MLM = LM | {'model.family': 'mlm'}
CLASSIFIER = LM | {'model.family': 'classifier', 'data.name': 'stdlib_labels'}
FILES = {'data.name': 'parallel', 'data.source': 'from.{split}.txt', 'data.target': 'to.{split}.txt'}
BESIDES = {
    ('model.family', 'lm'): LM,
    ('model.family', 'mlm'): MLM,
    ('model.family', 'classifier'): CLASSIFIER,
    ('model.mixer', 'linformer'): {'model.decoder_mixer': 'attention'},
    ('data.tokenizer', 'characters'): FILES,
    ('data.tokenizer', 'bytes'): FILES,
    ('data.tokenizer', 'bpe'): FILES,
    ('data.tokenizer', 'file'): FILES | {'data.tokenizer_file': 'tokenizer.json'},
    ('data.packing', 'documents'): LM,
    ('data.labels', 'syntax'): CLASSIFIER | {'model.head.pooling': 'tokens'},
    ('model.head.pooling', 'tokens'): CLASSIFIER | {'data.labels': 'syntax'},
    ('model.head.pooling', 'mean'): CLASSIFIER,
    ('model.head.pooler', 'on'): CLASSIFIER,
    ('model.head.transform', 'on'): MLM,
}
"""What has to be set for a choice to be allowed or to mean something."""


@pytest.mark.parametrize('path', sorted(config.CHOICES))
def test_every_choice_is_taken_and_others_are_refused_with_the_list(path):
    for choice in config.CHOICES[path]:
        if (path, choice) != ('model.decoder_mixer', 'linformer'):  # there is no causal form of it
            assert get(resolved(BESIDES.get((path, choice), {}) | {path: choice}), path) == choice
    typo = config.CHOICES[path][0] + 'x'
    message = refusal({path: typo})
    assert message.startswith(f'config.{path}={typo!r}: must be one of')
    assert all(choice in message for choice in config.CHOICES[path]) and f'did you mean {typo[:-1]!r}?' in message


def test_choices_are_the_tables_of_the_code():
    tables = {
        'model.family': transformer.FAMILIES,
        'model.mixer': mixers.MIXERS,
        'model.encoder_mixer': mixers.MIXERS,
        'model.decoder_mixer': mixers.MIXERS,
        'model.position': positions.POSITIONS,
        'model.feed_forward': {**layers.ACTIVATIONS, 'none': None},
        'model.attention.score': view.SCORES,
        'model.attention.pattern': view.PATTERNS,
        'model.embedding.scale': family.EMBEDDING_SCALES,
        'model.head.pooling': encoders.POOLINGS,
        'optim.name': optim.DIRECTIONS,
        'optim.schedule': optim.SCHEDULES,
        'eval.split': corpus.SPLITS,
        'data.tokenizer': {**vocab.TOKENIZERS, 'native': None},
    }
    for path, table in tables.items():
        assert set(config.CHOICES[path]) == set(table), path
    assert {name: source.kind for name, source in sources.SOURCES.items()} == choices.DATA_KINDS


@pytest.mark.parametrize(
    ('path', 'value'),
    [
        ('seed', -1),
        ('seed', 2**31),
        ('seed', int('9' * 400)),
        ('model.num_heads', 0),
        ('model.num_heads', -8),
        ('model.d_model', 0),
        ('model.d_k', 0),
        ('model.num_kv_heads', 3),
        ('model.num_kv_heads', 16),
        ('model.vocab_size', 3),
        ('model.vocab_size', -1),
        ('model.norm_epsilon', 0.0),
        ('model.dropout.residual', 1.0),
        ('model.dropout.attention', -0.1),
        ('model.dropout.embedding', float('nan')),
        ('model.scan_unroll', -1),
        ('optim.learning_rate', -1.0),
        ('optim.learning_rate', float('inf')),
        ('optim.label_smoothing', 1.0),
        ('optim.beta1', 1.0),
        ('optim.epsilon', 0.0),
        ('optim.clip_norm', 0.0),
        ('train.num_steps', 0),
        ('train.num_steps', 2**31),
        ('train.batch_size', 0),
        ('data.buckets', ()),
        ('data.buckets', ((9, 9), (5, 12))),
        ('data.buckets', ((0, 4),)),
        ('data.buckets', ((4,),)),
        ('data.buckets', ((3, 4, 5),)),
        ('data.min_length', 13),
        ('mesh.data', 0),
        ('mesh.model', -2),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_and_value(path, value):
    assert refusal({path: value}).startswith(f'config.{path}={value!r}: must be ')


def test_an_open_bound_is_said_as_such():
    assert refusal({'train.num_steps': 0}).endswith('must be a finite number, at least 1')
    assert refusal({'train.num_steps': 2**31}).endswith(f'must be from 1 to {2**31 - 1}')


def test_only_one_mesh_axis_takes_what_is_left():
    assert 'more than one axis is -1' in refusal({'mesh.fsdp': -1})


def test_learned_positions_must_reach_the_longest_bucket_and_decoding():
    short = {'model.position': 'learned', 'model.max_length': 63}
    assert 'at least 64' in refusal(short)  # eval.max_decode_length
    assert 'at least 70' in refusal({**short, 'data.buckets': ((9, 9), (70, 9))})
    assert resolved({**short, 'model.max_length': 64}).model.max_length == 64
    assert resolved({**short, 'model.position': 'sinusoidal'}).model.max_length == 63


def test_text_has_one_length():
    text = {'model.family': 'lm', 'data.name': 'stdlib', 'data.tokenizer': 'bytes'}
    assert 'one (length,) with data.name=stdlib' in refusal({**text, 'data.buckets': ((8,), (9,))})
    assert resolved({**text, 'data.buckets': ((9,),)}).data.buckets == ((9,),)
    labelled = {'model.family': 'classifier', 'data.name': 'stdlib_labels', 'data.buckets': ((8,), (9,))}
    assert len(resolved({**text, **labelled}).data.buckets) == 2


def test_validation_changes_nothing():
    cfg = resolved()
    before = config.canonical_json(cfg)
    config.validate(cfg)
    assert config.canonical_json(cfg) == before


# JSON, hash, diff


@pytest.mark.parametrize('name', NAMED)
def test_a_config_goes_through_json_and_back(name):
    cfg = resolved(name=name)
    again = config.from_dict(json.loads(json.dumps(config.to_dict(cfg))))
    assert again == cfg and config.config_hash(again) == config.config_hash(cfg)
    assert isinstance(again.data.buckets, tuple) and isinstance(again.data.buckets[0], tuple)


def test_from_dict_names_what_is_wrong():
    values = config.to_dict(resolved())
    with pytest.raises(UserError, match='config.extra: no such field'):
        config.from_dict({**values, 'extra': 1})
    with pytest.raises(UserError, match='field seed is missing'):
        config.from_dict({key: value for key, value in values.items() if key != 'seed'})
    with pytest.raises(UserError, match='config.model=1: must be a group of fields'):
        config.from_dict({**values, 'model': 1})


def test_the_hash_does_not_depend_on_field_order_or_on_int_for_float():
    values = config.to_dict(resolved())
    turned = {
        key: dict(reversed(value.items())) if isinstance(value, dict) else value
        for key, value in reversed(values.items())
    }
    turned['optim']['learning_rate'], turned['train']['num_steps'] = 1, 100_000.0
    assert list(turned) != list(values)
    assert config.canonical_json(config.from_dict(turned)) == config.canonical_json(resolved())
    assert config.config_hash(config.from_dict(turned)) == config.config_hash(resolved())


ANOTHER = {
    **{f'model.kept_heads.{kind}': ((7,),) for kind in ('encoder', 'decoder', 'cross')},
    'data.buckets': ((40, 41),),
    'optim.clip_norm': 1.0,
    'model.num_kv_heads': 4,
    'model.d_model': 520,
    'model.num_heads': 16,
    'mesh.data': 1,
    'data.dir': '/elsewhere',
    'runtime.compilation_cache': '',
}


def another(path, value):
    """A valid value of the field other than `value`."""
    if path in ANOTHER:
        return ANOTHER[path]
    if path in config.CHOICES:
        return next(choice for choice in config.CHOICES[path] if choice != value)
    if isinstance(value, str):
        return f'{value}x'
    if isinstance(value, tuple):
        return (*value, 7)
    if isinstance(value, bool):
        return not value
    return value + 1 if isinstance(value, int) else value / 2 + 0.01


def test_the_hash_and_the_diff_see_every_single_field(monkeypatch):
    cfg = resolved()
    monkeypatch.setattr(config, 'validate', lambda cfg: None)  # not every field can be another with all else as it is
    hashes = {config.config_hash(cfg): 'base'}
    for path, value in config.flatten(cfg).items():
        other = another(path, value)
        values = config.to_dict(cfg)
        node = values
        *groups, name = path.split('.')
        for group in groups:
            node = node[group]
        node[name] = other
        changed = config.from_dict(values)
        assert config.diff(cfg, changed) == {path: (value, other)}
        assert config.config_hash(changed) not in hashes, f'{path} and {hashes[config.config_hash(changed)]}'
        hashes[config.config_hash(changed)] = path
    assert len(hashes) == 1 + len(config.fields())


def test_the_hash_can_leave_the_seed_out():
    one, two = resolved(), resolved({'seed': 1})
    assert config.config_hash(one) != config.config_hash(two)
    assert config.config_hash(one, without=('seed',)) == config.config_hash(two, without=('seed',))
    assert len(config.config_hash(one)) == 12


def test_a_config_is_hashable_and_frozen():
    cfg = resolved()
    assert hash(cfg) == hash(resolved())
    with pytest.raises(dataclasses.FrozenInstanceError):
        cfg.seed = 3
