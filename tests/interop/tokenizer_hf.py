#!/usr/bin/env python3
"""Our tokenizers against Hugging Face's library, id for id, in both directions.

Usage: tests/interop/tokenizer_hf.py [tokenizer.json | folder ...]      (pip install tokenizers)

Compiles the tokenizer's files into a shared library, trains a tokenizer with it and with the reference's trainer, and
encodes and decodes many texts with both: texts made of hard pieces, and random ids,
also with many small random tokenizers. Exit code 77 (skipped) when the
reference, a C compiler or a header is missing, 1 at the first difference.
"""
import ctypes
import glob
import json
import os
import random
import subprocess
import sys
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))

PIECES = [
    "hello", " world", "Hello", "HELLO", "'s", "'S", "'ll", "'RE", "\u2019s", "'\u017f", "don't", "I'M", "'", "''", "n't",
    " ", "  ", "    ", "\t", "\n", "\r\n", "\r", "\n\n", "\u00a0", "\u2003", "\u3000", "\u0085", "\u180e", "\ufeff", "\u200b",
    "1", "12", "123", "1234", "12345678", " 42", "\u0663\u0664", "\u2167", "\u00bd", "\u00b2", "3.14", "1,000",
    ".", "...", "!?", " -- ", "(x)", "[", "]", "{}", ";", "=", "==", "\\n", "/*", "*/", "#", "@", "_", "a_b",
    "caf\u00e9", "e\u0301cole", "na\u00efve", "\u00fcber", "stra\u00dfe", "\u01c5", "\u02b0", "\u0301", "q\u0323\u0307",
    "\u4e2d\u6587", "\u65e5\u672c\u8a9e", "\ud55c\uad6d\uc5b4", "\u0939\u093f\u0928\u094d\u0926\u0940", "\u0e44\u0e17\u0e22",
    "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd", "\u0440\u0443\u0441", "\u0395\u03bb", "\U0001f389",
    "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "\U0001d400", "\U00010400",
    "\u2581", "\u2581\u2581", "<s>", "</s>", "<unk>", "<|endoftext|>", "<|im_start|>", "<|begin_of_text|>", "<think>",
    "<0x41>", "<|", "|>", "\x00", "\x7f", "ab" * 20, "aaaaaaa", "zzzz", "int main(void)\n{\n    return 0;\n}\n",
]


class Status(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 1020)]


class Ids(ctypes.Structure):
    _fields_ = [("id", ctypes.POINTER(ctypes.c_int32)), ("count", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


class Text(ctypes.Structure):
    _fields_ = [("data", ctypes.c_void_p), ("length", ctypes.c_size_t), ("capacity", ctypes.c_size_t)]


def skip(why):
    print(f"skipped: {why}")
    sys.exit(77)


def check(status):
    if status.code != 0:
        sys.exit(f"cleave: {status.text.decode(errors='replace')}")


class Library:
    def __init__(self, folder):
        path = os.path.join(folder, "tokenizer.so")
        sources = glob.glob(f"{ROOT}/src/base/*.c") + glob.glob(f"{ROOT}/src/format/json*.c")
        sources += glob.glob(f"{ROOT}/src/format/tokenizer*.c") + glob.glob(f"{ROOT}/src/format/unicode*.c")
        sources = [s for s in sources if not s.endswith("_test.c")]
        command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-O2", "-shared", "-fPIC", f"-I{ROOT}/src", *sources]
        command += ["-o", path, "-lutf8proc", "-lxxhash", "-lm"]
        try:
            built = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            skip("no C compiler")
        if built.returncode != 0:
            skip(f"the tokenizer does not compile here: {built.stderr[:500]}")
        self.c = ctypes.CDLL(path)
        for name in ("load", "save", "encode", "decode"):
            getattr(self.c, f"clv_tokenizer_{name}").restype = Status
        self.c.clv_log_setup(0, 0, 1)  # errors only
        self.c.clv_bpe_trainer_finish.restype = Status
        self.c.clv_bpe_trainer_create.restype = ctypes.c_void_p
        self.c.clv_tokenizer_vocab_size.restype = ctypes.c_int64

    def load(self, path):
        tok = ctypes.c_void_p()
        check(self.c.clv_tokenizer_load(ctypes.byref(tok), path.encode()))
        return tok

    def train(self, texts, vocab, specials):
        trainer = ctypes.c_void_p(self.c.clv_bpe_trainer_create())
        for text in texts:
            data = text.encode()
            self.c.clv_bpe_trainer_feed(trainer, data, ctypes.c_size_t(len(data)))
        names = (ctypes.c_char_p * len(specials))(*[s.encode() for s in specials])
        tok = ctypes.c_void_p()
        check(self.c.clv_bpe_trainer_finish(trainer, ctypes.c_int64(vocab), names, ctypes.c_size_t(len(specials)),
                                            ctypes.byref(tok)))
        return tok

    def encode(self, tok, text, special):
        ids, data = Ids(), text.encode()
        check(self.c.clv_tokenizer_encode(tok, data, ctypes.c_size_t(len(data)), ctypes.c_bool(special),
                                          ctypes.byref(ids)))
        result = ids.id[: ids.count]
        self.c.clv_ids_free(ctypes.byref(ids))
        return result

    def decode(self, tok, ids, skip_special):
        text, array = Text(), (ctypes.c_int32 * max(len(ids), 1))(*ids)
        check(self.c.clv_tokenizer_decode(tok, array, ctypes.c_size_t(len(ids)), ctypes.c_bool(skip_special),
                                          ctypes.byref(text)))
        result = ctypes.string_at(text.data, text.length) if text.data else b""
        self.c.clv_text_free(ctypes.byref(text))
        return result


def same(what, given, ours, theirs):
    if ours != theirs:
        sys.exit(f"{what} differs for {given!r}\n  cleave    {ours!r}\n  reference {theirs!r}")


def encode_once(reference, start, text, special):
    """A text that begins with the template's tokens itself gets them once from us, twice from the reference."""
    body = reference.encode(text, add_special_tokens=False).ids
    if not special:
        return body
    whole = reference.encode(text, add_special_tokens=True).ids
    return whole[len(start) :] if start and body[: len(start)] == start else whole


def compare(library, name, tok, reference, rounds):
    random.seed(7)
    start = reference.encode("", add_special_tokens=True).ids
    texts = list(PIECES) + ["".join(random.choices(PIECES, k=random.randint(1, 12))) for _ in range(rounds)]
    for text in texts:
        for special in (False, True):
            theirs = encode_once(reference, start, text, special)
            same(f"{name}: encoding", text, library.encode(tok, text, special), theirs)
    size = library.c.clv_tokenizer_vocab_size(tok)
    ids = [i for i in range(size) if reference.id_to_token(i) is not None]
    low = [i for i in ids if i < 600]
    for _ in range(rounds):
        some = random.choices(random.choice((ids, low)), k=random.randint(0, 20))
        for skip_special in (False, True):
            theirs = reference.decode(some, skip_special_tokens=skip_special).encode()
            same(f"{name}: decoding", some, library.decode(tok, some, skip_special), theirs)
    print(f"{name}: {len(texts)} texts, {rounds} lists of ids: equal")


def compare_training(library, folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    texts = ["".join(random.Random(i).choices(PIECES, k=200)) for i in range(40)]
    texts += [open(path, encoding="utf-8").read() for path in sorted(glob.glob(f"{ROOT}/src/*/*.[ch]"))]
    ours = library.train(texts, 1500, ["<|endoftext|>", "<|pad|>"])
    path = os.path.join(folder, "tokenizer.json")
    check(library.c.clv_tokenizer_save(ours, path.encode()))
    saved = Tokenizer.from_file(path)
    compare(library, "trained by cleave, read by the reference", ours, saved, 2000)

    theirs = Tokenizer(models.BPE())
    theirs.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    theirs.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=1498, min_frequency=2, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    theirs.train_from_iterator(texts, trainer)
    merges = [json.loads(t.to_str())["model"]["merges"] for t in (saved, theirs)]
    same("training: merges", "the sources", *merges)
    print(f"training: {len(merges[0])} merges equal the reference's")


def small_tokenizer(r):
    """A random tokenizer.json over few letters: every flag, added token rule, normalizer, splitter and decoder."""
    letters = list("abc\u00e9\u2581 ") + ["\u0120", "e\u0301"[1]]
    tokens = [c for c in letters if r.random() < 0.8] or ["a"]
    merges = []
    for _ in range(r.randint(0, 12)):
        left, right = r.choice(tokens), r.choice(tokens)
        if (left, right) not in merges:
            merges.append((left, right))
            tokens += [left + right] if left + right not in tokens else []
    names = ["<unk>"] + tokens + ([f"<0x{b:02X}>" for b in range(256)] if r.random() < 0.4 else [])
    flip = lambda: r.random() < 0.5
    contents = [c for c in ["<s>", "<s>b", "xy", "b c", "\u00e9b"] if c not in names]
    added = [{"id": len(names) + i, "content": c, "single_word": flip(), "lstrip": flip(), "rstrip": flip(),
              "normalized": flip(), "special": flip()} for i, c in enumerate(contents)]
    mark = {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": r.choice(["always", "first", "never"]),
            "split": flip()}
    replace = lambda old, new: {"type": "Replace", "pattern": {"String": old}, "content": new}
    byte_level = {"type": "ByteLevel", "add_prefix_space": flip(), "trim_offsets": False, "use_regex": flip()}
    normalizer = r.choice([None, {"type": "NFC"}, {"type": "Sequence", "normalizers": [
        {"type": "NFC"}, {"type": "Prepend", "prepend": "\u2581"}, replace(" ", "\u2581")]}, replace("ab", "c")])
    if normalizer and normalizer["type"] == "Replace" and mark["prepend_scheme"] == "first":
        mark["prepend_scheme"] = "always"  # the reference's "first" depends on how its offsets follow a replacement
    splitter = r.choice([None, mark, byte_level, {"type": "Sequence", "pretokenizers": [mark, byte_level]}])
    fallback = [replace("\u2581", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": r.randint(0, 2), "stop": 0}]
    decoder = r.choice([None, byte_level, mark, {"type": "ByteFallback"}, {"type": "Sequence", "decoders": fallback},
                        {"type": "Sequence", "decoders": [fallback[3], fallback[1]]}])
    spot = {"SpecialToken": {"id": "<s>", "type_id": 0}}
    template = {"type": "TemplateProcessing", "single": r.choice([[spot], []]) + [{"Sequence": {"id": "A", "type_id": 0}}]
                + r.choice([[spot, spot], []]), "pair": [{"Sequence": {"id": "A", "type_id": 0}},
                                                        {"Sequence": {"id": "B", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [len(names)], "tokens": ["<s>"]}}}
    pairs = [f"{a} {b}" for a, b in merges] if flip() and " " not in "".join(tokens) else [list(m) for m in merges]
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": normalizer,
            "pre_tokenizer": splitter, "post_processor": r.choice([None, template]), "decoder": decoder,
            "model": {"type": "BPE", "dropout": None, "unk_token": r.choice([None, "<unk>"]), "fuse_unk": flip(),
                      "continuing_subword_prefix": None, "end_of_word_suffix": None, "byte_fallback": flip(),
                      "ignore_merges": flip(), "vocab": {t: i for i, t in enumerate(names)}, "merges": pairs}}


def compare_small(library, folder, count):
    from tokenizers import Tokenizer

    pieces = ["a", "b", "c", "ab", "bc", "\u00e9", "e\u0301", " ", "  ", "\u2581", "<s>", "xy", "b c", "\u00e9b", "x", "\n",
              "\u4e2d", "\u3000", "_", "'s", "1"]
    path = os.path.join(folder, "small.json")
    for seed in range(count):
        r = random.Random(seed)
        spec = small_tokenizer(r)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(spec, file, ensure_ascii=r.random() < 0.5)
        reference, tok = Tokenizer.from_file(path), library.load(path)
        template = spec["post_processor"]
        start = [len(spec["model"]["vocab"])] if template and "SpecialToken" in template["single"][0] else []
        for _ in range(60):
            text = "".join(r.choices(pieces, k=r.randint(0, 12)))
            special = r.random() < 0.5
            theirs = encode_once(reference, start, text, special)
            same(f"small tokenizer {seed}: encoding", text, library.encode(tok, text, special), theirs)
            some = r.choices(range(reference.get_vocab_size()), k=r.randint(0, 9))
            theirs = reference.decode(some, skip_special_tokens=special).encode()
            same(f"small tokenizer {seed}: decoding", some, library.decode(tok, some, special), theirs)
        library.c.clv_tokenizer_free(tok)
    print(f"{count} small tokenizers: equal")


def reference_of(path):
    """A tokenizer.json, or a folder with GPT-2's vocab.json and merges.txt."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    if not os.path.isdir(path):
        return Tokenizer.from_file(path)
    reference = Tokenizer(models.BPE.from_file(f"{path}/vocab.json", f"{path}/merges.txt"))
    reference.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    reference.decoder = decoders.ByteLevel()
    reference.add_special_tokens(["<|endoftext|>"])
    return reference


def main():
    try:
        import tokenizers  # noqa: F401
    except ImportError:
        skip("pip install tokenizers")
    with tempfile.TemporaryDirectory() as folder:
        library = Library(folder)
        compare_training(library, folder)
        compare_small(library, folder, 400)
        for path in sys.argv[1:]:
            compare(library, path, library.load(path), reference_of(path), 3000)


main()
