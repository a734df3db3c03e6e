"""Decodes greedily with what `jaxformer export --stablehlo` wrote, without that package.

  pip install jax safetensors flatbuffers

  python decode.py < LINES     each line is the ids of a source (of a prompt), with spaces between; the output likewise

The id of a symbol is its place in "symbols" of vocab.json, from 0.

A source is followed by its end ("ids"."eos"), a prompt is preceded by the start symbol ("ids"."start"); see
signature.json for what each function takes and gives.
"""

import json
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax import export
from safetensors.flax import load_file

HERE = Path(__file__).parent


def main() -> None:
    said = json.loads((HERE / 'signature.json').read_text())
    ids, T = said['ids'], said['max_decode_length']
    params = load_file(HERE / said['parameters'])
    called = {
        name: jax.jit(export.deserialize(bytearray((HERE / one['file']).read_bytes())).call)
        for name, one in said['functions'].items()
    }
    may = np.ones(said['num_logits'], bool)
    may[said['num_symbols'] :] = may[said['never']] = False
    for number, line in enumerate(sys.stdin, 1):
        words = line.split()
        if strange := [word for word in words if not word.isdecimal() or int(word) >= said['num_symbols']]:
            sys.exit(f'line {number}: {strange[0]} is no id from 0 to {said["num_symbols"] - 1}; see vocab.json')
        if not words:
            print(flush=True)
            continue
        given = [int(word) for word in words]
        if 'encode' in called:
            source = np.array([[*given, ids['eos']]], np.int32)
            cache = called['encode'](params, source, np.zeros(T, bool))
            logits, cache = called['step'](params, np.array([[ids['start']]], np.int32), cache)
        else:
            prompt = np.array([[ids['start'], *given]], np.int32)
            logits, cache = called['prefill'](params, prompt, np.zeros(len(given) + T, bool))
        found: list[int] = []
        while True:
            found.append(int(jnp.argmax(jnp.where(may, logits[0, -1], -jnp.inf))))
            if found[-1] == ids['eos'] or len(found) == T:
                break
            logits, cache = called['step'](params, np.array([found[-1:]], np.int32), cache)
        print(*found, flush=True)


if __name__ == '__main__':
    main()
