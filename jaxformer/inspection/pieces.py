"""What several tables of `hugging_face.py` share: layers of PyTorch as rows, settings that mean the same everywhere."""

from typing import Any

from jaxformer.inspection.layout import Choice, Demand, Key, Row

UNGATED: dict[Any, dict[str, str]] = {
    'gelu': {'model.feed_forward': 'gelu', 'model.gelu': 'exact'},
    'gelu_new': {'model.feed_forward': 'gelu', 'model.gelu': 'tanh'},
    'gelu_pytorch_tanh': {'model.feed_forward': 'gelu', 'model.gelu': 'tanh'},
    'relu': {'model.feed_forward': 'relu'},
    'silu': {'model.feed_forward': 'silu'},
    'swish': {'model.feed_forward': 'silu'},
}
GATED: dict[Any, dict[str, str]] = {
    'silu': {'model.feed_forward': 'swiglu'},
    'swish': {'model.feed_forward': 'swiglu'},
    'gelu': {'model.feed_forward': 'geglu', 'model.gelu': 'exact'},
    'gelu_new': {'model.feed_forward': 'geglu', 'model.gelu': 'tanh'},
    'gelu_pytorch_tanh': {'model.feed_forward': 'geglu', 'model.gelu': 'tanh'},
}
"""Names of activations, in feed-forwards of two matrices and of three."""

PLAIN: dict[str, Any] = {
    'model.attention.score': 'scaled_dot',
    'model.attention.pattern': 'full',
    **dict.fromkeys(('model.kept_heads.encoder', 'model.kept_heads.decoder', 'model.kept_heads.cross'), ()),
    'model.embedding.tables': 'shared',
    'model.embedding.scale': 'none',
    'model.embedding.norm': 'off',
    'model.embedding.token_types': 0,
    'model.embedding.softmax_bias': 'off',
    'model.embedding.logit_scale': 'none',
}
LM = {**PLAIN, 'model.family': 'lm', 'model.decoder_mixer': 'attention'}
ENCODER = {**PLAIN, 'model.encoder_mixer': 'attention'}
SEQ2SEQ = {
    **PLAIN,
    'model.family': 'seq2seq',
    'model.encoder_mixer': 'attention',
    'model.decoder_mixer': 'attention',
}
"""Fields of a layout whose settings say nothing else."""


def linear(
    name: str, path: str, inputs: str, outputs: str, parts: tuple[str, ...] = ('',), order: str = 'outputs inputs'
) -> tuple[Row, Row]:
    """Weight and bias of a linear layer (or of several, fused, whose paths end with `parts`).

    order: that of the weight's axes; nn.Linear has [outputs, inputs], the Conv1D of GPT-2 the reverse.
    """
    paths = tuple(path + part for part in parts)
    sides = {'inputs': f'({inputs})', 'outputs': f'(* {outputs})' if len(parts) > 1 else f'({outputs})'}
    weight = ' '.join(sides[side] for side in order.split())
    return (
        Row(f'{name}.weight', paths, f'{weight} -> {inputs} {outputs}'),
        Row(f'{name}.bias', tuple(f'{path}_bias' for path in paths), f'{sides["outputs"]} -> {outputs}'),
    )


def attention(name: str, path: str, query: str, key: str, value: str, out: str) -> tuple[Row, ...]:
    """Four linear layers, by their names below `name`."""
    return (
        *linear(f'{name}.{query}', f'{path}/query', 'D', 'H K'),
        *linear(f'{name}.{key}', f'{path}/key', 'D', 'G K'),
        *linear(f'{name}.{value}', f'{path}/value', 'D', 'G E'),
        *linear(f'{name}.{out}', f'{path}/out', 'H E', 'D'),
    )


def norm(name: str, path: str) -> tuple[Row, Row]:
    """Scale and bias of a layer norm; a model with RMS norms has no parameter for the latter row."""
    return Row(f'{name}.weight', (f'{path}/scale',), 'D -> D'), Row(f'{name}.bias', (f'{path}/bias',), 'D -> D')


def table(name: str, path: str, when: tuple[str, tuple[str, ...]] | None = None) -> Row:
    """An embedding of the vocabulary, or the output layer."""
    return Row(f'{name}.weight', (path,), 'V D -> V D', when)


def on_off(name: str, field: str, values: tuple[str, str], absent: bool | Any) -> Choice:
    """A setting that is true or false, and what these are called in `field`."""
    return Choice(name, {True: {field: values[0]}, False: {field: values[1]}}, absent)


def tied(absent: bool) -> Choice:
    return on_off('tie_word_embeddings', 'model.embedding.softmax', ('tied', 'untied'), absent)


def padding(absent: int) -> Key:
    """The id of padding; null says that there is none."""
    return Key('pad_token_id', 'model.ids.pad', absent, null=-1, write=lambda pad: None if pad < 0 else pad)


def unsupported(name: str, only: Any) -> Choice:
    """A setting of which one value is supported, the one that it has where it is not said."""
    return Choice(name, {only: {}}, absent=only)


NEVER = (unsupported('quantization_config', None), unsupported('is_decoder', False))


def heads_divide(width: str, heads: str) -> Demand:
    """The heads share the width evenly."""
    return Demand(width, lambda settings: settings[width] % settings[heads] == 0, f'a multiple of {heads}')


def even_heads(width: str, heads: str) -> dict[str, Any]:
    """Fields of attention whose keys and values have width/heads columns each, one pair per head."""
    share = lambda settings: settings[width] // settings[heads]  # noqa: E731
    return {'model.num_kv_heads': lambda settings: settings[heads], 'model.d_k': share, 'model.d_v': share}
