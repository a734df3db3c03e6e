"""Does a student of half the size learn more from the g2p model than from the dictionary alone?

Question: the same small model on CMUdict alone, with the distributions of a trained configs/g2p.py beside the labels
          (Hinton et al. 2015; temperature 2, half of the loss), and with the outputs of that model in the place of the
          labels (Kim & Rush 2016).
Command:  jaxformer train --config=configs/g2p.py --workdir=runs/g2p
          jaxformer decode --workdir=runs/g2p --split=train --output=runs/g2p/train.txt
          jaxformer ablate --grid=experiments/distillation.py --workdir=runs/distillation --seeds=3
Result:   compares phoneme error rate and loss on dev after 500 updates of 128 words, half an epoch. Another teacher is
          named by --config.train.teacher=RUN (or RUN@STEP), with its outputs in RUN/train.txt; longer training by
          --config.train.num_steps=N.
"""

from collections.abc import Iterator

from ml_collections import ConfigDict

from configs import g2p
from jaxformer.ablate.grid import Overrides, chain, product

AXIS = ('train.teacher_weight', 'data.targets')


def get_config() -> ConfigDict:
    config = g2p.get_config()
    config.model.num_layers = 2  # the teacher has 3 of width 192
    config.model.d_model = 164
    config.model.d_ff = 656
    config.model.dropout.residual = 0.0  # under one epoch: nothing is seen twice
    config.model.dropout.embedding = 0.0
    config.optim.learning_rate = 2.5e-3
    config.optim.warmup_steps = 60
    config.train.teacher = 'runs/g2p'
    config.train.num_steps = 500
    config.train.batch_size = 128
    config.train.log_every = 20
    config.train.checkpoint_every = 500
    config.eval.every = 0
    config.eval.decode_every = 0
    config.data.buckets = ((9, 8), (12, 11), (40, 40))
    return config


def grid(base: ConfigDict) -> Iterator[Overrides]:
    name, at, step = base.train.teacher.rpartition('@')
    outputs = f'{name if at else step}/train.txt'
    return chain(
        product({'train.teacher_weight': (0.0, 0.5)}),
        [{'train.teacher_weight': 0.0, 'data.targets': outputs}],
    )
