"""The model of `jaxformer` once more, in PyTorch eager: the other side of `experiments/benchmark.py`.

Written for speed on a CPU, as a PyTorch user would: one matrix product for queries, keys and values, fused attention,
`F.cross_entropy`, fused Adam. It takes its parameters from jaxformer's tree, so that both sides can be held against
each other: with dropout off they give the same loss, the same gradient norm and the same updates.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from jaxformer import config
from jaxformer.data.vocab import BOS, PAD
from jaxformer.errors import UserError
from jaxformer.schema import Config, ModelConfig

Params = Mapping[str, Any]  # jaxformer's tree of parameters, as numpy arrays

COVERED: dict[str, tuple[Any, ...]] = {
    'model.family': ('seq2seq',),
    'model.mixer': ('attention',),
    'model.norm': ('layernorm',),
    'model.position': ('sinusoidal',),
    'model.feed_forward': ('relu',),
    'model.embedding.tables': ('shared',),
    'model.embedding.softmax': ('tied',),
    'model.precision.parameters': ('float32',),
    'model.precision.compute': ('float32',),
    'optim.name': ('adam',),
    'optim.weight_decay': (0.0,),
}
"""The choices that this file follows; of the fields that are not here, it follows every choice."""


def check_covered(cfg: Config) -> None:
    """Raises UserError where `cfg` asks for something that the model here does not have."""
    values = config.flatten(cfg)
    for path, covered in COVERED.items():
        if values[path] not in covered:
            raise UserError(f'config.{path}={values[path]!r}: the PyTorch model has only {covered[0]!r}; set that')
    if cfg.model.num_kv_heads != cfg.model.num_heads:
        raise UserError(f'config.model.num_kv_heads={cfg.model.num_kv_heads}: the PyTorch model has one per head')


def _linear(*kernels: np.ndarray, inputs: int = 1) -> nn.Parameter:
    """Kernels [in…, out…] side by side as one weight [out, in]; the first `inputs` axes are inputs."""
    flat = [kernel.reshape(int(np.prod(kernel.shape[:inputs])), -1).T for kernel in kernels]
    return nn.Parameter(torch.from_numpy(np.concatenate(flat)).contiguous())


def _vector(values: np.ndarray) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(np.array(values)))


class Norm(nn.Module):
    def __init__(self, cfg: ModelConfig, params: Params):
        super().__init__()
        self.shape, self.epsilon = (cfg.d_model,), cfg.norm_epsilon
        self.scale, self.bias = _vector(params['scale']), _vector(params['bias'])

    def forward(self, x_BTD: Tensor) -> Tensor:
        return F.layer_norm(x_BTD, self.shape, self.scale, self.bias, self.epsilon)


class Attention(nn.Module):
    """Attention without biases; `cross` takes keys and values from a memory, otherwise from its own input."""

    def __init__(self, cfg: ModelConfig, params: Params, cross: bool):
        super().__init__()
        self.cfg, self.cross = cfg, cross
        self.scale = {'scaled_dot': cfg.d_k**-0.5, 'dot': 1.0}[cfg.attention.score]
        self.sizes = [cfg.num_heads * cfg.d_k, cfg.num_heads * cfg.d_k, cfg.num_heads * cfg.d_v]
        query, key, value = params['query'], params['key'], params['value']
        if cross:
            self.query, self.key_value = _linear(query), _linear(key, value)
        else:
            self.query_key_value = _linear(query, key, value)
        self.out = _linear(params['out'], inputs=2)

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        if self.cross:
            q = F.linear(x_BTD, self.query)
            k, v = F.linear(memory_BSD, self.key_value).split(self.sizes[1:], dim=-1)
        else:
            q, k, v = F.linear(x_BTD, self.query_key_value).split(self.sizes, dim=-1)
        q_BHTK, k_BHSK, v_BHSE = (y.unflatten(-1, (self.cfg.num_heads, -1)).transpose(1, 2) for y in (q, k, v))
        rate = self.cfg.dropout.attention if self.training else 0.0
        y_BHTE = F.scaled_dot_product_attention(
            q_BHTK, k_BHSK, v_BHSE, attn_mask=mask, dropout_p=rate, is_causal=causal, scale=self.scale
        )
        return F.linear(y_BHTE.transpose(1, 2).flatten(2), self.out)


class FeedForward(nn.Module):
    def __init__(self, cfg: ModelConfig, params: Params):
        super().__init__()
        self.rate = cfg.dropout.feed_forward
        self.inner, self.inner_bias = _linear(params['inner']), _vector(params['inner_bias'])
        self.outer, self.outer_bias = _linear(params['outer']), _vector(params['outer_bias'])

    def forward(self, x_BTD: Tensor) -> Tensor:
        h_BTF = F.relu(F.linear(x_BTD, self.inner, self.inner_bias))
        return F.linear(_dropout(h_BTF, self.rate, self.training), self.outer, self.outer_bias)


def _dropout(x: Tensor, rate: float, training: bool) -> Tensor:
    return F.dropout(x, rate) if training and rate > 0 else x


class Block(nn.Module):
    def __init__(self, cfg: ModelConfig, params: Params, cross: bool):
        super().__init__()
        self.cfg = cfg
        self.self_attention = Attention(cfg, params['self_attention'], cross=False)
        self.self_attention_norm = Norm(cfg, params['self_attention_norm'])
        self.cross_attention: Attention | None = None
        if cross:
            self.cross_attention = Attention(cfg, params['cross_attention'], cross=True)
            self.cross_attention_norm = Norm(cfg, params['cross_attention_norm'])
        self.feed_forward = FeedForward(cfg, params['feed_forward'])
        self.feed_forward_norm = Norm(cfg, params['feed_forward_norm'])

    def _residual(self, x_BTD: Tensor, branch: Callable[[Tensor], Tensor], norm: Norm) -> Tensor:
        order = self.cfg.residual
        y_BTD = branch(norm(x_BTD) if order == 'pre' else x_BTD)
        y_BTD = _dropout(y_BTD, self.cfg.dropout.residual, self.training)
        if order == 'post':
            return norm(x_BTD + y_BTD)
        if order == 'pre':
            return x_BTD + y_BTD
        return x_BTD + norm(y_BTD) if order == 'branch' else norm(y_BTD)

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor | None, mask_B11S: Tensor) -> Tensor:
        """One layer; `mask_B11S` is of the source: of the input itself in the encoder, of the memory in the decoder."""
        if self.cross_attention is None:
            attend = lambda h: self.self_attention(h, h, mask_B11S, causal=False)  # noqa: E731
        else:
            # Padding stands at the end only, where the causal mask hides it from every query that counts.
            attend = lambda h: self.self_attention(h, h, None, causal=True)  # noqa: E731
        x_BTD = self._residual(x_BTD, attend, self.self_attention_norm)
        if self.cross_attention is not None:
            cross = self.cross_attention
            look = lambda h: cross(h, memory_BSD, mask_B11S, causal=False)  # noqa: E731
            x_BTD = self._residual(x_BTD, look, self.cross_attention_norm)
        return self._residual(x_BTD, self.feed_forward, self.feed_forward_norm)


class Stack(nn.Module):
    def __init__(self, cfg: ModelConfig, params: Params, length: int, cross: bool):
        super().__init__()
        self.cfg = cfg
        self.blocks = nn.ModuleList(Block(cfg, _layer(params['layers'], n), cross) for n in range(length))
        self.final_norm = Norm(cfg, params['final_norm']) if cfg.residual == 'pre' else None
        self._positions = torch.zeros(0, cfg.d_model)

    def forward(self, x_BTD: Tensor, memory_BSD: Tensor | None, mask_B11S: Tensor) -> Tensor:
        T = x_BTD.shape[1]
        if len(self._positions) < T:
            self._positions = sinusoids(T, self.cfg.d_model)
        x_BTD = _dropout(x_BTD + self._positions[:T], self.cfg.dropout.embedding, self.training)
        for block in self.blocks:
            x_BTD = block(x_BTD, memory_BSD, mask_B11S)
        return x_BTD if self.final_norm is None else self.final_norm(x_BTD)


def _layer(tree: Params, n: int) -> Params:
    """Layer n of parameters with a leading layer axis."""
    return {name: _layer(part, n) if isinstance(part, Mapping) else part[n] for name, part in tree.items()}


def sinusoids(T: int, D: int) -> Tensor:
    """[T, D]: sines at even columns 2i, cosines at odd ones, of position / 10000^(2i/D) (AIAYN 3.5)."""
    column = torch.arange(D)
    angle_TD = torch.arange(T)[:, None] * 10_000.0 ** (-(column - column % 2) / D)
    return torch.where(column % 2 == 0, angle_TD.sin(), angle_TD.cos())


class Seq2Seq(nn.Module):
    """Encoder-decoder with the parameters of a jaxformer tree (numpy arrays, layers stacked)."""

    def __init__(self, cfg: ModelConfig, params: Params):
        super().__init__()
        self.embedding = _vector(params['embedding'])
        self.embedding_scale = {'sqrt_d_model': cfg.d_model**0.5, 'none': 1.0}[cfg.embedding.scale]
        self.encoder = Stack(cfg, params['encoder'], cfg.encoder_layers, cross=False)
        self.decoder = Stack(cfg, params['decoder'], cfg.decoder_layers, cross=True)

    def forward(self, source_BS: Tensor, target_BT: Tensor) -> Tensor:
        """Logits [B, T, V] under teacher forcing; int64 tokens, PAD behind, the target shifted here."""
        mask_B11S = (source_BS != PAD)[:, None, None, :]
        memory_BSD = self.encoder(self._embed(source_BS), None, mask_B11S)
        input_BT = F.pad(target_BT[:, :-1], (1, 0), value=BOS)
        return F.linear(self.decoder(self._embed(input_BT), memory_BSD, mask_B11S), self.embedding)

    def _embed(self, tokens_BT: Tensor) -> Tensor:
        return F.embedding(tokens_BT, self.embedding) * self.embedding_scale


class Trainer:
    """The model and its optimiser; `step` is one update."""

    def __init__(self, cfg: Config, params: Params, learning_rate: Callable[[int], float]):
        check_covered(cfg)
        self.cfg = cfg
        self.learning_rate = learning_rate
        self.model = Seq2Seq(cfg.model, params).train()
        self.count = 0
        optim = cfg.optim
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), betas=(optim.beta1, optim.beta2), eps=optim.epsilon, fused=True
        )

    def step(self, batch: Mapping[str, Tensor]) -> tuple[float, float]:
        """One update on int64 tensors `source` and `target`; (loss per target token, gradient norm before clipping)."""
        loss = self.backward(batch)
        grad_norm = self.update()
        return loss.item(), grad_norm.item()

    def backward(self, batch: Mapping[str, Tensor]) -> Tensor:
        """Puts the gradients of a batch in place and returns the loss."""
        self.optimizer.zero_grad(set_to_none=True)
        logits_BTV = self.model(batch['source'], batch['target'])
        labels, smoothing = batch['target'].flatten(), self.cfg.optim.label_smoothing
        loss = F.cross_entropy(logits_BTV.flatten(0, 1), labels, ignore_index=PAD, label_smoothing=smoothing)
        loss.backward()
        return loss

    def exact_norm(self) -> float:
        """The norm of the gradients, summed in float64: in float32, millions of squares lose digits."""
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        return sum(float(gradient.double().square().sum()) for gradient in gradients) ** 0.5

    def update(self) -> Tensor:
        """Clips the gradients and applies them; their norm before clipping."""
        limit = self.cfg.optim.clip_norm or float('inf')
        grad_norm = nn.utils.clip_grad_norm_(self.model.parameters(), limit, foreach=True)
        for group in self.optimizer.param_groups:
            group['lr'] = self.learning_rate(self.count)
        self.optimizer.step()
        self.count += 1
        return grad_norm
