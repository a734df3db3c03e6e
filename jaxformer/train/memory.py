"""What a training step takes of the memory of each device, read from the compiled program; no array is made."""

import dataclasses

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from jaxformer import hyperparameters, optim, sharding
from jaxformer.model import transformer
from jaxformer.schema import Config
from jaxformer.train import state as states
from jaxformer.train import teacher
from jaxformer.train.step import compiled_step


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Bytes on each device: `arguments` (state and batch), `outputs`, and `temporaries` at the step's peak.

    shared: of the outputs, what takes the place of arguments (the donated state).
    teacher: parameters of the run cfg.train.teacher, which lie there all the time.
    teacher_temporaries: of its forward pass. Its logits are among the step's arguments.
    teacher_logits: those for the next step, which are made while this one runs.
    """

    arguments: int
    outputs: int
    temporaries: int
    shared: int
    teacher: int = 0
    teacher_temporaries: int = 0
    teacher_logits: int = 0

    @property
    def total(self) -> int:
        lasting = self.arguments + self.teacher + self.teacher_logits
        return lasting + max(self.outputs - self.shared + self.temporaries, self.teacher_temporaries)


def of_step(
    cfg: Config, vocab_size: int, num_classes: int = 0, devices: list[jax.Device] | None = None
) -> dict[tuple[int, ...], StepMemory]:
    """Bucket of cfg.data.buckets → what a step on it takes.

    Args:
      vocab_size, num_classes: of the data.
      devices: that cfg.mesh is laid over, by default all of this process's backend.

    Raises:
      UserError: mesh, batch or buckets do not fit each other.
      NotImplementedError: the backend's compiler does not say.
    """
    mesh = sharding.make_mesh(cfg.mesh, devices)
    sharding.refuse_undivided(cfg, mesh)
    model = sharding.laid_out(transformer.build(cfg.model, vocab_size, num_classes, mesh), mesh)
    target = states.abstract(model, optim.build(cfg), mesh)
    step, values = compiled_step(cfg, model, target), hyperparameters.of(cfg)
    logits, theirs = teacher.by_shape(cfg, model.vocab_size, mesh) if cfg.train.taught else (None, {})
    found = {}
    for bucket in cfg.data.buckets:
        batch, of_teacher = _batch(cfg, bucket, mesh), {}
        if logits:
            asked = logits.lower(theirs, batch)
            compiled = asked.compile()
            said = compiled.memory_analysis()
            of_teacher = {
                'teacher': sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(theirs)),
                'teacher_temporaries': said.temp_size_in_bytes if said else 0,
                'teacher_logits': said.output_size_in_bytes if said else 0,
            }
            place = compiled.output_shardings
            batch[teacher.LOGITS] = jax.ShapeDtypeStruct(asked.out_info.shape, asked.out_info.dtype, sharding=place)
        analysis = step.lower(target, batch, values).compile().memory_analysis()
        if analysis is None:
            raise NotImplementedError(f'{jax.default_backend()}: its compiler does not say what memory a program takes')
        found[bucket] = StepMemory(
            arguments=analysis.argument_size_in_bytes,
            outputs=analysis.output_size_in_bytes,
            temporaries=analysis.temp_size_in_bytes,
            shared=analysis.alias_size_in_bytes,
            **of_teacher,
        )
    return found


def _batch(cfg: Config, bucket: tuple[int, ...], mesh: jax.sharding.Mesh) -> dict[str, jax.ShapeDtypeStruct]:
    """A batch of that bucket by shape, as the data of cfg give it."""
    B, T = cfg.train.batch_size, bucket[-1]
    shapes: dict[str, tuple[int, ...]] = {'example_id': (B,)}
    if cfg.model.family == 'seq2seq':
        shapes |= {'source': (B, bucket[0]), 'target': (B, T)}
    else:
        shapes |= {'tokens': (B, T)}
    if cfg.model.family == 'classifier':
        shapes |= {'label': (B, T) if cfg.model.head.pooling == 'tokens' else (B,)}
    elif cfg.model.family in ('lm', 'mlm') and cfg.data.packing == 'documents':
        shapes |= {'segment': (B, T)}
    return {
        name: jax.ShapeDtypeStruct(
            shape,
            jnp.int32,
            sharding=NamedSharding(mesh, sharding.spec(sharding.BATCH[name][: len(shape)], mesh, shape, name)),
        )
        for name, shape in shapes.items()
    }
