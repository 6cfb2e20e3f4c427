#!/bin/bash
# label: full. Each benchmark of bench/ runs with tiny sizes and prints JSON that a parser takes. Numbers are not judged.
#
#   tests/bench_test.sh CLEAVE MPIEXEC
set -u
build=$(dirname "$1")
cd "$(dirname "$0")/.." || exit 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
export OMP_NUM_THREADS=2
failed=0

if command -v python3 >/dev/null; then
    is_json() { python3 -c 'import json, sys; [json.loads(line) for line in sys.stdin]'; }
else
    is_json() { ! grep -qvE '^\{".*\}$'; }
fi

# try LINES NAME OPTIONS...: at least so many lines of JSON, each with a share, a ratio or a speed that is no NaN
try() {
    local lines=$1 name=$2
    shift 2
    if ! "bench/$name" --build-dir "$build" --json "$@" >"$work/out" 2>"$work/err"; then
        echo "bench/$name $*: exit code; $(tail -3 "$work/err")"
    elif [ "$(wc -l <"$work/out")" -lt "$lines" ]; then
        echo "bench/$name $*: $(wc -l <"$work/out") lines, at least $lines were expected"
    elif ! is_json <"$work/out" 2>"$work/err"; then
        echo "bench/$name $*: no JSON: $(tail -1 "$work/err")"
    elif grep -qE '[:, -](nan|inf)\b' "$work/out"; then
        echo "bench/$name $*: $(grep -m1 -E '[:, -](nan|inf)\b' "$work/out")"
    else
        return
    fi
    failed=1
}

try 38 op --tokens 8 --runs 1
try 6 comm --rounds 1 --most 4096
try 2 tokenizer --runs 1 --text README.md
try 1 step --case tiny --rounds 1
try 6 size --rounds 1 --layers 1 --hidden 64 --vocab 128 --seq 16 --batch 1
try 4 layouts --steps 2 --layers 3 --hidden 128 --vocab 128 --seq 16
try 1 stall --case epochs --ranks 1
exit $failed
