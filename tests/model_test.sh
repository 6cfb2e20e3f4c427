#!/bin/bash
# The program with a model, on two ranks: train, resume, inspect, eval, generate, and what is refused before it starts.
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
    [ $got -eq "$code" ] || complain "exit code $got, not $code: $*: $(head -c 800 err)"
    grep -qe "$pattern" out err || complain "'$pattern' is not in: $*: $(head -c 800 out err)"
}

for i in $(seq 300); do
    printf 'The cat number %d sat on the mat,\nand it was good.\n\n' "$i"
done >text.txt
mkdir words
expect 0 '300 tokens' "$cleave" tokenizer train --input text.txt --vocab-size 300 --output words/tokenizer.json
expect 0 '300 documents' "$cleave" preprocess --input text.txt --tokenizer-model words --output-prefix data --append-eod

# What a Megatron script says, in a file; the rows of Megatron's that have no effect here are noted and pass.
cat >run.yaml <<'END'
num-layers: 2
hidden-size: 64
num-attention-heads: 4
group-query-attention: true
num-query-groups: 2
swiglu: true
normalization: RMSNorm
position-embedding-type: rope
disable-bias-linear: true
untie-embeddings-and-output-weights: true
seq-length: 32
micro-batch-size: 2
global-batch-size: 8
lr: 3.0e-3
lr-decay-style: cosine
lr-decay-iters: 100
hidden-dropout: 0
attention-dropout: 0
data-path: [data_text_document]
tokenizer-model: words
tensor-model-parallel-size: 2
sequence-parallel: true
transformer-impl: local
save: run
END
expect 0 'transformer-impl has no effect' "$mpirun" -n 2 "$cleave" train --config run.yaml --train-iters 30 --metrics m
[ "$(grep -c '"lm_loss"' m)" -eq 30 ] || complain "metrics: $(grep -c '"lm_loss"' m) lines, not 30"
expect 0 'iteration 30' "$cleave" inspect run
expect 0 'llama: 2 layers, hidden 64' "$cleave" inspect run/iter_0000030
expect 0 '40/40' "$mpirun" -n 2 "$cleave" train --config run.yaml --load run --train-iters 40
expect 0 'bits per byte' "$mpirun" -n 2 "$cleave" eval --load run --input text.txt --tensor-model-parallel-size 2

# The same words on one rank and on two, and nothing else on stdout.
generate=(generate --load run --prompt 'The cat' --max-new-tokens 12 --temperature 0)
expect 0 '^The cat' "$cleave" "${generate[@]}"
cp out one
expect 0 '^The cat' "$mpirun" -n 2 "$cleave" "${generate[@]}" --tensor-model-parallel-size 2
cmp one out || complain "another text on two ranks: $(cat one out)"

# ---- refused before anything runs, in words, by all ranks ----
expect 1 'num-layers is 3, but the model has 2' "$cleave" train --config run.yaml --tensor-model-parallel-size 1 \
    --no-sequence-parallel --load run --num-layers 3 --train-iters 40
expect 2 'context parallelism is not in this version' "$mpirun" -n 2 "$cleave" train --config run.yaml --context-parallel-size 2
expect 2 'micro-batch-size 0 is out of range' "$cleave" train --config run.yaml --micro-batch-size 0
expect 1 'hidden-size 64 .* num-attention-heads 5; use 4 or 8' "$mpirun" -n 2 "$cleave" train --config run.yaml \
    --num-attention-heads 5 --train-iters 1
[ "$(grep -c 'num-attention-heads 5' err)" -eq 1 ] || complain "the error does not stand there once: $(cat err)"
expect 1 '3 ranks' "$mpirun" -n 3 "$cleave" train --config run.yaml --train-iters 1

echo "$failed failed"
[ $failed -eq 0 ]
