"""Whatever stands in a config.json, there is an import or one line that names the entry."""

import json

import bridge
import pytest

from jaxformer import config
from jaxformer.data.named_ids import IDS
from jaxformer.errors import UserError
from jaxformer.inspection import import_, symbols
from jaxformer.inspection.hugging_face import LAYOUTS

CLASSIFIER = {
    'model__family': 'classifier', 'model__head__num_classes': 3, 'model__head__pooler': 'on',
    'data__name': 'stdlib_labels', 'model__embedding__softmax_bias': 'off', 'model__head__transform': 'off',
}  # fmt: skip
VALUES = (0, -1, 3, 0.5, 10**400, float('nan'), 'x', True, None, [], [3], {}, {'x': 1})
NO_NUMBER = ('x', [], [3], {}, {'x': 1})


def whole(name, directory):
    kind, changes = ('bert', CLASSIFIER) if name == 'classifier' else (name, {})
    bridge.written(kind, directory, **changes)
    return json.loads((directory / 'config.json').read_text())


def imported(directory, settings):
    """Reads a directory with these settings; the message where they are refused."""
    (directory / 'config.json').write_text(json.dumps(settings))
    try:
        edited, _ = import_.read(directory)
        symbols.vocabulary(directory, settings, config.resolve(edited))
    except UserError as error:
        return str(error)
    return None


@pytest.mark.parametrize('name', [*bridge.CONFIGS, 'classifier'])
def test_any_value_of_any_entry_is_read_or_refused_in_one_line(name, tmp_path):
    settings = whole(name, tmp_path)
    (layout,) = (layout for layout in LAYOUTS if [layout.name] == settings['architectures'])
    numbers = {key.name for key in layout.keys if hasattr(key, 'read') and key.read is None}
    entries = {key.name for key in layout.keys} | {'model_type', 'architectures', *IDS.values()} | set(settings)
    read, refused = 0, 0
    for entry in sorted(entries):
        group, _, last = entry.rpartition('.')
        for value in VALUES:
            changed = {**settings, group: {**settings[group], last: value}} if group else {**settings, entry: value}
            said = imported(tmp_path, changed)
            if said is None:
                read += 1
                assert not (entry in numbers and value in NO_NUMBER), (entry, value)
            else:
                refused += 1
                others = entries if value == 3 else set()  # the number alone is none that is refused
                assert '\n' not in said and any(name in said for name in {entry, 'tensor ', *others}), (value, said)
                assert str(tmp_path) in said and len(said) < 700
    assert read > 20 and refused > 100
    assert imported(tmp_path, settings) is None


@pytest.mark.parametrize('name', bridge.CONFIGS)
def test_any_entry_may_be_missing(name, tmp_path):
    settings = whole(name, tmp_path)
    for entry in settings:
        said = imported(tmp_path, {key: value for key, value in settings.items() if key != entry})
        assert said is None or (str(tmp_path) in said and '\n' not in said)


@pytest.mark.parametrize(
    ('name', 'settings', 'said'),
    [
        ('llama', {'num_attention_heads': 0}, 'num_attention_heads=0: must be from 1'),
        ('gpt2', {'n_head': -3}, 'n_head=-3: must be from 1'),
        ('gpt2', {'resid_pdrop': 1}, 'resid_pdrop=1: must be from 0 up to but not including 1'),
        ('gpt2', {'architectures': 3}, 'architectures=3: must be a list of names'),
        ('gpt2', {'architectures': 'MyGPT2LMHeadModel'}, 'architectures="MyGPT2LMHeadModel": must be a list of names'),
        ('llama', {'rope_parameters': 3}, 'rope_parameters=3: must be an object'),
        ('llama', {'num_hidden_layers': 10**9}, 'tensor model.layers.2.'),
        ('llama', {'vocab_size': 2**31 - 1}, 'tensor model.embed_tokens.weight is [37, 24], and [2147483647, 24]'),
        (
            'classifier',
            {'id2label': {'0': 'a', '2': 'b', '3': 'c'}},
            'id2label={"0": "a", "2": "b", "3": "c"}: cannot',
        ),
        ('classifier', {'id2label': {'0': 'a', '1': 3, '2': 'c'}}, 'id2label={"0": "a", "1": 3, "2": "c"}: cannot'),
    ],
)
def test_what_is_wrong_is_said(name, settings, said, tmp_path):
    assert said in imported(tmp_path, {**whole(name, tmp_path), **settings})


@pytest.mark.parametrize('text', ['{"n_embd": ' + '1' * 5000 + '}', '[' * 10**6, '{"n_embd": "\\ud800"}'])
def test_what_json_itself_cannot_hold_is_refused(text, tmp_path):
    bridge.written('gpt2', tmp_path)
    (tmp_path / 'config.json').write_text(text)
    with pytest.raises(UserError, match=r'config\.json: '):
        import_.read(tmp_path)
