"""What each field may hold: its choices, its range, and what a data set is called and needs."""

import math
from collections.abc import Mapping

MIXERS = ('attention', 'static', 'linformer', 'conv', 'rnn', 'lstm', 'gru')

STRATEGIES: Mapping[str, Mapping[str, int]] = {
    'dp': {'data': -1},
    'fsdp': {'fsdp': -1},
    'tp': {'model': -1},
    'fsdp+tp': {'fsdp': -1, 'model': 2},
    'sp': {'seq': -1},
}
"""mesh.strategy → devices along the axes that it divides (-1: all that are left) unless config.mesh has more there."""

CHOICES: Mapping[str, tuple[str, ...]] = {
    'model.family': ('seq2seq', 'lm', 'mlm', 'classifier'),
    'model.mixer': MIXERS,
    'model.encoder_mixer': MIXERS,
    'model.decoder_mixer': MIXERS,
    'model.residual': ('post', 'pre', 'branch', 'sandwich', 'deepnorm', 'none'),
    'model.norm': ('layernorm', 'rmsnorm', 'none'),
    'model.position': ('sinusoidal', 'learned', 'rotary', 'alibi', 't5_relative', 'none'),
    'model.feed_forward': ('relu', 'gelu', 'silu', 'geglu', 'swiglu', 'none'),
    'model.feed_forward_bias': ('on', 'off'),
    'model.gelu': ('tanh', 'exact'),
    'model.remat': ('none', 'block', 'dots'),
    'model.attention.score': ('scaled_dot', 'dot', 'additive'),
    'model.attention.kernel': ('plain', 'blockwise', 'library', 'pallas'),
    'model.attention.pattern': ('full', 'local', 'global_local', 'window2d'),
    'model.attention.bias': ('none', 'qkv', 'all'),
    'model.sinusoidal.layout': ('interleaved', 'halves'),
    'model.rotary.layout': ('halves', 'interleaved'),
    'model.relative.tables': ('shared', 'per_layer'),
    'model.embedding.tables': ('shared', 'separate'),
    'model.embedding.softmax': ('tied', 'untied'),
    'model.embedding.scale': ('sqrt_d_model', 'none'),
    'model.embedding.norm': ('off', 'on'),
    'model.embedding.softmax_bias': ('off', 'on'),
    'model.embedding.logit_scale': ('none', 'rsqrt_d_model'),
    'model.head.transform': ('off', 'on'),
    'model.head.pooling': ('first', 'mean', 'tokens'),
    'model.head.pooler': ('off', 'on'),
    'model.precision.parameters': ('float32', 'bfloat16'),
    'model.precision.compute': ('float32', 'bfloat16', 'float16'),
    'model.precision.softmax': ('float32', 'compute'),
    'optim.name': ('adam', 'sgd'),
    'optim.schedule': ('noam', 'constant', 'linear', 'cosine'),
    'train.nan_policy': ('stop', 'skip', 'restore'),
    'eval.split': ('train', 'dev', 'test'),
    'eval.search': ('greedy', 'sample', 'beam'),
    'eval.unroll': ('off', 'on'),
    'eval.length_divisor': ('gnmt', 'length'),
    'data.tokenizer': ('native', 'characters', 'bytes', 'bpe', 'file'),
    'data.packing': ('stream', 'documents'),
    'data.labels': ('package', 'syntax'),
    'mesh.strategy': (*STRATEGIES, ''),
    'runtime.freed_memory': ('keep', 'return'),
    'cohort.mode': ('auto', 'map', 'vmap', 'off'),
}
"""What a categorical field may be. The code that reads a field has a table with the same keys."""

DATA_KINDS: Mapping[str, str] = {
    'cmudict': 'pairs',
    'copy': 'pairs',
    'reverse': 'pairs',
    'sort': 'pairs',
    'parallel': 'pairs',
    'help_pages': 'pairs',
    'stdlib': 'text',
    'text': 'text',
    'stdlib_labels': 'labelled',
    'labelled': 'labelled',
}
"""data.name → what an example is; any other name with a '/' is a TFDS translation data set, of pairs."""

NEEDED_FILES = {
    'parallel': ('source', 'target'),
    'help_pages': ('source', 'target'),
    'text': ('source',),
    'labelled': ('source',),
}
NEEDED_AS = {
    'parallel': 'a file of lines',
    'help_pages': 'a folder of help pages, such as /usr/share/libreoffice/help/de',
    'text': 'a text file, a directory or a pattern of some',
    'labelled': 'a file of lines: label, tab, text',
}
"""data.name → the fields that name files, and what they may name."""

KIND_OF_FAMILY = {'seq2seq': 'pairs', 'lm': 'text', 'mlm': 'text', 'classifier': 'labelled'}

WITH_ENCODER, WITH_DECODER = ('seq2seq', 'mlm', 'classifier'), ('seq2seq', 'lm')

TUPLES = (
    'model.attention.global_positions', 'model.conv.dilations', 'data.buckets',
    'model.kept_heads.encoder', 'model.kept_heads.decoder', 'model.kept_heads.cross',
)  # fmt: skip

BELOW_ONE = (
    'model.dropout.attention', 'model.dropout.residual', 'model.dropout.feed_forward', 'model.dropout.embedding',
    'optim.label_smoothing', 'optim.beta1', 'optim.beta2',
)  # fmt: skip

RANGES: tuple[tuple[str, float, float], ...] = (
    ('seed', 0, 2**31 - 1),
    *((f'model.{name}', 1, math.inf) for name in ('d_model', 'num_heads', 'num_kv_heads', 'd_k', 'd_v', 'd_ff')),
    *((f'model.{name}', 1, math.inf) for name in ('num_layers', 'encoder_layers', 'decoder_layers', 'max_length')),
    ('model.vocab_size', 0, math.inf),
    ('model.scan_unroll', 0, math.inf),
    ('model.norm_epsilon', 1e-12, 1),  # with 0 the norm of a row of zeros is not a number
    ('model.attention.block', 1, math.inf),
    ('model.attention.window', 1, math.inf),
    ('model.attention.shift', 0, math.inf),
    ('model.attention.grid_width', 1, math.inf),
    ('model.linformer.rank', 1, math.inf),
    ('model.conv.width', 1, math.inf),
    ('model.recurrent.width', 1, math.inf),
    ('model.rotary.base', 1, math.inf),
    ('model.relative.num_buckets', 4, math.inf),  # two exact and two logarithmic, or their halves for both directions
    ('model.relative.max_distance', 1, math.inf),
    ('model.embedding.token_types', 0, math.inf),
    ('model.head.num_classes', 0, math.inf),
    ('model.ids.pad', -1, math.inf),
    ('model.ids.start', 0, math.inf),
    ('model.ids.mask', 0, math.inf),
    ('optim.learning_rate', 0, math.inf),
    ('optim.warmup_steps', 0, math.inf),
    ('optim.epsilon', 1e-20, 1),  # with 0 a parameter without gradient becomes not a number
    ('optim.weight_decay', 0, math.inf),
    ('optim.clip_norm', 1e-12, math.inf),
    *((f'train.{name}', 1, math.inf) for name in ('num_steps', 'batch_size', 'log_every', 'checkpoint_every')),
    *((f'train.{name}', 1, math.inf) for name in ('accumulation', 'keep_checkpoints', 'nan_limit')),
    ('train.teacher_weight', 0, 1),
    ('train.teacher_temperature', 0.01, 1000),
    ('train.ema_decay', 0, 0.999999),
    ('train.keep_best', 0, math.inf),
    ('train.spike_factor', 0, math.inf),
    ('train.inspect_every', 0, math.inf),
    ('train.masking.rate', 0.001, 1),
    ('train.masking.replaced', 0, 1),
    ('train.masking.random', 0, 1),
    ('eval.every', 0, math.inf),
    ('eval.decode_every', 0, math.inf),
    ('eval.batch_size', 1, math.inf),
    ('eval.max_decode_length', 1, math.inf),
    ('eval.max_source_length', 1, math.inf),
    ('eval.beam_size', 1, 10_000),
    ('eval.length_penalty', -5, 5),  # beyond it divisors of long outputs are no numbers in float32
    ('eval.num_best', 1, math.inf),
    ('eval.sample_seed', 0, 2**31 - 1),
    ('eval.repetition_penalty', 1e-3, 1e3),
    ('eval.temperature', 1e-3, 1e3),  # what it goes to at 0 is search=greedy
    ('eval.top_k', 0, math.inf),
    ('eval.top_p', 1e-6, 1),
    ('eval.min_p', 0, 1),
    ('data.tokenizer_size', 300, 10**7),  # bytes and special ids take the first ones
    ('data.num_examples', 10, 10**7),
    ('data.min_length', 1, math.inf),
    ('data.max_length', 1, math.inf),
    ('data.num_symbols', 1, 10_000),
    ('cohort.size', 0, math.inf),
    *((f'mesh.{name}', -1, math.inf) for name in ('data', 'fsdp', 'model', 'seq')),
)
"""(field, least, greatest) for every number."""
