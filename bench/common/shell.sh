# shellcheck shell=bash
# shell.sh - what the scripts of bench/ share; they source it.

export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

# usage SCRIPT: its head comment; ends the script.
usage() {
    sed -n '2,/^set /{/^#/s/^# \{0,1\}//p}' "$1"
    exit 2
}

# find_python MODULE [FILE]: FILE, or the first Python that has the module; nothing when there is none.
find_python() {
    local module=$1 python
    shift
    for python in "${@:-python3}" /usr/bin/python3; do
        if "$python" -c "import $module" 2>/dev/null; then
            echo "$python"
            return
        fi
    done
}

# field NAME: the value, number or text, of a key in each JSON line of stdin that has it.
field() {
    sed -nE 's/.*"'"$1"'": *("([^"]*)"|([^",}]*)).*/\2\3/p'
}

# median: of the numbers of stdin, one a line.
median() {
    sort -g | awk '{ v[NR] = $1 } END { if (NR) printf "%.6g\n", (v[int((NR + 1) / 2)] + v[int(NR / 2) + 1]) / 2 }'
}
