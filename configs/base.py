"""AIAYN base (Vaswani et al. 2017, Table 3, first row): every field of the configuration once, with its meaning.

Question: none; this is the point of departure of every other config.
Command:  jaxformer params --config=configs/base.py
Hardware: training at this size wants an accelerator; counting its parameters allocates nothing.
Score:    the paper's base reaches 25.8 BLEU on newstest2013; here the model meets the offline default data, CMUdict.
"""

from ml_collections import ConfigDict, config_dict


def get_config() -> ConfigDict:
    config = ConfigDict()
    config.seed = 0  # initialisation, dropout and data order all follow from it

    config.model = model = ConfigDict()
    model.family = 'seq2seq'  # seq2seq encoder-decoder | lm causal | mlm masked tokens | classifier of texts or tokens
    model.vocab_size = 37_000  # rows of the embedding; 0 = as many as the data has symbols
    model.d_model = 512  # D: width of the residual stream
    model.num_heads = 8  # H: query heads
    model.num_kv_heads = model.get_ref('num_heads') + 0  # G: key/value heads; a divisor of num_heads
    model.d_k = model.get_ref('d_model') // model.get_ref('num_heads')  # K: width of a query and of a key
    model.d_v = model.get_ref('d_model') // model.get_ref('num_heads')  # E: width of a value
    model.d_ff = 2048  # F: inner width of the feed-forward
    model.num_layers = 6  # N, of the encoder and of the decoder unless they are set apart
    model.encoder_layers = model.get_ref('num_layers') + 0
    model.decoder_layers = model.get_ref('num_layers') + 0
    # What mixes the positions of a block: attention | static (a learned matrix, the same for every input) | linformer
    # (encoder only) | conv | rnn | lstm | gru. Cross-attention stays attention.
    model.mixer = 'attention'
    model.encoder_mixer = model.get_ref('mixer') + ''  # of the encoder, where there is one
    model.decoder_mixer = model.get_ref('mixer') + ''  # of the decoder, where there is one
    # post LN(x+F(x)) | pre x+F(LN(x)), final norm | branch x+LN(F(x)) | sandwich x+LN(F(LN(x))), final norm |
    # deepnorm LN(ax+F(x)), a from the depth | none LN(F(x))
    model.residual = 'post'
    model.norm = 'layernorm'  # layernorm | rmsnorm | none
    model.norm_epsilon = 1e-6  # added to the variance
    model.position = 'sinusoidal'  # sinusoidal | learned | rotary | alibi | t5_relative | none
    model.max_length = 512  # rows of tables by position (learned, static, linformer); longer inputs are refused
    model.feed_forward = 'relu'  # relu | gelu | silu | geglu | swiglu | none
    model.feed_forward_bias = 'on'  # on | off: biases in the feed-forward
    model.gelu = 'tanh'  # tanh: its approximation | exact: by the error function; in gelu and geglu
    # none | block: recompute a block's activations in the backward pass | dots: all of them but products with matrices
    model.remat = 'none'
    # Layers unrolled per scan step; 0 = all: a faster step (with conv on a CPU by far), a slower compile.
    model.scan_unroll = 1  # has no part in the numbers but by rounding in bfloat16

    model.ids = ConfigDict()  # special symbols; only weights that come from elsewhere want other ids
    model.ids.pad = 0  # fills up rows and is never looked at; -1 = no id does
    model.ids.start = 1  # begins the input of a decoder
    model.ids.mask = 4  # stands for a token that mlm has to guess

    model.attention = ConfigDict()
    model.attention.score = 'scaled_dot'  # scaled_dot q.k/sqrt(d_k) | dot q.k | additive v.tanh(q+k)
    # How it is computed; the numbers stay, but for their rounding. plain: all scores at once | blockwise: `block`
    # queries and keys at a time (FlashAttention), in memory that does not grow with the square of the length | library:
    # cuDNN on a GPU, splash on a TPU | pallas: a kernel of our own for those. What cannot gives way, with a warning
    model.attention.kernel = 'plain'
    model.attention.block = 512
    model.attention.bias = 'none'  # none (AIAYN) | qkv | all: biases of the projections
    # Which keys self-attention may look at, beside causal and padding masks: full | local (up to `window` away) |
    # global_local (and to and from `global_positions`) | window2d (the same `window` x `window` square of a grid of
    # `grid_width` columns; in every other layer the squares are moved by `shift`)
    model.attention.pattern = 'full'
    model.attention.window = 4  # positions to either side, or the side of a square
    model.attention.global_positions = (0,)  # counted from 0, of queries and of keys
    model.attention.grid_width = 8  # columns of the grid that positions fill row by row
    model.attention.shift = 0  # rows and columns, in layers 2, 4, …

    # Of the num_heads of each layer those that `jaxformer inspect prune` has left, by number from 0: ((0, 3), (1, 2));
    # () = all. Slopes and biases by position stay those of the numbers.
    model.kept_heads = ConfigDict()
    model.kept_heads.encoder = ()
    model.kept_heads.decoder = ()
    model.kept_heads.cross = ()

    model.linformer = ConfigDict()
    model.linformer.rank = 16  # P: slots that keys and values are projected to
    model.conv = ConfigDict()
    model.conv.width = 3  # W: taps
    model.conv.dilations = (1,)  # of the layers in turn; (1, 2, 4, 8, 16) is ByteNet's
    model.recurrent = ConfigDict()
    model.recurrent.width = model.get_ref('d_model') + 0  # R: of the cell, in each direction

    model.sinusoidal = ConfigDict()
    model.sinusoidal.layout = 'interleaved'  # interleaved: sin, cos, sin, … (AIAYN) | halves: all sin, then all cos
    model.rotary = ConfigDict()
    model.rotary.base = 10_000.0
    model.rotary.layout = 'halves'  # which columns turn together: halves i, i+K/2 | interleaved 2i, 2i+1
    model.relative = ConfigDict()  # t5_relative
    model.relative.num_buckets = 32
    model.relative.max_distance = 128  # all that is farther shares a bucket
    model.relative.tables = 'shared'  # shared: one table for the layers of a stack | per_layer

    model.embedding = ConfigDict()
    model.embedding.tables = 'shared'  # shared: source and target read one table | separate
    model.embedding.softmax = 'tied'  # tied: the output layer is the target table | untied
    model.embedding.scale = 'sqrt_d_model'  # sqrt_d_model: embeddings are multiplied by it | none
    model.embedding.norm = 'off'  # off | on: a norm on the sum of embedding and position
    model.embedding.token_types = 0  # kinds of token, each with an embedding that is added; 0 = none
    model.embedding.softmax_bias = 'off'  # off | on: a bias per symbol on the logits
    model.embedding.logit_scale = 'none'  # none | rsqrt_d_model: logits are divided by sqrt(d_model)

    model.head = ConfigDict()
    model.head.transform = 'off'  # mlm: off | on, a dense layer, gelu and a norm before the softmax
    model.head.pooling = 'first'  # classifier: what stands for the text: first token | mean | tokens (each its class)
    model.head.pooler = 'off'  # classifier: off | on, a dense layer and tanh on what was pooled
    model.head.num_classes = 0  # classifier: Y; 0 = as many as the data has

    # AIAYN 5.4 names residual (each sublayer's output) and embedding (encoder and decoder); the other two are 0 there.
    model.dropout = ConfigDict()
    model.dropout.attention = 0.0  # on the attention weights
    model.dropout.residual = 0.1  # on a sublayer's output, before it is added
    model.dropout.feed_forward = 0.0  # on the inner activation of the feed-forward
    model.dropout.embedding = 0.1  # on the sum of embedding and position, in encoder and decoder

    model.precision = ConfigDict()
    model.precision.parameters = 'float32'  # float32 | bfloat16
    model.precision.compute = 'float32'  # float32 | bfloat16 | float16 (with loss scaling): products and activations
    model.precision.softmax = 'float32'  # float32 | compute: attention softmax

    config.optim = optim = ConfigDict()
    optim.name = 'adam'  # adam (AdamW where weight_decay > 0) | sgd (momentum beta1)
    optim.learning_rate = 1.0  # peak; with schedule noam a factor on the AIAYN formula
    optim.schedule = 'noam'  # noam (AIAYN eq. 3) | constant | linear | cosine; each with warm-up
    optim.warmup_steps = 4000
    optim.beta1 = 0.9
    optim.beta2 = 0.98
    optim.epsilon = 1e-9
    optim.weight_decay = 0.0  # decoupled; never on norms, biases
    optim.clip_norm = config_dict.placeholder(float)  # global gradient norm; None = off
    optim.label_smoothing = 0.1

    config.train = train = ConfigDict()
    train.num_steps = 100_000
    train.batch_size = 256  # sequences in a global batch
    train.accumulation = 1  # parts of it that are worked on in turn, to one update: the activations of one in memory
    train.log_every = 100  # steps between lines of metrics.jsonl
    train.checkpoint_every = 1000  # steps; the last step is always saved
    train.keep_checkpoints = 3  # the newest whole ones
    train.ema_decay = 0.0  # of a moving average of the parameters, by which the run is then judged; 0 = none
    train.keep_best = 0  # so many more: those whose evaluation (at the same step) had the least loss
    train.nan_policy = 'stop'  # stop: end the run, named | skip: drop the update, count it |
    #                            restore: back to the newest checkpoint, and past the batches that came after it
    train.nan_limit = 10  # failures in a row (restore: without a new checkpoint) after which the others stop, too
    train.spike_factor = 0.0  # a loss beyond so many medians of the 100 before it is warned of and logged; 0 = none is
    train.inspect_every = 0  # steps between entropies, outputs and gradient norms of each layer (100: 1.3 %); 0 = none
    train.log_example_ids = False  # write the ids of each logged batch into metrics.jsonl
    train.teacher = ''  # a run (or RUN@STEP) whose distributions are learnt beside the labels; '' = none
    train.teacher_weight = 0.5  # loss = (1 - weight) of the labels + weight * temperature**2 * KL(teacher | student)
    train.teacher_temperature = 2.0  # logits of both are divided by it in the second term
    train.start_from = ''  # a run whose newest parameters training begins with; '' = fresh ones
    train.masking = ConfigDict()  # mlm (Devlin et al. 2019, 3.1)
    train.masking.rate = 0.15  # share of the tokens that are to be guessed, and of these:
    train.masking.replaced = 0.8  # share that is shown as the mask; evaluation shows all of them so
    train.masking.random = 0.1  # share that is shown as a random token; the rest is shown as it is

    config.eval = ConfigDict()
    config.eval.split = 'dev'
    config.eval.every = 1000  # steps between losses on that split; 0 = only at the end
    config.eval.decode_every = 0  # steps between error rates by decoding; 0 = only at the end
    config.eval.batch_size = 256  # sequences; also of decoding
    config.eval.max_decode_length = 64  # symbols, end of sequence included
    config.eval.max_source_length = 4096  # symbols of a line that `jaxformer decode` reads; longer ones are named
    config.eval.search = 'greedy'  # greedy | sample | beam; of seq2seq and lm
    # on: each layer's parameters by themselves while symbols follow: faster for wide models,
    # a slower compile, and the decoder's parameters once more in memory
    config.eval.unroll = 'off'  # off | on; has no part in the numbers but by rounding in bfloat16
    config.eval.forced_prefix = ''  # text that every output begins with; no part of its length or score
    # beam: beams, whose hypotheses are ranked by log-probability / divisor ** length_penalty; 0.6 as AIAYN 6.1
    config.eval.beam_size = 4
    config.eval.length_penalty = 0.6
    config.eval.length_divisor = 'gnmt'  # gnmt (5+L)/6, as AIAYN | length L; L symbols, end of sequence included
    config.eval.num_best = 1  # beam: hypotheses of each line that `jaxformer decode` writes
    # sample: penalty on symbols that were there, temperature, top-k, top-p and min-p, in this order
    config.eval.sample_seed = 0  # of the draws
    config.eval.repetition_penalty = 1.0  # logits of such symbols: divided by it if positive, else multiplied; 1 = none
    config.eval.temperature = 1.0  # logits are divided by it
    config.eval.top_k = 0  # the so many most probable symbols; 0 = all
    config.eval.top_p = 1.0  # the most probable symbols that have this probability together; 1 = all
    config.eval.min_p = 0.0  # symbols with at least this share of the greatest probability; 0 = all

    config.data = data = ConfigDict()
    # pairs: cmudict (letters to phonemes) | copy | reverse | sort (synthetic) | parallel (two files, line by line) |
    #   help_pages (two folders of LibreOffice's help, such as /usr/share/libreoffice/help/de) |
    #   a TFDS translation data set with its config, such as wmt14_translate/de-en
    # text: stdlib (the source of this Python's standard library) | text (files)
    # labelled: stdlib_labels (data.labels) | labelled (a file of lines: label, tab, text)
    data.name = 'cmudict'
    data.dir = '~/.cache/jaxformer/data'  # prepared once, shared by all runs
    # parallel, labelled: a file; text: a file, a directory or a pattern (*, ?, **); TFDS: a feature. {split} in its
    # name stands for train, dev and test. Without it a hash of each line (parallel: of the source; labelled: of the
    # text), or of each piece of about 4,096 characters of a text, sends 88 % to train, 2 % to dev and 10 % to test.
    data.source = ''
    data.target = ''  # parallel: the other file. TFDS: the other feature
    data.targets = ''  # pairs: what `decode --split=train` wrote, to learn in the place of train's own targets
    # native (symbols of the task, or words) | characters | bytes | bpe (of bytes, trained) | file (of another model)
    data.tokenizer = 'native'
    data.tokenizer_size = 8192  # bpe: rows, special ones included
    data.tokenizer_file = ''  # file: a tokenizer.json, whose ids model.ids has to name
    data.packing = 'stream'  # text: stream (rows cut from one stream) | documents (the same, no look across documents)
    data.labels = 'package'  # stdlib_labels: package (of a piece of code) | syntax (of each token)
    # (S, T) shapes, (T,) for text and labelled; an example takes the first that it fits
    data.buckets = ((7, 6), (8, 7), (9, 8), (10, 9), (12, 11), (16, 14), (40, 40))
    data.shuffle = True  # anew each epoch
    data.num_examples = 4000  # this and the next three: synthetic tasks only
    data.min_length = 1
    data.max_length = 12
    data.num_symbols = 20

    config.mesh = ConfigDict()  # devices along each axis; -1 = all that are left
    config.mesh.data = -1  # batch
    config.mesh.fsdp = 1  # batch, and d_model of the parameters
    config.mesh.model = 1  # heads, d_ff and vocabulary
    config.mesh.seq = 1  # positions
    # In place of four numbers: '' none | dp all devices along data | fsdp, tp, sp along fsdp, model, seq |
    # fsdp+tp two (or mesh.model) along model, the others along fsdp
    config.mesh.strategy = ''

    config.cohort = ConfigDict()  # runs of a grid that share a compiled program; no part of a cell's id
    config.cohort.mode = 'auto'  # auto | map | vmap | off; auto: vmap on accelerators, on CPU map (off for conv)
    config.cohort.size = 0  # runs trained together at most; 0: as many as fit into memory

    config.runtime = ConfigDict()
    config.runtime.compilation_cache = (
        '~/.cache/jaxformer/xla'  # compiled programs kept between runs; '' = as JAX is set
    )
    config.runtime.freed_memory = 'keep'  # keep | return; keep: of the host, for the next step, which is quicker on CPU
    config.runtime.deterministic = False  # ask XLA for deterministic reductions on GPU (a CPU run always is)
    return config
