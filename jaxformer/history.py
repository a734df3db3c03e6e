"""Fields that came later than the runs of an older version, and what says the same as not having them."""

from collections.abc import Mapping
from typing import Any

BEFORE: Mapping[str, Any] = {
    'data.labels': 'package',
    'data.packing': 'stream',
    'data.source': '',
    'data.target': '',
    'data.tokenizer': 'native',
    'data.tokenizer_size': 8192,
    'model.attention.bias': 'none',
    'model.attention.global_positions': (0,),
    'model.attention.grid_width': 8,
    'model.attention.pattern': 'full',
    'model.attention.shift': 0,
    'model.attention.window': 4,
    'model.conv.dilations': (1,),
    'model.conv.width': 3,
    'model.decoder_mixer': 'attention',
    'model.embedding.logit_scale': 'none',
    'model.embedding.norm': 'off',
    'model.embedding.softmax_bias': 'off',
    'model.embedding.token_types': 0,
    'model.encoder_mixer': 'attention',
    'model.feed_forward_bias': 'on',
    'model.gelu': 'tanh',
    'model.head.num_classes': 0,
    'model.head.pooler': 'off',
    'model.head.pooling': 'first',
    'model.head.transform': 'off',
    'model.ids.mask': 4,
    'model.ids.pad': 0,
    'model.ids.start': 1,
    'model.linformer.rank': 16,
    'model.recurrent.width': 512,  # as FOLLOWS says
    'model.relative.max_distance': 128,
    'model.relative.num_buckets': 32,
    'model.relative.tables': 'shared',
    'model.rotary.base': 10000.0,
    'model.rotary.layout': 'halves',
    'model.sinusoidal.layout': 'interleaved',
    'train.masking.random': 0.1,
    'train.masking.rate': 0.15,
    'train.masking.replaced': 0.8,
    'train.start_from': '',
    'data.tokenizer_file': '',
    'cohort.mode': 'auto',
    'cohort.size': 0,
    'runtime.freed_memory': 'keep',
    'model.attention.kernel': 'plain',
    'model.attention.block': 512,
    'mesh.strategy': '',
    'train.accumulation': 1,
    'train.spike_factor': 0.0,
    'eval.search': 'greedy',
    'eval.forced_prefix': '',
    'eval.beam_size': 4,
    'eval.length_penalty': 0.6,
    'eval.length_divisor': 'gnmt',
    'eval.num_best': 1,
    'eval.sample_seed': 0,
    'eval.temperature': 1.0,
    'eval.top_k': 0,
    'eval.top_p': 1.0,
    'eval.min_p': 0.0,
    'eval.repetition_penalty': 1.0,
    'eval.max_source_length': 4096,
    'train.keep_best': 0,
    'train.ema_decay': 0.0,
    'train.teacher': '',
    'train.teacher_weight': 0.5,
    'train.teacher_temperature': 2.0,
    'model.kept_heads.encoder': (),
    'model.kept_heads.decoder': (),
    'model.kept_heads.cross': (),
    'train.inspect_every': 0,
    'data.targets': '',
    'eval.unroll': 'off',
}
"""Field → its value in the config.json of a run that was written without it.

A value belongs here that means what was done before there was the field, whatever the default is today. What changes
the meaning of a run that lacks it has no place here: such a run is refused.
"""

FOLLOWS: Mapping[str, str] = {'model.recurrent.width': 'model.d_model'}
"""Field of BEFORE → the field whose value it takes, as its default does; no run without it had a use for it."""

NOT_IN_ID = ('train.inspect_every', 'data.targets', 'eval.unroll')
"""Fields that are no part of the id of a cell as long as they say what BEFORE says: grids from before them go on.

Every field that is added joins.
"""
