"""Imported models write what `generate` of transformers writes, read by the tokenizer that transformers reads with."""

import numpy as np
import pytest
import tiny_tokenizers
from others import REASON, randomise, torch

from jaxformer.decode.continuation import Continuation
from jaxformer.decode.lines import decode_lines
from jaxformer.decode.open import on_every_device, open_run
from jaxformer.decode.predict import Decoder
from jaxformer.inspection import import_

transformers = pytest.importorskip('transformers', reason=f'transformers is {REASON}')
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

LINES = ['the cat sat on the mat', 'dog', 'A quick brown fox; \N{GRINNING FACE} </s>', 'return lower']
MODELS = {
    'gpt2': ('GPT2LMHeadModel', {
        'vocab_size': 300, 'n_positions': 100, 'n_embd': 15, 'n_layer': 2, 'n_head': 3, 'n_inner': 22,
        'bos_token_id': 299, 'eos_token_id': 299, 'tie_word_embeddings': False,
    }),
    'llama': ('LlamaForCausalLM', {
        'vocab_size': 320, 'hidden_size': 24, 'intermediate_size': 22, 'num_hidden_layers': 2,
        'num_attention_heads': 6, 'num_key_value_heads': 2, 'bos_token_id': 1, 'eos_token_id': 2,
        'max_position_embeddings': 100,
    }),
    'chat': ('LlamaForCausalLM', {  # its end is no usual one, and its padding is its end
        'vocab_size': 300, 'hidden_size': 24, 'intermediate_size': 22, 'num_hidden_layers': 2,
        'num_attention_heads': 6, 'num_key_value_heads': 2, 'bos_token_id': 1, 'eos_token_id': 2, 'pad_token_id': 2,
        'max_position_embeddings': 100,
    }),
    'marian': ('MarianMTModel', {
        'vocab_size': 61, 'd_model': 18, 'encoder_layers': 2, 'decoder_layers': 2, 'encoder_ffn_dim': 22,
        'decoder_ffn_dim': 22, 'encoder_attention_heads': 3, 'decoder_attention_heads': 3,
        'max_position_embeddings': 100, 'pad_token_id': 60, 'decoder_start_token_id': 60, 'eos_token_id': 0,
        'forced_eos_token_id': None, 'scale_embedding': True, 'share_encoder_decoder_embeddings': False,
        'tie_word_embeddings': False,
    }),
    't5': ('T5ForConditionalGeneration', {
        'vocab_size': 64, 'd_model': 13, 'd_kv': 5, 'd_ff': 22, 'num_layers': 2, 'num_heads': 3, 'pad_token_id': 0,
        'decoder_start_token_id': 0, 'eos_token_id': 1, 'tie_word_embeddings': False,
    }),
}  # fmt: skip


def made(kind, directory, sharpness=1.0):
    """(a model of transformers, the path of its tokenizer); it is imported as directory / 'run'.

    sharpness: of what it says but for the end; below 1 it ends more often.
    """
    architecture, settings = MODELS[kind]
    cls = getattr(transformers, architecture)
    model = cls(cls.config_class(**settings, attn_implementation='eager'))
    if kind == 't5':  # has a softmax of its own, which transformers 5 ties when it makes one
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    model = randomise(model, seed=3)
    with torch.no_grad():  # what is written has to depend on what is read
        for name, values in model.named_parameters():
            values *= 8 if 'encoder_attn' in name or 'EncDecAttention' in name else 1
            if kind == 'chat' and name == 'lm_head.weight':
                values[2] *= 3  # it does end
            if name == 'lm_head.weight':
                end = values[model.config.eos_token_id].clone()
                values *= sharpness
                values[model.config.eos_token_id] = end
    model.save_pretrained(directory / 'model')
    path = tiny_tokenizers.ALL[kind](directory / 'model')
    import_.run(directory / 'model', directory / 'run')
    return model, path


@pytest.mark.parametrize('kind', MODELS)
def test_the_same_symbols_by_greedy_search(kind, tmp_path):
    model, path = made(kind, tmp_path)
    run = open_run(tmp_path / 'run')
    reader = transformers.PreTrainedTokenizerFast(tokenizer_file=str(path), split_special_tokens=True)
    texts = decode_lines(tmp_path / 'run', None, LINES)
    found: set[int] = set()
    for line, text in zip(LINES, texts, strict=True):
        (ids,) = run.vocab.encode_texts([line])
        if '</s>' not in line:  # there transformers reads the end of a text, where its table has that symbol
            assert ids == reader(line, add_special_tokens=False)['input_ids']
        expected = generated(model, run, kind, ids)
        assert ours(run, ids)[: len(expected)] == expected
        assert text == run.vocab.join(run.vocab.decode(expected)).replace(
            '\n', '\\n' if run.cfg.model.family == 'lm' else ' '
        )
        found |= set(expected)
    if kind == 'chat':
        assert (run.vocab.ids.eos, run.cfg.model.ids.start, run.cfg.model.ids.pad) == (2, 1, -1) and 2 in found
    assert len(found) > 3  # a model that says one symbol for ever would hide any mistake


@torch.no_grad()
def generated(model, run, kind, ids):
    """What transformers writes, its end included."""
    family, special = run.cfg.model.family, run.vocab.ids
    prompt = [run.cfg.model.ids.start, *ids] if family == 'lm' else [*ids, special.eos]
    never = sorted({special.pad, special.bos} - {-1, special.eos}) + [*range(len(run.vocab), model.config.vocab_size)]
    output = model.generate(
        torch.tensor([prompt]),
        attention_mask=torch.ones(1, len(prompt), dtype=torch.long),
        do_sample=False,
        num_beams=1,
        max_new_tokens=run.cfg.eval.max_decode_length,
        pad_token_id=max(special.pad, 0),
        bad_words_ids=[[id_] for id_ in never] or None,
    )[0].tolist()
    return output[len(prompt) :] if family == 'lm' else output[1:]


def ours(run, ids):
    """The ids that are written here."""
    mesh, params = on_every_device(run)
    number = np.zeros(1, np.int32)
    if run.cfg.model.family == 'lm':
        found = Continuation(run.cfg, run.model, run.vocab, mesh).search(params, np.array([ids], np.int32), number)
    else:
        source = np.array([[*ids, run.vocab.ids.eos, run.cfg.model.ids.pad]], np.int32)
        found = Decoder(run.cfg, run.model, run.vocab, mesh).search(params, source, number)
    return np.asarray(found.tokens)[0, 0].tolist()
