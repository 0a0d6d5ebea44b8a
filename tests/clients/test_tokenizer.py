"""Hugging Face's own tokenizers package against a server that was given the same tokenizer.json.

The tokenizers are trained here, on the texts of this repository, so nothing is downloaded: the kinds
that GPT-2, Qwen, Llama 2, BERT and T5 use.

Usage: test_tokenizer.py SERVER_BINARY DIRECTORY
"""

import http.client
import json
import pathlib
import re
import subprocess
import sys
import unittest

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

SERVER, DIRECTORY = sys.argv[1], pathlib.Path(sys.argv[2])
MARKS = ["<|im_start|>", "<|im_end|>"]
ROOT = pathlib.Path(__file__).parent.parent.parent
TEXTS = [path.read_text() for path in [*sorted(ROOT.glob("defaults/*.yml")), *sorted(ROOT.glob("docs/*.md"))]]
QWEN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_level(pre_tokenizer):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    return tokenizer, trainers.BpeTrainer(
        vocab_size=3000, special_tokens=MARKS, initial_alphabet=alphabet, show_progress=False)


def gpt2():
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def qwen():
    return byte_level(pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(QWEN), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]))


def llama2():
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence([
        decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(),
        decoders.Strip(" ", 1, 0)])
    special = ["<unk>", *MARKS, *(f"<0x{byte:02X}>" for byte in range(256))]
    return tokenizer, trainers.BpeTrainer(
        vocab_size=3000, special_tokens=special, show_progress=False)


def bert():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer, trainers.WordPieceTrainer(
        vocab_size=3000, special_tokens=["[UNK]", *MARKS], show_progress=False)


def t5():
    tokenizer = Tokenizer(models.Unigram())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    return tokenizer, trainers.UnigramTrainer(
        vocab_size=2000, unk_token="<unk>", special_tokens=["<unk>", *MARKS], show_progress=False)


KINDS = {kind.__name__: kind for kind in (gpt2, qwen, llama2, bert, t5)}
SAMPLES = [
    "hello", "Hello, World! It's 12345 o'clock.", "  leading and  double  spaces ", "\n\n\ttabs\n",
    "naïve café 你好，世界 😀👩‍👩‍👧 مرحبا", "x = {'a': [1, 2]}  # code\r\n", "e\u0301 and é", "1234567890" * 5,
    "a" * 300, *(text[:700] for text in TEXTS[::2]),
]


class Server:
    def __init__(self, tokenizers):
        lines = ["version: 1", "models:"]
        for name, tokenizer in tokenizers.items():
            tokenizer.save(str(DIRECTORY / f"{name}.json"))
            lines.append(f"  - {{ name: {name}, context_length: 100000, tokenizer: {{ file: {name}.json }} }}")
        (DIRECTORY / "models.yml").write_text("\n".join(lines) + "\n")
        (DIRECTORY / "responses.yml").write_text(
            "version: 1\nresponses:\n"
            "  - { id: filler, match: { exact: [filler] }, synthetic: { tokens: 500 } }\n"
            "default: { content: '{last_user_message}' }\n")
        self.process = subprocess.Popen(
            [SERVER, "--host", "127.0.0.1", "--port", "0", "--models", str(DIRECTORY / "models.yml"),
             "--responses", str(DIRECTORY / "responses.yml")], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if found := re.search(r"listening on http://(\S+)", line):
                self.connection = http.client.HTTPConnection(found[1], timeout=60)
                return
        raise SystemExit(f"the server ended with {self.process.wait()}")

    def post(self, path, body):
        self.connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = self.connection.getresponse()
        text = response.read().decode()
        assert response.status == 200, text
        return text

    def ask(self, path, body):
        return json.loads(self.post(path, body))

    def close(self):
        self.connection.close()
        self.process.terminate()
        self.process.communicate()


def user(text):
    return [{"role": "user", "content": text}]


class Tokens(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        cls.tokenizers = {}
        for name, kind in KINDS.items():
            tokenizer, trainer = kind()
            tokenizer.train_from_iterator(TEXTS, trainer)
            cls.tokenizers[name] = tokenizer
        cls.server = Server(cls.tokenizers)

    @classmethod
    def tearDownClass(cls):
        cls.server.close()

    def each(self):
        for name, tokenizer in self.tokenizers.items():
            for text in SAMPLES:
                self.about = f"{name}: {text[:40]!r}"
                yield name, tokenizer, text

    def test_the_ids_and_names_of_a_text(self):
        for name, tokenizer, text in self.each():
            expected = tokenizer.encode(text, add_special_tokens=False)
            got = self.server.ask(
                "/tokenize", {"model": name, "prompt": text, "return_token_strs": True})
            self.assertEqual(got["tokens"], expected.ids, self.about)
            # Not `expected.tokens`, which spells what is unknown as it stood in the text.
            names = [tokenizer.id_to_token(id) for id in expected.ids]
            self.assertEqual(got["token_strs"], names, self.about)
            self.assertEqual(got["count"], len(expected.ids))

    def test_the_way_back(self):
        for name, tokenizer, text in self.each():
            ids = tokenizer.encode(text, add_special_tokens=False).ids
            got = self.server.ask("/detokenize", {"model": name, "tokens": ids})
            text = tokenizer.decode(ids, skip_special_tokens=False)
            self.assertEqual(got["prompt"], text, self.about)

    def test_a_chat_is_what_the_tokenizer_makes_of_chatml(self):
        for name, tokenizer, text in self.each():
            if name in ("llama2", "t5"):
                # They put a space before each part of a text that stands between special tokens.
                continue
            chatml = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            expected = tokenizer.encode(chatml, add_special_tokens=False).ids
            got = self.server.ask("/tokenize", {"model": name, "messages": user(text)})
            self.assertEqual(got["tokens"], expected, self.about)
            usage = self.server.ask(
                "/v1/chat/completions", {"model": name, "messages": user(text)})["usage"]
            self.assertEqual(usage["prompt_tokens"], len(expected))

    def test_an_answer_is_as_many_chunks_as_tokens_and_says_all_of_it(self):
        for name, tokenizer, text in self.each():
            body = {"model": name, "messages": user(text), "stream": True,
                    "stream_options": {"include_usage": True}}
            events = self.server.post("/v1/chat/completions", body).split("\n\n")
            chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
            usage = chunks.pop()["usage"]
            pieces = [chunk["choices"][0]["delta"]["content"] for chunk in chunks[1:-1]]
            expected = tokenizer.encode(text, add_special_tokens=False).ids
            self.assertEqual("".join(pieces), text, self.about)
            self.assertEqual(len(pieces), max(len(expected), 1))
            self.assertEqual(usage["completion_tokens"], len(pieces))

    def test_filler_has_as_many_tokens_as_were_asked_for(self):
        for name, tokenizer in self.tokenizers.items():
            with self.subTest(tokenizer=name):
                answer = self.server.ask(
                    "/v1/chat/completions", {"model": name, "messages": user("filler")})
                self.assertEqual(answer["usage"]["completion_tokens"], 500)
                if name in ("gpt2", "qwen"):
                    content = answer["choices"][0]["message"]["content"]
                    ids = tokenizer.encode(content, add_special_tokens=False).ids
                    self.assertEqual(len(ids), 500)


if __name__ == "__main__":
    result = unittest.main(argv=["test_tokenizer.py"], exit=False, verbosity=2).result
    failed = len(result.failures) + len(result.errors)
    print(f"tokenizers for Python: {result.testsRun - failed} passed, "
          f"{failed} failed", flush=True)
    sys.exit(failed > 0)
