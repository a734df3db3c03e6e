"""GPT-2 small (Radford et al. 2019): a decoder that predicts the next symbol, with the norm before each sublayer.

Question: none; the published model by config alone, 124,439,808 parameters.
Command:  jaxformer params --config=configs/gpt.py
          on text of your own: --config.data.name=text '--config.data.source=my.{split}.txt'
Hardware: training at this size wants accelerators; configs/gpt_tiny.py trains on a laptop.
Score:    not measured here.
"""

from ml_collections import ConfigDict

from configs import base


def get_config() -> ConfigDict:
    config = base.get_config()
    model = config.model
    model.family = 'lm'
    model.vocab_size = 50_257
    model.d_model = 768
    model.num_heads = 12
    model.d_ff = 3072
    model.num_layers = 12
    model.residual = 'pre'
    model.norm_epsilon = 1e-5
    model.position = 'learned'
    model.max_length = 1024
    model.feed_forward = 'gelu'
    model.attention.bias = 'all'
    model.embedding.scale = 'none'
    model.dropout.attention = 0.1
    # The paper does not say how it was trained; this is Brown et al. 2020 (GPT-3, table 2.1 and appendix B) at 125 M.
    config.optim.learning_rate = 6e-4
    config.optim.schedule = 'cosine'
    config.optim.warmup_steps = 700
    config.optim.beta2 = 0.95
    config.optim.epsilon = 1e-8
    config.optim.weight_decay = 0.1
    config.optim.clip_norm = 1.0
    config.optim.label_smoothing = 0.0
    config.train.num_steps = 600_000
    config.train.batch_size = 512  # of 1,024 symbols: half a million
    config.data.name = 'stdlib'
    config.data.tokenizer = 'bpe'
    config.data.tokenizer_size = 50_257
    config.data.buckets = ((1024,),)
    return config
