"""What runs share that differ in hyperparameters only: data, model, and everything that is compiled."""

from typing import Any

import jax

from jaxformer import objectives, optim, runtime, sharding
from jaxformer.data import corpus as corpora
from jaxformer.data import special_ids, too_few
from jaxformer.data.splits import Batch, PairSplit
from jaxformer.decode.predict import Decoder
from jaxformer.model import transformer
from jaxformer.schema import Config
from jaxformer.train import state as states
from jaxformer.train.evaluate import Evaluator
from jaxformer.train.layerwise import Layers
from jaxformer.train.step import compiled_step
from jaxformer.train.teacher import Teacher


class Program:
    """Made once for as many runs as come; of `cfg` nothing is read that `hyperparameters.FIELDS` names.

    Raises:
      UserError: data, mesh or buckets do not fit the config.
    """

    def __init__(self, cfg: Config, devices: list[jax.Device] | None = None) -> None:
        runtime.configure(cfg.runtime)
        corpus = self.corpus = corpora.load(cfg.data)
        special_ids.refuse_others(cfg.model, cfg.data, corpus.vocab.ids)
        self.vocab, self.split = corpus.vocab, corpus.split(cfg.eval.split)
        self.mesh = sharding.make_mesh(cfg.mesh, devices)
        sharding.refuse_undivided(cfg, self.mesh)
        self.model = transformer.build(cfg.model, len(corpus.vocab), len(corpus.vocab.classes), self.mesh)
        self.model = sharding.laid_out(self.model, self.mesh)
        self.optimizer = optim.build(cfg)  # what it is built with is given to each update, too
        optim.warn(cfg)
        self.target = target = states.abstract(self.model, self.optimizer, self.mesh)
        self.teacher = Teacher(cfg, corpus.vocab, self.model.vocab_size, self.mesh) if cfg.train.taught else None
        self.initialise = states.initialiser(self.model, self.optimizer, target)
        self.update = compiled_step(cfg, self.model, target)
        self.layers = Layers(cfg, self.model, self.mesh) if cfg.train.inspect_every else None
        self.evaluator = Evaluator(cfg, self.model, self.mesh)
        self.decoder = Decoder(cfg, self.model, corpus.vocab, self.mesh)
        held_out = self.evaluator.batches(self.split)  # refuses one that has none now, not after the training
        too_few.warn(cfg.data, self.split.name, held_out.num_examples)
        self.counted = objectives.counted(cfg.model.family)

    def placed(self, batch: Batch) -> dict[str, jax.Array]:
        """A batch on the mesh, with what a teacher says about it."""
        placed = sharding.put_batch(batch, self.mesh)
        return self.teacher(placed) if self.teacher else placed

    def beginning(self, params: Any, fresh: states.TrainState) -> states.TrainState:
        """A fresh state with other parameters, from which what the optimiser keeps of them begins, too."""
        shardings = jax.tree.map(lambda leaf: leaf.sharding, fresh.opt_state)
        return fresh.replace(params=params, opt_state=jax.jit(self.optimizer.init, out_shardings=shardings)(params))

    def compile_evaluation(self) -> None:
        """Compiles evaluation and decoding for the buckets of the split, into the persistent cache; nothing runs."""
        compiled = set()
        for batch in self.evaluator.batches(self.split):
            if (shapes := tuple(rows.shape for rows in batch.values())) not in compiled:
                compiled.add(shapes)
                placed = sharding.put_batch(batch, self.mesh)
                self.evaluator.sums.lower(self.target.params, placed).compile()
                if isinstance(self.split, PairSplit):
                    inputs = placed['source'], placed['example_id']
                    self.decoder.search.lower(self.target.params, *inputs).compile()

    def compilations(self) -> dict[str, int]:
        """How often each of its functions was compiled: once per bucket, if all is well."""
        jits = {'train': self.update, 'eval': self.evaluator.sums, 'decode': self.decoder.search}
        jits |= {'layers': self.layers.numbers} if self.layers else {}
        if self.teacher:
            jits['teacher'] = self.teacher.logits
        return {name: jit.compilations for name, jit in jits.items()}
