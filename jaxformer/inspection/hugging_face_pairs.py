"""The tables of `hugging_face.py` for encoder-decoders: T5 and Marian."""

from jaxformer.inspection import pieces
from jaxformer.inspection.layout import Choice, Demand, Key, Layout, Row

DEC = 'decoder/layers'


def _t5_stack(stack: str, feed_forward: str) -> tuple[Row, ...]:
    layers, block = f'{stack}/layers', f'{stack}.block.{{n}}.layer'
    gated = ('model.feed_forward', ('geglu', 'swiglu'))
    ungated = ('model.feed_forward', ('relu', 'gelu', 'silu'))
    dense = f'{block}.{feed_forward}.DenseReluDense'
    return (
        *pieces.norm(f'{block}.0.layer_norm', f'{layers}/self_attention_norm'),
        *pieces.attention(f'{block}.0.SelfAttention', f'{layers}/self_attention', 'q', 'k', 'v', 'o'),
        Row(
            f'{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight',
            (f'{stack}/position/relative_bias',),
            'X H -> 1 X H',
        ),
        *pieces.norm(f'{block}.{feed_forward}.layer_norm', f'{layers}/feed_forward_norm'),
        Row(f'{dense}.wi.weight', (f'{layers}/feed_forward/inner',), 'F D -> D F', ungated),
        Row(f'{dense}.wi_0.weight', (f'{layers}/feed_forward/inner',), 'F D -> D F', gated),
        Row(f'{dense}.wi_1.weight', (f'{layers}/feed_forward/gate',), 'F D -> D F', gated),
        Row(f'{dense}.wo.weight', (f'{layers}/feed_forward/outer',), 'D F -> F D'),
        *pieces.norm(f'{stack}.final_layer_norm', f'{stack}/final_norm'),
    )


T5 = Layout(
    name='T5ForConditionalGeneration',
    model_type='t5',
    fields={
        **pieces.SEQ2SEQ,
        'model.residual': 'pre',
        'model.norm': 'rmsnorm',
        'model.position': 't5_relative',
        'model.relative.tables': 'shared',
        'model.feed_forward_bias': 'off',
        'model.attention.bias': 'none',
        'model.attention.score': 'dot',
        'model.num_kv_heads': lambda settings: settings['num_heads'],
        'model.d_v': lambda settings: settings['d_kv'],
    },
    keys=(
        Key('vocab_size', 'model.vocab_size'),
        Key('d_model', 'model.d_model'),
        Key('d_kv', 'model.d_k'),
        Key('d_ff', 'model.d_ff'),
        Key('num_layers', 'model.encoder_layers', also=('model.num_layers',)),
        Key('num_decoder_layers', 'model.decoder_layers', absent=lambda settings: settings['num_layers']),
        Key('num_heads', 'model.num_heads'),
        Key('relative_attention_num_buckets', 'model.relative.num_buckets', absent=32),
        Key('relative_attention_max_distance', 'model.relative.max_distance', absent=128),
        Choice(
            'feed_forward_proj',
            {
                'relu': {'model.feed_forward': 'relu'},
                'gated-gelu': {'model.feed_forward': 'geglu', 'model.gelu': 'tanh'},
                'gated-silu': {'model.feed_forward': 'swiglu'},
                'gelu_new': {'model.feed_forward': 'gelu', 'model.gelu': 'tanh'},
                'gelu': {'model.feed_forward': 'gelu', 'model.gelu': 'exact'},
                'silu': {'model.feed_forward': 'silu'},
            },
            absent='relu',
        ),
        Key('layer_norm_epsilon', 'model.norm_epsilon', absent=1e-6),
        pieces.tied(absent=True),
        pieces.on_off(  # in version 4 it goes with the tied softmax
            'scale_decoder_outputs', 'model.embedding.logit_scale', ('rsqrt_d_model', 'none'),
            absent=lambda settings: settings['tie_word_embeddings'],
        ),
        pieces.padding(absent=0),
        Key('decoder_start_token_id', 'model.ids.start', absent=lambda settings: settings['pad_token_id']),
        Key(
            'dropout_rate', 'model.dropout.residual', absent=0.1,
            also=('model.dropout.embedding', 'model.dropout.attention', 'model.dropout.feed_forward'),
        ),
        *pieces.NEVER,
    ),
    rows=(
        pieces.table('shared', 'embedding'),
        *_t5_stack('encoder', '1'),
        *_t5_stack('decoder', '2'),
        *pieces.norm('decoder.block.{n}.layer.1.layer_norm', f'{DEC}/cross_attention_norm'),
        *pieces.attention('decoder.block.{n}.layer.1.EncDecAttention', f'{DEC}/cross_attention', 'q', 'k', 'v', 'o'),
        pieces.table('lm_head', 'softmax'),
    ),
    copies=(
        ('lm_head.weight', 'shared.weight'),
        ('encoder.embed_tokens.weight', 'shared.weight'),
        ('decoder.embed_tokens.weight', 'shared.weight'),
    ),
    ignored=(r'\.EncDecAttention\.relative_attention_bias\.weight$',),  # of no use, in old files
)  # fmt: skip


def _marian_stack(stack: str) -> tuple[Row, ...]:
    layers, layer = f'{stack}/layers', f'model.{stack}.layers.{{n}}'
    projections = ('q_proj', 'k_proj', 'v_proj', 'out_proj')
    return (
        *pieces.attention(f'{layer}.self_attn', f'{layers}/self_attention', *projections),
        *pieces.norm(f'{layer}.self_attn_layer_norm', f'{layers}/self_attention_norm'),
        *pieces.attention(f'{layer}.encoder_attn', f'{layers}/cross_attention', *projections),
        *pieces.norm(f'{layer}.encoder_attn_layer_norm', f'{layers}/cross_attention_norm'),
        *pieces.linear(f'{layer}.fc1', f'{layers}/feed_forward/inner', 'D', 'F'),
        *pieces.linear(f'{layer}.fc2', f'{layers}/feed_forward/outer', 'F', 'D'),
        *pieces.norm(f'{layer}.final_layer_norm', f'{layers}/feed_forward_norm'),
    )


def _same(name: str, other: str) -> Demand:
    return Demand(name, lambda settings: settings[name] == settings[other], f'{other}, as one field says both')


MARIAN = Layout(
    name='MarianMTModel',
    model_type='marian',
    fields={
        **pieces.SEQ2SEQ,
        **pieces.even_heads('d_model', 'encoder_attention_heads'),
        'model.residual': 'post',
        'model.norm': 'layernorm',
        'model.norm_epsilon': 1e-5,
        'model.position': 'sinusoidal',
        'model.sinusoidal.layout': 'halves',
        'model.feed_forward_bias': 'on',
        'model.attention.bias': 'all',
        'model.embedding.softmax_bias': 'on',
    },
    keys=(
        Key('vocab_size', 'model.vocab_size'),
        Key('decoder_vocab_size', 'model.vocab_size', absent=lambda settings: settings['vocab_size']),
        Key('max_position_embeddings', 'model.max_length', absent=1024),
        Key('d_model', 'model.d_model'),
        Key('encoder_layers', 'model.encoder_layers', also=('model.num_layers',)),
        Key('decoder_layers', 'model.decoder_layers'),
        Key('encoder_attention_heads', 'model.num_heads'),
        Key('decoder_attention_heads', 'model.num_heads'),
        Key('encoder_ffn_dim', 'model.d_ff'),
        Key('decoder_ffn_dim', 'model.d_ff'),
        Choice('activation_function', pieces.UNGATED, absent='gelu'),
        pieces.on_off('scale_embedding', 'model.embedding.scale', ('sqrt_d_model', 'none'), absent=False),
        pieces.on_off(
            'share_encoder_decoder_embeddings', 'model.embedding.tables', ('shared', 'separate'), absent=True
        ),
        pieces.tied(absent=True),
        pieces.padding(absent=58100),
        Key('decoder_start_token_id', 'model.ids.start', absent=lambda settings: settings['pad_token_id']),
        Key('dropout', 'model.dropout.residual', absent=0.1, also=('model.dropout.embedding',)),
        Key('attention_dropout', 'model.dropout.attention', absent=0.0),
        Key('activation_dropout', 'model.dropout.feed_forward', absent=0.0),
        pieces.unsupported('normalize_before', False),
        pieces.unsupported('normalize_embedding', False),
        pieces.unsupported('add_final_layer_norm', False),
        *pieces.NEVER,
    ),
    demands=(
        pieces.heads_divide('d_model', 'encoder_attention_heads'),
        _same('decoder_attention_heads', 'encoder_attention_heads'),
        _same('decoder_ffn_dim', 'encoder_ffn_dim'),
        _same('decoder_vocab_size', 'vocab_size'),
        Demand(  # transformers 5 reads as false of both
            'tie_word_embeddings',
            lambda settings: settings['tie_word_embeddings'] or not settings['share_encoder_decoder_embeddings'],
            'true (tied) where share_encoder_decoder_embeddings is true (shared)',
        ),
    ),
    rows=(
        pieces.table('model.shared', 'embedding', ('model.embedding.tables', ('shared',))),
        pieces.table('model.encoder.embed_tokens', 'source_embedding'),
        pieces.table('model.decoder.embed_tokens', 'embedding', ('model.embedding.tables', ('separate',))),
        *_marian_stack('encoder'),
        *_marian_stack('decoder'),
        Row('final_logits_bias', ('softmax_bias',), '1 V -> V'),
        pieces.table('lm_head', 'softmax'),
    ),
    copies=(
        ('lm_head.weight', 'model.shared.weight'),
        ('lm_head.weight', 'model.decoder.embed_tokens.weight'),
        ('model.encoder.embed_tokens.weight', 'model.shared.weight'),
        ('model.decoder.embed_tokens.weight', 'model.shared.weight'),
    ),
    ignored=(r'\.embed_positions\.weight$',),  # the sinusoids
)
