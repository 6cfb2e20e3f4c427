#!/bin/bash
# Faults of the whole program on several ranks: killed ranks and jobs, signals to one rank, losses that are not finite,
# damaged files, sizes that do not fit, a full disk. Each must end soon, in words, with the last checkpoint as it was.
set -u
cleave=$1
mpirun=$2
folder=$(mktemp -d) || exit 2
trap 'umount small 2>/dev/null; rm -rf "$folder"' EXIT
cd "$folder" || exit 2
failed=0

complain() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

# expect CODE PATTERN COMMAND...: the exit code within SECONDS_ALLOWED (20), and a line of output that matches, once
allowed=20
expect() {
    local code=$1 pattern=$2
    shift 2
    timeout $allowed "$@" >out 2>err </dev/null
    local got=$?
    [ $got -eq "$code" ] || complain "exit code $got, not $code: $*: $(tail -c 600 err)"
    case $(cat out err | grep -ce "$pattern") in
        0) complain "'$pattern' is not in: $*: $(tail -c 600 err)" ;;
        1) ;;
        *) [ "$code" -eq 0 ] || complain "'$pattern' stands there more than once: $*: $(tail -c 600 err)" ;;
    esac
}

# wait_for SECONDS COMMAND...: until it succeeds
wait_for() {
    local tries=$(($1 * 20))
    shift
    until "$@"; do
        tries=$((tries - 1))
        [ $tries -gt 0 ] || return 1
        sleep 0.05
    done
}

state() { # of a folder: the bytes of all its files
    (cd "$1" && find . -type f | sort | xargs cat | cksum)
}

for i in $(seq 100); do
    printf 'The cat number %d sat on the mat,\nand it was good.\n\n' "$i"
done >text.txt
mkdir words
expect 0 '290 tokens' "$cleave" tokenizer train --input text.txt --vocab-size 290 --output words/tokenizer.json
expect 0 '100 documents' "$cleave" preprocess --input text.txt --tokenizer-model words --output-prefix data --append-eod
cat >run.yaml <<'END'
num-layers: 2
hidden-size: 64
num-attention-heads: 4
seq-length: 32
micro-batch-size: 2
global-batch-size: 4
lr: 1.0e-3
lr-decay: 100
hidden-dropout: 0
attention-dropout: 0
data-path: [data_text_document]
tokenizer-model: words
check-decisions: true
END
train=("$cleave" train --config run.yaml)
two=("$mpirun" -n 2 "${train[@]}" --tensor-model-parallel-size 2 --sequence-parallel)

# ---- a rank that is killed takes the others with it, soon, and the last checkpoint loads ----
start_long() { # on two ranks, saving each 5 updates into $1; sets $job and $ranks
    "${two[@]}" --train-iters 1000000 --save "$1" --save-interval 5 --keep-last 2 >long.out 2>&1 &
    job=$!
    wait_for 20 test -e "$1/latest" || { echo "no checkpoint in $1: $(tail -c 300 long.out)"; exit 1; }
    ranks=($(pgrep -P $job))
}
start_long killed
kill -9 "${ranks[1]}"
since=$SECONDS
wait $job
code=$?
[ $code -ne 0 ] || complain "mpirun returns 0 although a rank was killed"
[ $((SECONDS - since)) -le 5 ] || complain "$((SECONDS - since)) s from the death of a rank to the end of the job"
expect 0 'iteration [0-9]' "$cleave" inspect killed

# ---- a job that is killed at any moment of a save leaves a checkpoint that loads ----
for moment in 0.00 0.013 0.031 0.052 0.077 0.11; do
    resume=$([ -e moments ] && echo --load moments)
    [ "$moment" \> 0.04 ] && resume+=' --async-save'
    "${two[@]}" $resume --train-iters 1000000 --save moments --save-interval 1 --keep-last 2 >long.out 2>&1 &
    job=$!
    before=$(cat moments/latest 2>/dev/null)
    wait_for 20 eval '[ "$(cat moments/latest 2>/dev/null)" != "$before" ]' || complain "no new checkpoint: $(tail -3 long.out)"
    sleep $moment
    kill -9 $job $(pgrep -P $job)
    wait $job 2>/dev/null
    expect 0 "iteration [0-9]" "$cleave" inspect moments
done
# ---- a save in the background ends in the same bytes as one in the way of the run ----
same_behind() { # RANKS OPTIONS...
    local run=("$mpirun" -n "$1" --oversubscribe "${train[@]}" --train-iters 12 --save-interval 3 --keep-last 1 --keep-every 6 "${@:2}")
    rm -rf front behind
    expect 0 'iteration *12 .*saved in front' "${run[@]}" --save front
    expect 0 'iteration *12 .*saved in behind .*background' "${run[@]}" --save behind --async-save
    [ "$(ls behind | xargs)" = 'iter_0000006 iter_0000012 latest' ] || complain "keep-last, keep-every: $(ls behind)"
    for file in model.safetensors training/optimizer.safetensors; do
        cmp front/iter_0000012/$file behind/iter_0000012/$file || complain "a save in the background differs: $file: $*"
    done
}
same_behind 2 --tensor-model-parallel-size 2 --sequence-parallel
same_behind 4 --pipeline-model-parallel-size 2 --use-distributed-optimizer --bf16

expect 0 'resumed moments' "$cleave" train --config run.yaml --load moments --save moments --train-iters 1
[ -z "$(find moments -maxdepth 1 -name 'iter_*.tmp')" ] || complain "leftovers stay: $(ls moments)"

# ---- a signal to one rank alone: all save and leave ----
for signal in TERM USR1; do
    start_long signal_$signal
    kill -$signal "${ranks[1]}"
    since=$SECONDS
    wait $job
    code=$?
    [ $code -eq 4 ] || complain "SIG$signal to one rank: exit code $code, not 4: $(tail -c 300 long.out)"
    [ $((SECONDS - since)) -le 5 ] || complain "SIG$signal: $((SECONDS - since)) s to the end"
    grep -q 'stopped by a signal after iteration [0-9]*, saved' long.out || complain "SIG$signal: $(tail -c 300 long.out)"
    at=$(sed -n 's/.*signal after iteration \([0-9]*\), saved.*/\1/p' long.out)
    expect 0 "iteration $at" "$cleave" inspect signal_$signal
done

# ---- a loss that is not finite ----
expect 0 'saved in good' "${two[@]}" --train-iters 3 --save good
was=$(state good)
resume=(--load good --override-opt-param-scheduler --lr-decay-style constant --train-iters 9)
expect 3 'iteration 5: .*not finite' "${two[@]}" "${resume[@]}" --lr 1e30 --save good
[ "$(state good)" = "$was" ] || complain "a run that failed changed the checkpoint"
expect 0 '[0-9]* skipped' "${two[@]}" "${resume[@]}" --lr 1e30 --no-check-for-nan-in-loss-and-grad --metrics skips
[ "$(tail -1 skips | grep -c '"skipped":5[.,]')" -eq 1 ] || complain "skipped updates: $(tail -1 skips)"
[ "$(grep -c lm_loss skips)" -eq 6 ] || complain "metrics of a run with skips: $(cat skips)"

# ---- fp16: the scale falls from where it starts, skips change nothing but the counts, and at the floor the run ends ----
number() { sed -n "s/.*\"$1\":\([^,}]*\).*/\1/p" "$2" | xargs; }
expect 0 'loss scale .* skipped' "${two[@]}" --fp16 --train-iters 6 --metrics scales
[ "$(number loss_scale scales)" = '4294967296.0 2147483648.0 1073741824.0 536870912.0 268435456.0 134217728.0' ] ||
    complain "the scale from 2^32: $(number loss_scale scales)"
expect 0 'saved in skipped' "${two[@]}" --fp16 --loss-scale 1e30 --train-iters 5 --save skipped
for want in '"optimizer_step":0' '"updated_samples":0' '"skipped":5' '"iteration":5'; do
    grep -q "$want" skipped/iter_0000005/training/state.json || complain "a run of skips is saved without $want"
done
expect 0 'resumed skipped.* at iteration 5' "${two[@]}" --bf16 --load skipped --train-iters 7
expect 3 'overflowed 20 times in a row at a loss scale of 1, which is --min-loss-scale' "${two[@]}" --fp16 \
    --initial-loss-scale 4 --lr 1e30 --lr-decay-style constant --train-iters 60 --metrics floor
[ "$(number loss_scale floor | tr ' ' '\n' | sort -un | head -1)" = 1.0 ] || complain "below the floor: $(number loss_scale floor)"
expect 3 'iteration [0-9]*: .*not finite' "${two[@]}" --bf16 --lr 1e38 --lr-decay-style constant --train-iters 9
expect 2 'give one' "${two[@]}" --bf16 --fp16 --train-iters 1

# ---- a token outside the vocabulary ----
cp data_text_document.idx bad.idx
cp data_text_document.bin bad.bin
printf '\377\377' | dd of=bad.bin bs=2 seek=30 conv=notrunc 2>/dev/null
expect 1 'bad.*document 1.*position.*65535' "${two[@]}" --data-path bad --train-iters 9

# ---- files that are missing or damaged ----
damage() { # a copy of the good checkpoint, or of the words, with FILE cut to half: $1 copy, $2 FILE
    rm -rf "$1"
    cp -r "${3:-good}" "$1"
    local file=$1/$2
    truncate -s $(($(stat -c %s "$file") / 2)) "$file"
}
expect 1 'nowhere' "${two[@]}" --load nowhere --train-iters 9
mkdir empty
expect 1 'empty holds no checkpoint' "${two[@]}" --load empty --train-iters 9
expect 0 'starting fresh' "${two[@]}" --load empty --allow-missing-checkpoint --train-iters 1
damage cut iter_0000003/model.safetensors
expect 1 'cut/iter_0000003/model.safetensors' "${two[@]}" --load cut --train-iters 9
damage cut iter_0000003/training/state.json
expect 1 'cut/iter_0000003/training/state.json' "${two[@]}" --load cut --train-iters 9
cp -r good lost
rm lost/iter_0000003/training/optimizer.safetensors
expect 1 'training/optimizer.safetensors' "${two[@]}" --load lost --train-iters 9
damage cut tokenizer.json words
expect 1 'cut/tokenizer.json' "${two[@]}" --tokenizer-model cut --train-iters 9
expect 1 'missing.idx' "${two[@]}" --data-path missing --train-iters 9
truncate -s 60 bad.idx
expect 1 'bad.idx' "${two[@]}" --data-path bad --train-iters 9
cp data_text_document.idx bad.idx
truncate -s 40 bad.bin
expect 1 'bad.bin' "${two[@]}" --data-path bad --train-iters 9

# ---- what only one rank meets: all leave, with its words; ranks that were told different things are found out ----
alone=("$cleave" train --config run.yaml --tensor-model-parallel-size 2 --train-iters 4)
expect 1 'missing.idx' "$mpirun" -n 1 "${alone[@]}" : -n 1 "${alone[@]}" --data-path missing
expect 3 'learning rate differs between ranks: 0.001.* and 0.002' "$mpirun" -n 1 "${alone[@]}" : \
    -n 1 "${alone[@]}" --lr 2e-3

# ---- sizes that do not fit: soon, once, with the values and what would fit ----
allowed=5
new=("$cleave" train --mock-data --vocab-size 97 --num-layers 2 --hidden-size 48 --num-attention-heads 6 --seq-length 32
    --lr 1e-3 --train-iters 2)
expect 1 'batch size 10 .*micro-batch size 4 .*size 2 .*8 or 16' "$mpirun" -n 2 "${new[@]}" --global-batch-size 10 \
    --micro-batch-size 4
expect 1 '52.* 8.*1, 2, 4, 13, 26, 52' "$mpirun" -n 8 "${new[@]}" --hidden-size 416 --num-attention-heads 52 \
    --tensor-model-parallel-size 8
expect 1 '6 key.value heads .*size 4' "$mpirun" -n 4 "${new[@]}" --hidden-size 96 --num-attention-heads 12 --num-query-groups 6 \
    --tensor-model-parallel-size 4
expect 1 'seq-length 33 .*32 and 34' "$mpirun" -n 2 "${new[@]}" --seq-length 33 --tensor-model-parallel-size 2 --sequence-parallel
expect 1 '4 does not divide 6 ranks; start 8' "$mpirun" -n 6 "${new[@]}" --tensor-model-parallel-size 2 \
    --pipeline-model-parallel-size 2
expect 1 'from 8 samples on: .*batch size 5' "$mpirun" -n 2 "${new[@]}" --global-batch-size 6 \
    --rampup-batch-size 4 1 16
expect 2 'micro-batch-size 0' "$mpirun" -n 2 "${new[@]}" --micro-batch-size 0
expect 2 'hidden-size -64' "$mpirun" -n 2 "${new[@]}" --hidden-size -64
expect 2 'unknown option --sequence-paralel; nearest: --sequence-parallel' "$mpirun" -n 2 "${new[@]}" --sequence-paralel
expect 0 '2/2' "$mpirun" -n 2 "${new[@]}" --seq-length 33 --tensor-model-parallel-size 2
allowed=20

# ---- more ranks than cores ----
expect 0 '2/2' "$mpirun" -n 4 --oversubscribe "${new[@]}" --tensor-model-parallel-size 2 --check-decisions
expect 0 '2/2' "$mpirun" -n 4 --oversubscribe "${new[@]}" --pipeline-model-parallel-size 2 --check-decisions

# ---- a full disk ----
mkdir small
if mount -t tmpfs -o size=1m none small 2>/dev/null; then
    expect 1 'small.*bytes' "${two[@]}" --train-iters 2 --save small/run
    [ ! -e small/run/latest ] || complain "a save on a full disk was published"
    umount small
else
    echo "skipped: a full disk, since no tmpfs can be mounted here"
fi

echo "$failed failed"
[ $failed -eq 0 ]
