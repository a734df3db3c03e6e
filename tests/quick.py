"""What keeps tests of many small models quick: compiling in a hurry, and parameters that are not compiled at all."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

# Without these a program of such a model takes four times as long to compile, and is no faster to run.
HURRY = {
    'xla_backend_optimization_level': 0,
    'xla_llvm_disable_expensive_passes': True,
    'xla_cpu_parallel_codegen_split_count': 1,
}
if jax.__version_info__ < (0, 11):  # a later compiler has no such option
    HURRY['xla_cpu_use_fusion_emitters'] = False
jit = functools.partial(jax.jit, compiler_options=HURRY)


def draw_params(shapes, spread):
    """Parameters of these shapes in which every leaf is drawn, so that no bias or norm is idle."""
    rng = np.random.default_rng(0)

    def draw(path, leaf):
        values = spread * rng.standard_normal(leaf.shape) + (path[-1].key == 'scale')
        return jnp.asarray(values, leaf.dtype)

    return jax.tree_util.tree_map_with_path(draw, shapes)
