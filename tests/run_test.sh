#!/bin/bash
# How long a run goes on, in what batches, and what a resumed one says: schedules, ramps, ends by count and by clock, the
# log after a resume, the same samples on any number of data-parallel ranks.
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
    [ $got -eq "$code" ] || complain "exit code $got, not $code: $*: $(tail -c 500 err)"
    grep -qe "$pattern" out err || complain "'$pattern' is not in: $*: $(tail -c 500 err)"
}

column() { # FILE KEY: of each iteration, "number value"
    sed -n "s/^{\"iteration\":\([0-9.e+]*\),.*\"$2\":\([^,}]*\).*/\1 \2/p" "$1"
}

train=("$cleave" train --mock-data --vocab-size 64 --num-layers 1 --hidden-size 32 --num-attention-heads 4
    --seq-length 16 --lr 1e-3 --check-decisions)

# ---- stopped at 7 and resumed: rates and losses of 8 to 20 to the last digit; each iteration once ----
plan=(--global-batch-size 4 --train-iters 20 --lr-warmup 10 --lr-decay-style cosine --log-interval 10)
expect 0 '20/20' "${train[@]}" "${plan[@]}" --metrics whole
expect 0 'saved in seven' "${train[@]}" "${plan[@]}" --metrics parts --save seven --exit-interval 7
[ "$(cat seven/latest)" = iter_0000007 ] || complain "exit-interval 7 ends at $(cat seven/latest)"
expect 0 'resumed .* at iteration 7' "${train[@]}" "${plan[@]}" --metrics parts --load seven
for key in learning_rate lm_loss grad_norm consumed_samples; do
    column whole $key >a
    column parts $key >b
    [ "$(wc -l <a)" -eq 20 ] || complain "$key: $(wc -l <a) iterations"
    cmp -s a b || complain "$key differs after a resume: $(diff a b | head -4)"
done
expect 1 'schedule differs' "${train[@]}" "${plan[@]}" --load seven --lr 2e-3
expect 0 '10/20 .*lr 1.80e-03' "${train[@]}" "${plan[@]}" --load seven --lr 2e-3 --lr-decay 25 --override-opt-param-scheduler

# ---- a line of the log after a resume is the mean of what came after it ----
expect 0 'saved in five' "${train[@]}" "${plan[@]}" --save five --exit-interval 5
expect 0 '10/20' "${train[@]}" "${plan[@]}" --load five --metrics rest
mean=$(column rest lm_loss | awk '$1 >= 6 && $1 <= 10 {s += $2; n++} END {printf "%.4f", s / n}')
grep -q "10/20 | loss $mean " err || complain "the line at 10 is not the mean of five, $mean: $(grep 10/20 err)"

# ---- ends ----
expect 0 'saved in clock' timeout 20 "$mpirun" -n 2 "${train[@]}" --train-iters 100000000 --save clock \
    --exit-duration-in-mins 0.02 --tensor-model-parallel-size 2
[ -e clock/latest ] || complain "exit-duration-in-mins does not save"
"$mpirun" -n 2 "${train[@]}" --train-iters 100000000 --log-interval 100 >long 2>&1 &
job=$!
for i in $(seq 200); do
    grep -q 'iteration  *100/' long && break
    sleep 0.1
done
kill -USR1 "$(pgrep -P $job | tail -1)"
wait $job
code=$?
[ $code -eq 4 ] || complain "a signal without --save: exit code $code, not 4"
grep -q 'nothing was saved' long || complain "a signal without --save: $(tail -c 300 long)"

# ---- a batch that grows, up to a number of samples ----
expect 0 '11/11 | 108 samples, batch 16' "${train[@]}" --train-samples 100 --global-batch-size 16 --micro-batch-size 2 \
    --rampup-batch-size 4 4 40 --metrics ramp --log-interval 10
sizes=$(column ramp consumed_samples | awk '{printf "%d ", $2 - last; last = $2}')
[ "$sizes" = '4 4 4 4 8 8 12 16 16 16 16 ' ] || complain "sizes of the ramp: $sizes"

# ---- the same samples, so the same loss, whatever dp and the micro-batch are ----
for layout in '1 1' '1 2' '1 4' '2 1' '2 2' '2 4' '4 1' '4 2'; do
    set -- $layout
    rm -f layout
    expect 0 '4/4' "$mpirun" -n "$1" --oversubscribe "${train[@]}" --global-batch-size 8 --micro-batch-size "$2" \
        --train-iters 4 --hidden-dropout 0 --attention-dropout 0 --metrics layout
    for key in lm_loss grad_norm consumed_samples consumed_tokens; do
        column layout $key >now
        [ -e first.$key ] || cp now first.$key
        paste -d ' ' first.$key now | awk -v layout="$layout" '{d = $2 - $4; if (d < 0) d = -d; if (d > 2e-6 * $2) bad = 1}
            END {exit bad || NR != 4}' || complain "dp and micro-batch $layout: $key: $(paste first.$key now)"
    done
done

echo "$failed failed"
[ $failed -eq 0 ]
