"""Rows of different lengths in two flat, memory-mapped arrays."""

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np
from etils import epath

from jaxformer.data.vocab import PAD


@dataclasses.dataclass(frozen=True, eq=False)
class Ragged:
    """Row i is `values[offsets[i]:offsets[i + 1]]`."""

    values: np.ndarray  # [all values]
    offsets: np.ndarray  # int64 [rows + 1]

    @classmethod
    def of(cls, rows: Iterable[Sequence[int] | np.ndarray], dtype: type[np.generic]) -> 'Ragged':
        """Lays `rows` end to end; they are taken one by one. Bytes are taken as they are."""
        lengths, content = [0], bytearray()
        for row in rows:
            lengths.append(len(row))
            content += row if isinstance(row, bytes) else np.asarray(row, dtype).tobytes()
        return cls(np.frombuffer(content, dtype), np.cumsum(lengths, dtype=np.int64))

    def save(self, directory: epath.Path, name: str) -> None:
        """Writes NAME.values.npy and NAME.offsets.npy."""
        np.save(directory / f'{name}.values.npy', self.values)
        np.save(directory / f'{name}.offsets.npy', self.offsets)

    @classmethod
    def load(cls, directory: epath.Path, name: str) -> 'Ragged':
        """Maps what `save` wrote. Raises OSError or ValueError where a file is absent or cut short."""
        values = np.load(directory / f'{name}.values.npy', mmap_mode='r')
        return cls(values, np.load(directory / f'{name}.offsets.npy'))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, index: int) -> np.ndarray:
        if not 0 <= index < len(self):
            raise IndexError(f'row {index} of {len(self)}')
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    @property
    def lengths(self) -> np.ndarray:
        """int64 [rows]."""
        return np.diff(self.offsets)

    def pad(self, rows_B: np.ndarray, width: int, fill: int = PAD) -> np.ndarray:
        """int32 [B, width]: the named rows with `fill` behind them; row −1 is all that. Each row has to fit `width`."""
        starts_B = self.offsets[rows_B]
        lengths_B = np.where(rows_B >= 0, self.offsets[rows_B + 1] - starts_B, 0)
        assert lengths_B.max(initial=0) <= width, f'a row of {lengths_B.max()} does not fit {width}'
        column = np.arange(width)
        inside_BW = column < lengths_B[:, None]
        padded_BW = np.full(inside_BW.shape, fill, np.int32)
        padded_BW[inside_BW] = self.values[(starts_B[:, None] + column)[inside_BW]]
        return padded_BW
