"""PyTorch's nn.Transformer, carried over: the same output, and the same gradient of every parameter and input."""

import pathlib

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from others import difference, randomise, torch

from jaxformer import config
from jaxformer.inspection import pieces
from jaxformer.inspection.layout import Row
from jaxformer.model import transformer
from jaxformer.model.context import Context
from jaxformer.model.masks import Sight
from jaxformer.model.stack import Stack, shared_positions

B, S, T, D, H, F = 3, 7, 6, 15, 3, 22
LAYERS = {'encoder': 2, 'decoder': 3}
BASE = pathlib.Path(__file__).parents[2] / 'configs' / 'base.py'


def attention(name, path):
    parts = tuple(f'{path}/{part}' for part in ('query', 'key', 'value'))
    biases = tuple(f'{part}_bias' for part in parts)
    return (
        Row(f'{name}.in_proj_weight', parts, '(* H K) (D) -> D H K'),
        Row(f'{name}.in_proj_bias', biases, '(* H K) -> H K'),
        *pieces.linear(f'{name}.out_proj', f'{path}/out', 'H E', 'D'),
    )


def stack(name):
    layer, layers = f'{name}.layers.{{n}}', f'{name}/layers'
    sublayers = ('self_attention', 'feed_forward')
    if name == 'decoder':
        sublayers = ('self_attention', 'cross_attention', 'feed_forward')
    return (
        *attention(f'{layer}.self_attn', f'{layers}/self_attention'),
        *(attention(f'{layer}.multihead_attn', f'{layers}/cross_attention') if name == 'decoder' else ()),
        *pieces.linear(f'{layer}.linear1', f'{layers}/feed_forward/inner', 'D', 'F'),
        *pieces.linear(f'{layer}.linear2', f'{layers}/feed_forward/outer', 'F', 'D'),
        *(
            row
            for n, part in enumerate(sublayers, 1)
            for row in pieces.norm(f'{layer}.norm{n}', f'{layers}/{part}_norm')
        ),
        *pieces.norm(f'{name}.norm', f'{name}/final_norm'),
    )


ROWS = (*stack('encoder'), *stack('decoder'))


def theirs(norm_first, activation):
    model = torch.nn.Transformer(
        D, H, LAYERS['encoder'], LAYERS['decoder'], F, dropout=0.0, activation=activation, layer_norm_eps=1e-4,
        batch_first=True, norm_first=norm_first,
    )  # fmt: skip
    if not norm_first:
        model.encoder.norm = model.decoder.norm = None
    return randomise(model, seed=4).train()


def ours(norm_first, activation):
    edited = config.load(BASE)
    fields = {
        'd_model': D, 'num_heads': H, 'd_ff': F, 'norm_epsilon': 1e-4, 'position': 'none', 'attention.bias': 'all',
        'residual': 'pre' if norm_first else 'post', 'feed_forward': activation, 'gelu': 'exact', 'vocab_size': 9,
        'encoder_layers': LAYERS['encoder'], 'decoder_layers': LAYERS['decoder'],
    }  # fmt: skip
    config.override(edited, {f'model.{name}': value for name, value in fields.items()})
    return config.resolve(edited).model


def run(cfg, params, source_BSD, target_BTD, source_BS, target_BT):
    """Output of the decoder, through the stacks; True in the masks is a real row."""
    encoder = Stack(cfg, LAYERS['encoder'], 'attention', causal=False, cross=False)
    decoder = Stack(cfg, LAYERS['decoder'], 'attention', causal=True, cross=True)
    positions = shared_positions(S), shared_positions(T)
    context = Context(source_BS, Sight(source_BS), positions[0], positions[0])
    memory_BSD, _, _ = encoder.apply({'params': params['encoder']}, source_BSD, context)
    context = Context(
        target_BT, Sight(target_BT, causal=True), positions[1], positions[1],
        memory_BSD=memory_BSD, memory_BS=source_BS,
    )  # fmt: skip
    return decoder.apply({'params': params['decoder']}, target_BTD, context)[0]


@pytest.mark.parametrize('activation', ['relu', 'gelu'])
@pytest.mark.parametrize('norm_first', [False, True], ids=['post', 'pre'])
def test_output_and_gradients_are_those_of_nn_transformer(norm_first, activation):
    rng = np.random.default_rng(7)
    source_BSD, target_BTD, weights_BTD = (rng.normal(size=(B, width, D)).astype(np.float32) for width in (S, T, T))
    source_BS = np.arange(S) < np.array([S, 3, 5])[:, None]
    target_BT = np.arange(T) < np.array([2, T, 4])[:, None]
    weights_BTD *= target_BT[:, :, None]  # what stands at padding counts for nothing

    model = theirs(norm_first, activation)
    inputs = [torch.from_numpy(part.copy()).requires_grad_() for part in (source_BSD, target_BTD)]
    padding = {'src_key_padding_mask': ~source_BS, 'tgt_key_padding_mask': ~target_BT}
    padding['memory_key_padding_mask'] = ~source_BS
    future_TT = torch.triu(torch.ones(T, T, dtype=torch.bool), diagonal=1)
    output = model(*inputs, tgt_mask=future_TT, **{name: torch.from_numpy(mask) for name, mask in padding.items()})
    (output * torch.from_numpy(weights_BTD)).sum().backward()
    gradients = {name: parameter.grad.numpy() for name, parameter in model.named_parameters()}

    cfg = ours(norm_first, activation)
    abstract = flax.traverse_util.flatten_dict(transformer.abstract_params(cfg, 9), sep='/')
    shapes = {path: leaf.shape for path, leaf in abstract.items() if path != 'embedding'}
    rows = [row for row in ROWS if row.counts({}, shapes)]
    tensors = {name: parameter.detach().numpy() for name, parameter in model.named_parameters()}
    assert {name for row in rows for name in row.names(shapes)} == set(tensors)
    flat = {}
    for row in rows:
        flat |= row.join((tensors[name] for name in row.names(shapes)), shapes, np.float32)
    assert flat.keys() == shapes.keys()
    params = flax.traverse_util.unflatten_dict(flat, sep='/')

    def loss(params, source_BSD, target_BTD):
        y_BTD = run(cfg, params, source_BSD, target_BTD, jnp.asarray(source_BS), jnp.asarray(target_BT))
        return jnp.sum(y_BTD * weights_BTD), y_BTD

    (_, y_BTD), (mine, *of_inputs) = jax.jit(jax.value_and_grad(loss, (0, 1, 2), has_aux=True))(
        params, source_BSD, target_BTD
    )
    error = difference(np.asarray(y_BTD)[target_BT], output.detach().numpy()[target_BT])
    mine = {path: np.asarray(leaf) for path, leaf in flax.traverse_util.flatten_dict(mine, sep='/').items()}
    errors = {}
    for row in rows:
        for name, gradient in row.split(mine).items():
            errors[name] = difference(gradient, gradients[name])
    assert errors.keys() == gradients.keys()
    for name, mine_too, input_ in zip(('source', 'target'), of_inputs, inputs, strict=True):
        errors[name] = difference(mine_too, input_.grad.numpy())
    worst = max(errors, key=errors.get)
    print(f'output {error:.1e}, gradients {errors[worst]:.1e} ({worst})')
    assert error < 1e-5
    assert errors[worst] < 1e-4, worst
