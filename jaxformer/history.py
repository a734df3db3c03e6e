"""Fields that came later than the runs of an older version, and what says the same as not having them."""

from collections.abc import Mapping
from typing import Any

BEFORE: Mapping[str, Any] = {
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
}
"""Field → its value in the config.json of a run that was written without it.

A value belongs here that means what was done before there was the field, whatever the default is today. What changes
the meaning of a run that lacks it has no place here: such a run is refused.
"""
