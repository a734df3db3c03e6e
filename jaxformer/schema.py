"""The fields of a configuration: frozen records without defaults, which `configs/base.py` holds with their comments.

One letter per dimension, here and everywhere (tensor names, einsum strings, docstrings, sharding rules):

  B batch      T query/target length   S key/source length   D d_model   H heads      G key/value heads
  K d_k        E d_v                   F d_ff                V vocabulary N layers     C cells run together
  P slots of a linformer               W taps of a convolution            R width inside a recurrent or conv mixer
  M rows of a table by position        Y classes
"""

import dataclasses


@dataclasses.dataclass(frozen=True)
class IdsConfig:
    pad: int
    start: int
    mask: int


@dataclasses.dataclass(frozen=True)
class AttentionConfig:
    score: str
    kernel: str
    block: int
    bias: str
    pattern: str
    window: int
    global_positions: tuple[int, ...]
    grid_width: int
    shift: int


@dataclasses.dataclass(frozen=True)
class KeptHeadsConfig:
    encoder: tuple[tuple[int, ...], ...]
    decoder: tuple[tuple[int, ...], ...]
    cross: tuple[tuple[int, ...], ...]


@dataclasses.dataclass(frozen=True)
class LinformerConfig:
    rank: int


@dataclasses.dataclass(frozen=True)
class ConvConfig:
    width: int
    dilations: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class RecurrentConfig:
    width: int


@dataclasses.dataclass(frozen=True)
class SinusoidalConfig:
    layout: str


@dataclasses.dataclass(frozen=True)
class RotaryConfig:
    base: float
    layout: str


@dataclasses.dataclass(frozen=True)
class RelativeConfig:
    num_buckets: int
    max_distance: int
    tables: str


@dataclasses.dataclass(frozen=True)
class EmbeddingConfig:
    tables: str
    softmax: str
    scale: str
    norm: str
    token_types: int
    softmax_bias: str
    logit_scale: str


@dataclasses.dataclass(frozen=True)
class HeadConfig:
    transform: str
    pooling: str
    pooler: str
    num_classes: int


@dataclasses.dataclass(frozen=True)
class DropoutConfig:
    attention: float
    residual: float
    feed_forward: float
    embedding: float


@dataclasses.dataclass(frozen=True)
class PrecisionConfig:
    parameters: str
    compute: str
    softmax: str


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    family: str
    vocab_size: int
    d_model: int
    num_heads: int
    num_kv_heads: int
    d_k: int
    d_v: int
    d_ff: int
    num_layers: int
    encoder_layers: int
    decoder_layers: int
    mixer: str
    encoder_mixer: str
    decoder_mixer: str
    residual: str
    norm: str
    norm_epsilon: float
    position: str
    max_length: int
    feed_forward: str
    feed_forward_bias: str
    gelu: str
    remat: str
    scan_unroll: int
    ids: IdsConfig
    attention: AttentionConfig
    kept_heads: KeptHeadsConfig
    linformer: LinformerConfig
    conv: ConvConfig
    recurrent: RecurrentConfig
    sinusoidal: SinusoidalConfig
    rotary: RotaryConfig
    relative: RelativeConfig
    embedding: EmbeddingConfig
    head: HeadConfig
    dropout: DropoutConfig
    precision: PrecisionConfig


@dataclasses.dataclass(frozen=True)
class OptimConfig:
    name: str
    learning_rate: float
    schedule: str
    warmup_steps: int
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    clip_norm: float | None
    label_smoothing: float


@dataclasses.dataclass(frozen=True)
class MaskingConfig:
    rate: float
    replaced: float
    random: float


@dataclasses.dataclass(frozen=True)
class TrainConfig:
    num_steps: int
    batch_size: int
    accumulation: int
    log_every: int
    checkpoint_every: int
    keep_checkpoints: int
    keep_best: int
    ema_decay: float
    nan_policy: str
    nan_limit: int
    spike_factor: float
    inspect_every: int
    log_example_ids: bool
    start_from: str
    teacher: str
    teacher_weight: float
    teacher_temperature: float
    masking: MaskingConfig

    @property
    def taught(self) -> bool:
        """Whether a teacher is asked; one of weight 0 is not."""
        return bool(self.teacher) and self.teacher_weight > 0


@dataclasses.dataclass(frozen=True)
class EvalConfig:
    split: str
    every: int
    decode_every: int
    batch_size: int
    max_decode_length: int
    max_source_length: int
    search: str
    unroll: str
    forced_prefix: str
    beam_size: int
    length_penalty: float
    length_divisor: str
    num_best: int
    sample_seed: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float


@dataclasses.dataclass(frozen=True)
class DataConfig:
    name: str
    dir: str
    source: str
    target: str
    targets: str
    tokenizer: str
    tokenizer_size: int
    tokenizer_file: str
    packing: str
    labels: str
    buckets: tuple[tuple[int, ...], ...]
    shuffle: bool
    num_examples: int
    min_length: int
    max_length: int
    num_symbols: int


@dataclasses.dataclass(frozen=True)
class MeshConfig:
    data: int
    fsdp: int
    model: int
    seq: int
    strategy: str


@dataclasses.dataclass(frozen=True)
class CohortConfig:
    mode: str
    size: int


@dataclasses.dataclass(frozen=True)
class RuntimeConfig:
    compilation_cache: str
    freed_memory: str
    deterministic: bool


@dataclasses.dataclass(frozen=True)
class Config:
    seed: int
    model: ModelConfig
    optim: OptimConfig
    train: TrainConfig
    eval: EvalConfig
    data: DataConfig
    mesh: MeshConfig
    cohort: CohortConfig
    runtime: RuntimeConfig
