#!/bin/bash
# The program from outside, without a model: usage, exit codes, one message on several ranks, tokenizers, token files.
set -u
cleave=$1
mpirun=$2
folder=$(mktemp -d) || exit 2
trap 'rm -rf "$folder"' EXIT
cd "$folder" || exit 2
failed=0

complain() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# expect CODE PATTERN COMMAND...: the exit code, and a line of stdout or stderr that matches
expect() {
    local code=$1 pattern=$2
    shift 2
    timeout 60 "$@" >out 2>err </dev/null
    local got=$?
    [ $got -eq "$code" ] || complain "exit code $got, not $code: $*: $(head -c 300 err)"
    grep -qe "$pattern" out err || complain "'$pattern' is not in: $*: $(head -c 300 out err)"
}

# ---- waiting threads soon sleep, sooner where ranks share cores; who chose otherwise is heard ----
expect 2 "GOMP_SPINCOUNT = '2000'" env OMP_DISPLAY_ENV=VERBOSE "$cleave" eval
expect 2 "GOMP_SPINCOUNT = '300'" "$mpirun" -n 2 --bind-to none env OMP_DISPLAY_ENV=VERBOSE "$cleave" eval
expect 2 "GOMP_SPINCOUNT = '7000'" env OMP_DISPLAY_ENV=VERBOSE GOMP_SPINCOUNT=7000 "$cleave" eval
grep -q "'2000'" err && complain "a chosen GOMP_SPINCOUNT is not kept"

# ---- usage ----
expect 0 'tokenizer encode' "$cleave" --help
[ -s err ] && complain "--help writes to stderr"
expect 0 '^cleave [0-9]' "$cleave" --version
expect 0 '  --vocab-size N' "$cleave" tokenizer train --help
expect 2 'no command' "$cleave"
expect 2 'nearest: inspect' "$cleave" inspct
expect 2 'encode, decode' "$cleave" tokenizer learn
expect 2 'nearest: --vocab-size' "$cleave" tokenizer train --vocab-sise 300
expect 2 'option of train, generate, not of inspect' "$cleave" inspect --seed 1
expect 2 'no PATH' "$cleave" inspect
expect 2 "'more' is not an option" "$cleave" inspect one more
expect 1 'nowhere' "$cleave" inspect nowhere
[ -s out ] && complain "an error writes to stdout"

# ---- on several ranks an error stands there once, and all leave with its code ----
expect 2 'nearest: inspect' "$mpirun" -n 3 "$cleave" inspct
[ "$(grep -c 'unknown command' err)" -eq 1 ] || complain "the error stands there $(grep -c 'unknown command' err) times"
expect 1 'nowhere' "$mpirun" -n 3 "$cleave" inspect nowhere
[ "$(grep -c 'nowhere' err)" -eq 1 ] || complain "the error stands there $(grep -c 'nowhere' err) times"

# ---- a tokenizer and token files ----
for i in $(seq 200); do
    printf 'The cat number %d sat on the mat,\nand it was good: caf\303\251.\n\n' "$i"
done >text.txt
expect 0 '300 tokens' "$cleave" tokenizer train --input text.txt --vocab-size 300 --output tokenizer.json \
    --holdout-percent 10
expect 0 'byte level' "$cleave" tokenizer inspect --tokenizer-model tokenizer.json
expect 0 'BPE' "$cleave" inspect tokenizer.json
printf 'the cat sat\non caf\303\251' >sample
"$cleave" tokenizer encode --tokenizer-model tokenizer.json <sample >ids || complain "encode"
"$cleave" tokenizer decode --tokenizer-model tokenizer.json --input ids >back || complain "decode"
cmp sample back || complain "decoding the ids does not give the text back"
echo '1 2 99999' >bad_ids
expect 1 '99999' "$cleave" tokenizer decode --tokenizer-model tokenizer.json --input bad_ids
expect 0 '19 documents.*held out' "$cleave" preprocess --input text.txt --tokenizer-model tokenizer.json \
    --output-prefix rest --holdout-prefix held --holdout-percent 10 --append-eod
expect 0 '181 documents, 181 sequences' "$cleave" inspect rest_text_document
expect 0 '19 documents, 19 sequences, .* of 2 bytes' "$cleave" inspect held_text_document.idx
truncate -s 40 held_text_document.idx
expect 1 'held_text_document.idx' "$cleave" inspect held_text_document
expect 2 'no --tokenizer-model' "$cleave" preprocess --input text.txt
"$cleave" inspect rest_text_document >/dev/full 2>err
[ $? -eq 1 ] || complain "a full disk behind stdout is not noticed"

# ---- a file of options ----
printf 'input: text.txt\nvocab_size: 280\noutput: other.json\n' >run.yaml
expect 0 '290 tokens' "$cleave" tokenizer train --vocab-size 290 --config run.yaml
printf 'input: text.txt\nvocab_sice: 280\n' >bad.yaml
expect 2 'bad.yaml:2: .*--vocab-size' "$cleave" tokenizer train --config bad.yaml

echo "$failed failed"
[ $failed -eq 0 ]
