"""Llama 3 8B (Grattafiori et al. 2024): rmsnorm before each sublayer, swiglu, rotary positions, grouped queries.

Question: none; the published model by config alone, 8,030,261,248 parameters.
Command:  jaxformer params --config=configs/llama.py
          Llama 2 7B (6,738,415,616): --config.model.vocab_size=32000 --config.model.num_kv_heads=32
          --config.model.d_ff=11008 --config.model.rotary.base=10000
          on text of your own: --config.data.name=text '--config.data.source=my.{split}.txt'
Hardware: training at this size wants many accelerators; configs/llama_tiny.py trains on a laptop.
Score:    not measured here.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    model = config.model
    model.family = 'lm'
    model.vocab_size = 128_256
    model.d_model = 4096
    model.num_heads = 32
    model.num_kv_heads = 8
    model.d_ff = 14_336
    model.num_layers = 32
    model.residual = 'pre'
    model.norm = 'rmsnorm'
    model.norm_epsilon = 1e-5
    model.position = 'rotary'
    model.rotary.base = 500_000.0
    model.feed_forward = 'swiglu'
    model.feed_forward_bias = 'off'
    model.embedding.softmax = 'untied'
    model.embedding.scale = 'none'
    model.dropout.residual = 0.0
    model.dropout.embedding = 0.0
    model.precision.compute = 'bfloat16'
    model.remat = 'block'
    # Learning rate and schedule as published; what is not, as for Llama 2 (Touvron et al. 2023, 2.2).
    config.optim.learning_rate = 3e-4
    config.optim.schedule = 'cosine'
    config.optim.warmup_steps = 8000
    config.optim.beta2 = 0.95
    config.optim.epsilon = 1e-5
    config.optim.weight_decay = 0.1
    config.optim.clip_norm = 1.0
    config.optim.label_smoothing = 0.0
    config.train.num_steps = 1_200_000
    config.train.batch_size = 512  # of 8,192 symbols: four millions
    config.data.name = 'stdlib'
    config.data.tokenizer = 'bpe'
    config.data.tokenizer_size = 128_256
    config.data.packing = 'documents'
    config.data.buckets = ((8192,),)
    return config
