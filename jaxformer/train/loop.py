"""A run: one command that starts it, and goes on with it after whatever ended it.

What `train` does with a directory:
  1. A directory that holds a config must hold the same one. What may differ is what changes no update (but for its
     rounding): where data and compiled programs lie, how often something is logged, saved or evaluated, what happens
     after a number that is not finite, the mesh, and num_steps where the schedule does not depend on it.
  2. A run that is done is left alone: its metrics are returned.
  3. It claims the directory; a second live process is refused.
  4. The newest whole checkpoint is restored; damaged ones are named and passed over. Steps without a whole one are an
     error, no steps at all are a fresh start, with the parameters of train.start_from where that is set.
  5. The data iterator goes on where the checkpoint left it; dropout keys follow from seed and step. On one topology of
     CPU devices the run is bit-equal to one that never stopped.
  6. Lines of metrics.jsonl beyond the checkpoint are dropped and written anew, and an evaluation that was due at the
     checkpoint and is not there is made up for.
  7. A user's mistake leaves the directory as it was.

After a number that is not finite, by train.nan_policy: `stop` ends the run; `skip` drops the update and takes the next
batch; `restore` goes back to the newest checkpoint and from there on past the batches that led there (`Member.back`).
"""

import contextlib
import io
import time

from etils import epath

from jaxformer import processes
from jaxformer.claims import Claim
from jaxformer.schema import Config
from jaxformer.train import directory, record
from jaxformer.train.member import Member, NotFinite, Pending, aside
from jaxformer.train.program import Program
from jaxformer.train.signals import AskedAnywhere, Preempted, Stop, stop_signals
from jaxformer.train.state import TrainState
from jaxformer.train.writer import Progress

__all__ = ['Preempted', 'train']


def train(cfg: Config, workdir: epath.PathLike, program: Program | None = None) -> dict[str, float]:
    """Trains until train.num_steps and evaluates; the final metrics ('dev/loss', …).

    Args:
      program: what is compiled already of another run of the same `hyperparameters.program`.

    Raises:
      UserError: the directory cannot be used, or not with this config.
      RunError: the run failed (not-finite numbers, no whole checkpoint, a full disk); status.json says why.
      Preempted: SIGTERM or SIGINT came; everything up to the last finished step is saved.
    """
    begun = time.time()
    workdir = epath.Path(workdir).expanduser()
    metrics = processes.on_first(lambda: directory.finished(cfg, workdir))
    if metrics is not None:
        return metrics
    with contextlib.ExitStack() as held, stop_signals() as stop:
        claims = [Claim(None)]
        processes.on_first(lambda: claims.append(held.enter_context(directory.claimed(cfg, workdir))))
        directory.refuse_unshared(workdir)
        written = record.of_this_process(cfg, workdir, claims[-1])
        run = None
        at = lambda: run.step if run else 0  # noqa: E731
        with processes.last_words(lambda error: written.ended(at(), error)):
            try:
                run = Member(cfg, workdir, program or _program(cfg), written, begun)
                _to_the_end(run, stop)
                written.ended(at(), metrics=run.metrics)
                return run.metrics
            except BaseException as error:
                error = processes.explained(stop.meant(error))
                written.ended(at(), error)
                raise error


def _to_the_end(run: Member, stop: Stop) -> None:
    """Every update that is left, those that are made in the place of undone ones included."""
    state, num_steps = run.restored(), run.cfg.train.num_steps
    with run.writing(), _progress(run) as progress:
        stop.polled = True
        run.make_up_for_evaluation(state)
        if run.step < num_steps:
            progress.compiling(run.step)
        while run.step < num_steps:
            try:
                _updates(run, state, stop, progress)
            except NotFinite as error:
                failed = error.with_traceback(None)  # its frames hold the state, and there may be no room for two
            else:
                return
            state = run.back(failed)


def _updates(run: Member, state: TrainState, stop: Stop, progress: Progress) -> None:
    """The updates after run.step. The metrics of step t − 1 are looked at after step t was dispatched.

    Raises:
      NotFinite: by `Member.look_at`.
    """
    program, num_steps = run.program, run.cfg.train.num_steps
    asked = AskedAnywhere(stop, program.mesh)
    pending: Pending | None = None
    for step in range(run.step + 1, num_steps + 1):
        batch = next(run.batches)
        placed = program.placed(batch)
        layers = None
        if run.inspects(step):  # before the state is given away
            with aside([run]):
                layers = run.inspected(state, placed)
        state, metrics = program.update(state, placed, run.values)
        if pending:
            progress.update(pending.step, run.look_at(pending), run.speed)
        pending = Pending(step, metrics, run.example_ids(batch, placed), layers)
        stopped, due = asked.now(), run.due(step)
        if stopped or due.anything:
            # Nothing is saved or judged before its numbers were looked at.
            progress.update(pending.step, run.look_at(pending), run.speed)
            pending, due = None, run.due(step)
        if stopped or due.save:
            run.save(state)
        if stopped:
            raise Preempted(f'stopped by a signal; step {step} is saved; the same command goes on from there', True)
        if due.evaluate:
            with aside([run]):
                run.evaluate(state, due.decode)


def _program(cfg: Config) -> Program:
    """What one process cannot make, as its data is another, no process makes."""
    made: list[Program] = []
    processes.on_each(lambda: made.append(Program(cfg)))
    return made[0]


def _progress(run: Member) -> Progress:
    """The line of progress, which one process shows."""
    stream = None if processes.index() == 0 else io.StringIO()
    return Progress(run.cfg.train.num_steps, run.program.counted, stream=stream)
