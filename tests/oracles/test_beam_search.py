"""Beam search finds what `generate` of transformers finds, and sampling leaves what its processors leave."""

import jax
import numpy as np
import pytest
from others import torch
from test_decode import LINES, MODELS, made, transformers

from jaxformer.decode.continuation import Continuation
from jaxformer.decode.open import changed, on_every_device, open_run
from jaxformer.decode.predict import Decoder
from jaxformer.decode.sampling import Shape

BEAM = {'eval.search': 'beam', 'eval.num_best': 4, 'eval.length_divisor': 'length', 'eval.max_decode_length': 12}


@pytest.mark.parametrize('kind', MODELS)
def test_the_same_four_best_by_beam_search(kind, tmp_path):
    """Tokens and scores, for the length penalty that both have; 'never' is what transformers calls an exact stop."""
    model, _ = made(kind, tmp_path, sharpness=0.3)
    run = open_run(tmp_path / 'run')
    lm, encoded = run.cfg.model.family == 'lm', list(run.vocab.encode_texts(LINES))
    ids = np.array([ids[:4] for ids in encoded if len(ids) >= 4], np.int32)  # of one length: one program
    read = ids if lm else np.pad(ids, ((0, 0), (0, 1)), constant_values=run.vocab.ids.eos)
    found = {}
    for alpha in (0.0, 1.0, -0.5):
        run = changed(run, BEAM | {'eval.length_penalty': alpha}, 'decode', ('eval.',))
        mesh, params = on_every_device(run)
        searcher = (Continuation if lm else Decoder)(run.cfg, run.model, run.vocab, mesh)
        ours = jax.device_get(searcher.search(params, read, np.arange(len(read))))
        for row, prompt in enumerate(read.tolist()):
            expected = generated(model, run, prompt, alpha)
            for rank, (tokens, score) in enumerate(expected):
                assert ours.tokens[row, rank, : len(tokens)].tolist() == tokens, (alpha, row, rank)
                assert ours.truncated[row, rank] == (tokens[-1] != run.vocab.ids.eos)
                np.testing.assert_allclose(ours.score[row, rank], score, rtol=1e-4)
            found[alpha, row] = tuple(tuple(tokens) for tokens, _ in expected)
    lengths = {len(tokens) for best in found.values() for tokens in best}
    assert len(read) > 1 and len(lengths) > 3 and any(found[0.0, row] != found[1.0, row] for row in range(len(read)))


@torch.no_grad()
def generated(model, run, read, alpha):
    """[(symbols up to their end, score)] of the four best hypotheses."""
    lm, special = run.cfg.model.family == 'lm', run.vocab.ids
    prompt = [run.cfg.model.ids.start, *read] if lm else read
    never = sorted({special.pad, special.bos} - {-1, special.eos}) + [*range(len(run.vocab), model.config.vocab_size)]
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        num_beams=4,
        num_return_sequences=4,
        length_penalty=alpha,
        early_stopping='never',
        max_new_tokens=run.cfg.eval.max_decode_length,
        pad_token_id=max(special.pad, 0),
        bad_words_ids=[[id_] for id_ in never] or None,
        return_dict_in_generate=True,
        output_scores=True,
    )
    hypotheses = [row[len(prompt) if lm else 1 :].tolist() for row in output.sequences]
    ended = [tokens[: tokens.index(special.eos) + 1] if special.eos in tokens else tokens for tokens in hypotheses]
    return list(zip(ended, output.sequences_scores.tolist(), strict=True))


@pytest.mark.parametrize(
    'settings',
    [
        {'temperature': 0.7},
        {'top_k': 5},
        {'top_p': 0.6},
        {'min_p': 0.3},
        {'repetition_penalty': 1.7},
        {'temperature': 1.4, 'top_k': 9, 'top_p': 0.8, 'min_p': 0.2, 'repetition_penalty': 1.3},
    ],
    ids=str,
)
def test_what_is_left_to_draw_from_is_the_same(settings):
    """In the order that `generate` puts its processors in."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 23)).astype(np.float32) * 2
    read = rng.integers(0, 23, (50, 6))
    said = np.zeros((50, 23), bool)
    np.put_along_axis(said, read, True, axis=1)
    shape = Shape(
        **({'repetition_penalty': 1.0, 'temperature': 1.0, 'top_k': 0, 'top_p': 1.0, 'min_p': 0.0} | settings)
    )
    ours = np.asarray(shape.of(logits, said))
    config = transformers.GenerationConfig(do_sample=True, **({'top_k': 0} | settings))
    tiny = transformers.GPT2LMHeadModel(transformers.GPT2Config(vocab_size=23, n_embd=4, n_layer=1, n_head=1))
    config._eos_token_tensor = None
    processors = tiny._get_logits_processor(config, input_ids_seq_length=6)
    theirs = processors(torch.tensor(read), torch.tensor(logits)).numpy()
    np.testing.assert_array_equal(np.isfinite(ours), np.isfinite(theirs))
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)
    assert set(settings) == {'temperature'} or not np.array_equal(ours, logits)
    assert not (set(settings) - {'temperature', 'repetition_penalty'}) or not np.isfinite(ours).all()
