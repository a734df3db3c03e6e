"""Models by others, with weights that leave nothing at a value where an error would not show."""

import numpy as np
import pytest

REASON = 'not installed here; `make test-oracles` installs it'
torch = pytest.importorskip('torch', reason=f'PyTorch is {REASON}')


def randomise(model, seed):
    """Draws every parameter and buffer of numbers anew: biases are not 0, scales of norms not 1."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, values in [*model.named_parameters(), *model.named_buffers()]:
            if values.is_floating_point() and not name.endswith(('embed_positions.weight', 'inv_freq')):
                scale = 'norm' in name.lower() or 'ln_' in name
                drawn = torch.randn(values.shape, generator=generator)
                values.copy_(1 + 0.3 * drawn if scale and name.endswith('weight') else 0.4 * drawn)
    return model.eval()


def difference(ours, theirs):
    """max |a - b| / max |b|."""
    ours, theirs = np.asarray(ours), np.asarray(theirs)
    assert ours.shape == theirs.shape and np.isfinite(theirs).all()
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())
