#!/bin/bash
# The quickstart's whole chain in its short form, what it leaves, and the texts that it refuses.
set -u
build=$(dirname "$1")
quickstart=$(dirname "$0")/../scripts/quickstart
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
failed=0

complain() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# refuses PATTERN FILE: exit code 1, the pattern on stderr, and nothing written
refuses() {
    local code=0
    "$quickstart" --short --build-dir "$build" --out "$folder/never" "$2" >"$folder/stdout" 2>"$folder/stderr" || code=$?
    [ $code -eq 1 ] || complain "exit code $code, not 1, for $2"
    grep -q "$1" "$folder/stderr" || complain "'$1' is not said of $2: $(head -c 300 "$folder/stderr")"
    [ ! -e "$folder/never" ] || complain "$2 was refused, but a folder was made"
}

# ---- texts that it refuses ----
refuses 'no such file' "$folder/nowhere.txt"
refuses 'no file that can be read' "$folder"
: >"$folder/empty.txt"
refuses '0 bytes; at least 100000' "$folder/empty.txt"
seq 1000 >"$folder/tiny.txt"
refuses 'at least 100000' "$folder/tiny.txt"
(seq 20000 && printf 'caf\351\n') >"$folder/latin1.txt"
refuses 'not UTF-8' "$folder/latin1.txt"

# ---- the chain, over what an earlier run left ----
cat /usr/share/common-licenses/* >"$folder/a text.txt"
mkdir -p "$folder/out/model/iter_0000999" && touch "$folder/out/mine"
"$quickstart" --short --build-dir "$build" --out "$folder/out" "$folder/a text.txt" >"$folder/stdout" 2>"$folder/stderr" ||
    complain "it left with exit code $?: $(tail -n 5 "$folder/stderr")"
grep -q 'holds an earlier run; it is replaced: model' "$folder/stdout" || complain "it does not say what it replaces"
[ ! -e "$folder/out/model/iter_0000999" ] || complain "a model of an earlier run stays"
[ -e "$folder/out/mine" ] || complain "it takes away what is not its own"
grep -q 'bits per byte [0-9]' "$folder/stdout" || complain "no bits per byte"
grep -q 'iteration *20/20' "$folder/stderr" || complain "no progress line of the last update"
for name in config.json model.safetensors tokenizer.json; do
    [ -s "$folder/out/model/iter_0000020/$name" ] || complain "the model's folder has no $name"
done
[ "$(grep -c lm_loss "$folder/out/metrics.jsonl")" -eq 20 ] || complain "metrics.jsonl does not have 20 updates"
grep -q '</svg>' "$folder/out/loss.svg" || complain "loss.svg is no picture"
[ "$(wc -c <"$folder/out/sample.txt")" -gt 200 ] || complain "200 tokens are more than $(wc -c <"$folder/out/sample.txt") bytes"

echo "$failed failed"
[ $failed -eq 0 ]
