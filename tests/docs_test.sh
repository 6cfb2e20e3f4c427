#!/bin/bash
# The documents: options.md is what the option table says, links lead somewhere, and commands name options that exist.
set -u
cd "$(dirname "$0")/.." || exit 2
failed=0

complain() {
    echo "FAILED: $*"
    failed=$((failed + 1))
}

scripts/docs --check || complain "docs/options.md is old"

documents=(README.md CHANGELOG.md CONTRIBUTING.md docs/*.md)
for document in "${documents[@]}"; do
    [ -f "$document" ] || { complain "$document is missing"; continue; }
    while read -r link; do
        target=${link%%#*}
        [ -z "$target" ] || [ -e "$(dirname "$document")/$target" ] || complain "$document: link to $link"
    done < <(grep -oE '\]\([^)]+\)|(src|srcset)="[^"]+"' "$document" | sed -E 's/^\]\(//; s/\)$//; s/^.*="//; s/"$//' |
        grep -vE '^(https?|mailto):')
    # Files of the project that stand in backticks.
    while read -r path; do
        compgen -G "$path" >/dev/null || complain "$document: no file $path"
    done < <(grep -oE '`(src|tests|scripts|docs|bench|cmake|include|tools|examples)/[^` ]*`' "$document" | tr -d '`' |
        grep -v '[<>A-Z]' | sort -u)
done

# "cleave COMMAND ... --name" in fenced blocks, with lines that go on after a backslash.
commands() {
    awk '/^ *```/ { inside = !inside; next }
         inside { line = line $0; if (sub(/\\$/, " ", line)) next; print FILENAME ": " line; line = "" }' "$@" |
        sed -nE 's/ #.*//; s/^([^:]*): .*cleave +(.*)/\1 \2/p'
}
while read -r document words; do
    for word in $words; do
        [[ $word == --* ]] || continue
        name=${word#--}
        name=${name%%=*}
        case $name in help | version | config) continue ;; esac
        field=${name//-/_}
        grep -qE "^CLV_OPTION\([A-Z]+, (${field}|${field#no_})," src/train/options.def ||
            grep -qF "\"$name\"" src/train/options_megatron.def || complain "$document: no option --$name"
    done
done < <(commands README.md docs/*.md)

echo "$failed failed"
[ $failed -eq 0 ]
