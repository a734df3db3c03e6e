"""The layouts of GPT-2, Llama, BERT, T5 and Marian in Hugging Face's transformers (versions 4 and 5), as tables."""

import dataclasses
from typing import Any

from jaxformer.inspection import pieces
from jaxformer.inspection.hugging_face_pairs import MARIAN, T5
from jaxformer.inspection.layout import Choice, Key, Layout, Row

ENC, DEC = 'encoder/layers', 'decoder/layers'

GPT2 = Layout(
    name='GPT2LMHeadModel',
    model_type='gpt2',
    fields={
        **pieces.LM,
        **pieces.even_heads('n_embd', 'n_head'),
        'model.residual': 'pre',
        'model.norm': 'layernorm',
        'model.position': 'learned',
        'model.feed_forward_bias': 'on',
        'model.attention.bias': 'all',
    },
    keys=(
        Key('vocab_size', 'model.vocab_size'),
        Key('n_positions', 'model.max_length', absent=1024),
        Key('n_embd', 'model.d_model'),
        Key('n_layer', 'model.decoder_layers', also=('model.num_layers',)),
        Key('n_head', 'model.num_heads'),
        Key('n_inner', 'model.d_ff', absent=lambda settings: 4 * settings['n_embd']),
        Choice('activation_function', pieces.UNGATED, absent='gelu_new'),
        Key('layer_norm_epsilon', 'model.norm_epsilon', absent=1e-5),
        pieces.on_off('scale_attn_weights', 'model.attention.score', ('scaled_dot', 'dot'), absent=True),
        pieces.tied(absent=True),
        Key('bos_token_id', 'model.ids.start', absent=50256),
        pieces.padding(absent=-1),
        Key('resid_pdrop', 'model.dropout.residual', absent=0.1),
        Key('embd_pdrop', 'model.dropout.embedding', absent=0.1),
        Key('attn_pdrop', 'model.dropout.attention', absent=0.1),
        pieces.unsupported('scale_attn_by_inverse_layer_idx', False),
        pieces.unsupported('add_cross_attention', False),
        *pieces.NEVER,
    ),
    demands=(pieces.heads_divide('n_embd', 'n_head'),),
    rows=(
        pieces.table('transformer.wte', 'embedding'),
        Row('transformer.wpe.weight', ('decoder/position/table',), 'M D -> M D'),
        *pieces.norm('transformer.h.{n}.ln_1', f'{DEC}/self_attention_norm'),
        *pieces.linear(
            'transformer.h.{n}.attn.c_attn', f'{DEC}/self_attention/', 'D', 'H K', ('query', 'key', 'value'),
            order='inputs outputs',
        ),
        *pieces.linear(
            'transformer.h.{n}.attn.c_proj', f'{DEC}/self_attention/out', 'H E', 'D', order='inputs outputs'
        ),
        *pieces.norm('transformer.h.{n}.ln_2', f'{DEC}/feed_forward_norm'),
        *pieces.linear('transformer.h.{n}.mlp.c_fc', f'{DEC}/feed_forward/inner', 'D', 'F', order='inputs outputs'),
        *pieces.linear('transformer.h.{n}.mlp.c_proj', f'{DEC}/feed_forward/outer', 'F', 'D', order='inputs outputs'),
        *pieces.norm('transformer.ln_f', 'decoder/final_norm'),
        pieces.table('lm_head', 'softmax'),
    ),
    renamed=((r'^(wte|wpe|h|ln_f)\.', r'transformer.\1.'),),
    copies=(('lm_head.weight', 'transformer.wte.weight'),),
    ignored=(r'\.attn\.(masked_)?bias$',),  # causal masks
)  # fmt: skip

LLAMA = Layout(
    name='LlamaForCausalLM',
    model_type='llama',
    fields={
        **pieces.LM,
        'model.residual': 'pre',
        'model.norm': 'rmsnorm',
        'model.position': 'rotary',
        'model.rotary.layout': 'halves',
        'model.feed_forward_bias': 'off',
        'model.d_v': lambda settings: settings['head_dim'],
    },
    keys=(
        Key('vocab_size', 'model.vocab_size'),
        Key('max_position_embeddings', 'model.max_length', absent=2048),
        Key('hidden_size', 'model.d_model'),
        Key('intermediate_size', 'model.d_ff'),
        Key('num_hidden_layers', 'model.decoder_layers', also=('model.num_layers',)),
        Key('num_attention_heads', 'model.num_heads'),
        Key('num_key_value_heads', 'model.num_kv_heads', absent=lambda settings: settings['num_attention_heads']),
        Key(
            'head_dim', 'model.d_k', absent=lambda settings: settings['hidden_size'] // settings['num_attention_heads']
        ),
        Choice('hidden_act', pieces.GATED, absent='silu'),
        Key('rms_norm_eps', 'model.norm_epsilon', absent=1e-6),
        Key('rope_parameters.rope_theta', 'model.rotary.base', absent=10_000.0, aliases=('rope_theta',)),
        pieces.unsupported('rope_parameters.rope_type', 'default'),
        pieces.unsupported('rope_scaling', None),
        pieces.on_off('attention_bias', 'model.attention.bias', ('all', 'none'), absent=False),
        pieces.unsupported('mlp_bias', False),
        pieces.tied(absent=False),
        Key('bos_token_id', 'model.ids.start', absent=1),
        pieces.padding(absent=-1),
        Key('attention_dropout', 'model.dropout.attention', absent=0.0),
        *pieces.NEVER,
    ),
    demands=(pieces.heads_divide('hidden_size', 'num_attention_heads'),),
    rows=(
        pieces.table('model.embed_tokens', 'embedding'),
        *pieces.norm('model.layers.{n}.input_layernorm', f'{DEC}/self_attention_norm'),
        *pieces.attention(
            'model.layers.{n}.self_attn', f'{DEC}/self_attention', 'q_proj', 'k_proj', 'v_proj', 'o_proj'
        ),
        *pieces.norm('model.layers.{n}.post_attention_layernorm', f'{DEC}/feed_forward_norm'),
        *pieces.linear('model.layers.{n}.mlp.gate_proj', f'{DEC}/feed_forward/inner', 'D', 'F'),
        *pieces.linear('model.layers.{n}.mlp.up_proj', f'{DEC}/feed_forward/gate', 'D', 'F'),
        *pieces.linear('model.layers.{n}.mlp.down_proj', f'{DEC}/feed_forward/outer', 'F', 'D'),
        *pieces.norm('model.norm', 'decoder/final_norm'),
        pieces.table('lm_head', 'softmax'),
    ),
    copies=(('lm_head.weight', 'model.embed_tokens.weight'),),
    ignored=(r'\.rotary_emb\.inv_freq$',),
)

_BERT_ENCODER = {
    **pieces.ENCODER,
    **pieces.even_heads('hidden_size', 'num_attention_heads'),
    'model.residual': 'post',
    'model.norm': 'layernorm',
    'model.position': 'learned',
    'model.feed_forward_bias': 'on',
    'model.attention.bias': 'all',
    'model.embedding.norm': 'on',
}
_BERT_LAYER = 'bert.encoder.layer.{n}'
BERT = Layout(  # the encoder, to which a masked-token model has no layers but the tied softmax to add
    name='BertModel',
    model_type='bert',
    fields={**_BERT_ENCODER, 'model.family': 'mlm', 'model.embedding.softmax': 'tied', 'model.head.transform': 'off'},
    keys=(
        Key('vocab_size', 'model.vocab_size'),
        Key('max_position_embeddings', 'model.max_length', absent=512),
        Key('hidden_size', 'model.d_model'),
        Key('intermediate_size', 'model.d_ff'),
        Key('num_hidden_layers', 'model.encoder_layers', also=('model.num_layers',)),
        Key('num_attention_heads', 'model.num_heads'),
        Key('type_vocab_size', 'model.embedding.token_types', absent=2),
        Choice('hidden_act', pieces.UNGATED, absent='gelu'),
        Key('layer_norm_eps', 'model.norm_epsilon', absent=1e-12),
        pieces.padding(absent=0),
        Key('hidden_dropout_prob', 'model.dropout.residual', absent=0.1, also=('model.dropout.embedding',)),
        Key('attention_probs_dropout_prob', 'model.dropout.attention', absent=0.1),
        pieces.unsupported('position_embedding_type', 'absolute'),
        pieces.unsupported('add_cross_attention', False),
        pieces.unsupported('tie_word_embeddings', True),
        *pieces.NEVER,
    ),
    demands=(pieces.heads_divide('hidden_size', 'num_attention_heads'),),
    rows=(
        pieces.table('bert.embeddings.word_embeddings', 'embedding'),
        Row('bert.embeddings.token_type_embeddings.weight', ('token_types',), 'A D -> A D'),
        Row('bert.embeddings.position_embeddings.weight', ('encoder/position/table',), 'M D -> M D'),
        *pieces.norm('bert.embeddings.LayerNorm', 'encoder/embedding_norm'),
        *pieces.attention(
            f'{_BERT_LAYER}.attention', f'{ENC}/self_attention',
            'self.query', 'self.key', 'self.value', 'output.dense',
        ),
        *pieces.norm(f'{_BERT_LAYER}.attention.output.LayerNorm', f'{ENC}/self_attention_norm'),
        *pieces.linear(f'{_BERT_LAYER}.intermediate.dense', f'{ENC}/feed_forward/inner', 'D', 'F'),
        *pieces.linear(f'{_BERT_LAYER}.output.dense', f'{ENC}/feed_forward/outer', 'F', 'D'),
        *pieces.norm(f'{_BERT_LAYER}.output.LayerNorm', f'{ENC}/feed_forward_norm'),
        *pieces.linear('bert.pooler.dense', 'pooler', 'D', 'X'),
        *pieces.linear('cls.predictions.transform.dense', 'transform', 'D', 'X'),
        *pieces.norm('cls.predictions.transform.LayerNorm', 'transform_norm'),
        Row('cls.predictions.bias', ('softmax_bias',), 'V -> V'),
        *pieces.linear('classifier', 'classes', 'D', 'Y'),
    ),
    renamed=(
        (r'^(embeddings|encoder|pooler)\.', r'bert.\1.'),
        (r'LayerNorm\.gamma$', 'LayerNorm.weight'),
        (r'LayerNorm\.beta$', 'LayerNorm.bias'),
    ),
    copies=(
        ('cls.predictions.decoder.weight', 'bert.embeddings.word_embeddings.weight'),
        ('cls.predictions.decoder.bias', 'cls.predictions.bias'),
    ),
    ignored=(r'\.position_ids$', r'^cls\.seq_relationship\.', r'^bert\.pooler\.'),
)  # fmt: skip


def _bert(name: str, fields: dict[str, Any], *keys: Key | Choice) -> Layout:
    """The encoder with a head: the fields of that, and keys that are other ones, or further."""
    names = {key.name for key in keys}
    kept = tuple(key for key in BERT.keys if key.name not in names)
    return dataclasses.replace(BERT, name=name, fields={**_BERT_ENCODER, **fields}, keys=kept + keys)


def _number_of_labels(labels: dict[str, str]) -> int:
    if not labels or labels.keys() != set(map(str, range(len(labels)))) or not all(map(_is_text, labels.values())):
        raise ValueError
    return len(labels)


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


_LABELS = Key(
    'id2label',
    'model.head.num_classes',
    absent={'0': 'LABEL_0', '1': 'LABEL_1'},
    read=_number_of_labels,
    write=lambda classes: {str(number): f'LABEL_{number}' for number in range(classes)},
)
BERT_MASKED = _bert(
    'BertForMaskedLM',
    {
        'model.family': 'mlm',
        'model.embedding.softmax': 'tied',
        'model.embedding.softmax_bias': 'on',
        'model.head.transform': 'on',
    },
    Choice(
        'hidden_act',
        {name: fields for name, fields in pieces.UNGATED.items() if name.startswith('gelu')},
        absent='gelu',
    ),
)
BERT_PRETRAINING = dataclasses.replace(BERT_MASKED, name='BertForPreTraining')
BERT_CLASSES = _bert(
    'BertForSequenceClassification',
    {'model.family': 'classifier', 'model.head.pooling': 'first', 'model.head.pooler': 'on'},
    _LABELS,
)
BERT_TOKENS = _bert(
    'BertForTokenClassification',
    {'model.family': 'classifier', 'model.head.pooling': 'tokens', 'model.head.pooler': 'off'},
    _LABELS,
)


LAYOUTS: tuple[Layout, ...] = (
    GPT2, LLAMA, BERT_MASKED, BERT, BERT_CLASSES, BERT_TOKENS, BERT_PRETRAINING, T5, MARIAN
)  # fmt: skip
