"""One page that shows the attention of a few texts: by layer and head, with the weight of every pair of tokens.

It holds its data and its program, needs no network, and works from a file.
"""

import base64
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from etils import epath

from jaxformer import files
from jaxformer.decode.open import OpenRun
from jaxformer.errors import UserError
from jaxformer.inspection import attention, scores
from jaxformer.inspection.attention import TITLES, Maps
from jaxformer.inspection.choice import ALL, Choice, attending
from jaxformer.model.keep import KINDS
from jaxformer.model.view import PATTERNS
from jaxformer.schema import ModelConfig

FILE = 'explorer.html'
MOST = 48 * 2**20  # bytes of weights in a page


def write(run: OpenRun, texts: Sequence[str], directory: epath.PathLike, choice: Choice = ALL) -> epath.Path:
    """Writes `directory/explorer.html` of the attention of a run to each text.

    Raises:
      UserError: as `attention.of_run`; too much for a page; or a directory that cannot be written.
    """
    examples, size = [], 0
    for text in texts:
        maps = attention.of_run(run, text, choice=choice)
        size += sum(getattr(maps, kind).nbytes for kind in KINDS)
        if size > MOST:
            raise UserError(
                f'{size / 2**20:.0f} MiB of weights: more than the {MOST // 2**20} that a page holds; '
                'choose --which, --layers or --heads, or fewer texts'
            )
        examples.append(_example(run, maps, choice))
    path = epath.Path(directory) / FILE
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_atomic(path, page(f'{run.workdir.name}, step {run.step:,}', examples))
    except OSError as error:
        raise UserError(f'{directory}: {error.strerror or error}; choose a directory that can be written') from error
    return path


def page(name: str, examples: Sequence[dict[str, Any]]) -> str:
    """The page of examples as `_example` gives them."""
    import jinja2

    here = Path(__file__).parent
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(here), autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True
    )
    parts = {part: (here / f'explorer.{part}').read_text() for part in ('css', 'js')}
    # A "<" in a string must not end the script that holds the data.
    data = json.dumps({'examples': examples}, ensure_ascii=False, separators=(',', ':')).replace('<', '\\u003c')
    return environment.get_template(FILE).render(name=name, data=data, **parts)


def _example(run: OpenRun, maps: Maps, choice: Choice) -> dict[str, Any]:
    parts = []
    found = {part.kind: part for part in scores.of_maps(run, maps, choice)}
    for kind in KINDS:
        weights_LHTS = getattr(maps, kind)
        if not len(weights_LHTS):
            continue
        part, (rows, columns) = found[kind], maps.axes(kind)
        pruned = getattr(run.cfg.model.kept_heads, kind)
        allowed = [visible(run.cfg.model, kind, layer, *weights_LHTS.shape[2:]) for layer in part.layers]
        parts.append(
            {
                'kind': kind,
                'title': TITLES[kind],
                'about': about(run.cfg.model, kind),
                'layers': [layer + 1 for layer in part.layers],
                'heads': [head + 1 for head in part.heads],
                'rows': rows,
                'columns': columns,
                'written': maps.predicted if kind != 'encoder' else None,
                'hidden': [_text(~mask) for mask in allowed],
                'weights': base64.b64encode(weights_LHTS.astype('<f4').tobytes()).decode(),
                'summary': [
                    [
                        f'Entropy {part.of["entropy"][layer, head]:.2f} nats, distance '
                        f'{part.of["distance"][layer, head]:.1f}'
                        + (f', {part.role(layer, head)}' if part.role(layer, head) else '')
                        + (f'; {part.names[layer][head]} before pruning' if pruned else '')
                        + '.'
                        for head in range(len(part.heads))
                    ]
                    for layer in range(len(part.layers))
                ],
            }
        )
    return {'text': maps.text, 'without': without(run.cfg.model), 'kinds': parts}


def visible(model: ModelConfig, kind: str, layer: int, T: int, S: int) -> np.ndarray:
    """Boolean [T, S]: the keys that the design lets each query look at, padding apart."""
    if kind == 'cross':
        return np.ones((T, S), bool)
    query_T1, key_S = np.arange(T)[:, None], np.arange(S)[None]
    pattern = PATTERNS[model.attention.pattern](model.attention, query_T1[None], key_S[None], np.asarray(layer))  # type: ignore[arg-type]
    mask = np.broadcast_to(np.asarray(pattern)[0], (T, S))
    return mask & (key_S <= query_T1) if kind == 'decoder' else mask


def about(model: ModelConfig, kind: str) -> str:
    """What kind of weights these are, in a sentence or two."""
    a, said = model.attention, []
    if kind != 'cross' and getattr(model, f'{kind}_mixer') == 'static':
        said.append('Static: these weights are learned, and the same for every text.')
    if kind != 'cross' and a.pattern != 'full':
        said.append(
            {
                'local': f'A window: keys up to {a.window} positions away.',
                'global_local': f'A window: keys up to {a.window} positions away, and to and from '
                f'{", ".join(str(place + 1) for place in a.global_positions)}, counted from 1.',
                'window2d': f'Windows: squares of {a.window} by {a.window} in a grid of {a.grid_width} columns, '
                f'moved by {a.shift} in every other layer.',
            }[a.pattern]
        )
    if kind == 'decoder':
        said.append('Causal: no look to the right of the diagonal.')
    return ' '.join(said)


def without(model: ModelConfig) -> str:
    """Which stacks have no map, and why."""
    reasons = {
        'linformer': f'attends to {model.linformer.rank} slots that hold the whole row, not to positions',
        'conv': f'is a convolution over {model.conv.width} positions',
        **dict.fromkeys(('rnn', 'lstm', 'gru'), 'is recurrent: a state goes from position to position'),
    }
    stacks = [
        (stack, getattr(model, f'{stack}_mixer'))
        for stack, families in (('encoder', ('seq2seq', 'mlm', 'classifier')), ('decoder', ('seq2seq', 'lm')))
        if model.family in families and stack not in attending(model)
    ]
    return ' '.join(f'No map of the {stack} itself: it {reasons[mixer]}.' for stack, mixer in stacks)


def _text(mask_TS: np.ndarray) -> str:
    """'0' and '1' row by row; '' where none is set."""
    return ''.join('1' if cell else '0' for cell in mask_TS.ravel()) if mask_TS.any() else ''
