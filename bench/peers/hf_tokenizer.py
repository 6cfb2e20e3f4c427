#!/usr/bin/env python3
"""Hugging Face's tokenizers, as a peer for bench_tokenizer: the same documents, one thread.

Usage: hf_tokenizer.py TOKENIZER TEXT RUNS     (pip install tokenizers)

TOKENIZER is a tokenizer.json, or a folder that holds it or vocab.json and merges.txt. Says its name, then answers
"encode" and "decode" with the seconds of the fastest run, and "ids" with their number and the ids.
"""
import array
import os
import sys
import time

os.environ["TOKENIZERS_PARALLELISM"] = "false"
import tokenizers  # noqa: E402  (reads the variable)


def load(path):
    if not os.path.isdir(path):
        return tokenizers.Tokenizer.from_file(path)
    if os.path.exists(os.path.join(path, "tokenizer.json")):
        return tokenizers.Tokenizer.from_file(os.path.join(path, "tokenizer.json"))
    files = (os.path.join(path, name) for name in ("vocab.json", "merges.txt"))
    return tokenizers.ByteLevelBPETokenizer(*files)._tokenizer


def fastest(call, runs):
    best = float("inf")
    for i in range(runs + 1):
        start = time.perf_counter()
        result = call()
        if i > 0:
            best = min(best, time.perf_counter() - start)
    return best, result


def main():
    tokenizer, runs = load(sys.argv[1]), int(sys.argv[3])
    with open(sys.argv[2], "rb") as file:
        documents = [d for d in file.read().decode().split("\n\n") if d]
    encode = getattr(tokenizer, "encode_batch_fast", tokenizer.encode_batch)
    print("tokenizers " + tokenizers.__version__, flush=True)
    ids = []
    for line in sys.stdin:
        if line == "encode\n":
            seconds, encodings = fastest(lambda: encode(documents, add_special_tokens=False), runs)
            ids = [e.ids for e in encodings]
            print(seconds, flush=True)
        elif line == "decode\n":
            print(fastest(lambda: tokenizer.decode_batch(ids, skip_special_tokens=False), runs)[0], flush=True)
        else:
            print(sum(map(len, ids)), flush=True)
            sys.stdout.buffer.write(array.array("i", [i for d in ids for i in d]).tobytes())
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
