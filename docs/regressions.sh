#!/bin/sh
# Says which of the files and tests that docs/found.md names in backquotes, as what holds a finding, do not exist.
# A word with a slash or that ends in .rs is a file or a folder, one in small letters with two underscores is a test, and one with
# a single one, or a metric, stands somewhere in what is no documentation; all others name other things. A line that names nothing says why.
set -eu
cd "$(dirname "$0")/.."
table=${1:-docs/found.md}
known=$(mktemp -d)
trap 'rm -r "$known"' EXIT
git ls-files | sed 's|.*|/&/|' >"$known/files"
git grep -hoE '\b(fn|mod) [a-z0-9_]+' -- '*.rs' | sed 's/.* /:/; s/$/:/' >"$known/tests"

is_in_source() { git grep -qwF -e "$1" -- ':!docs' ':!*.md'; }

missing() {
    case $1 in
        *' '*) return 1 ;;
        */* | *.rs) ! grep -qF "/${1%/}/" "$known/files" ;;
        *[A-Z]*) return 1 ;;
        dengine_*) ! is_in_source "$1" ;;
        *_*_*) # `…` stands for the rest of a long name.
            name=$(printf %s ":${1##*::}:" | sed 's/\(…\|\.\.\.\):$//')
            ! grep -qF "$name" "$known/tests" ;;
        *_*) ! is_in_source "${1##*::}" ;;
        *) return 1 ;;
    esac
}

named() {
    sed -n 's/^| .* | \([^|]*\) |$/\1/p' "$table" | grep -o '`[^`]*`' | tr -d '`' | sort -u
}

{
    grep -n '| none |$' "$table" | sed "s|\([0-9]*\):.*|$table:\1: neither a test nor why there is none|"
    named | while read -r word; do
        if missing "$word"; then
            grep -nF "\`$word\`" "$table" | sed "s|\([0-9]*\):.*|$table:\1: there is no $word|"
        fi
    done
} | grep . >&2 && exit 1
exit 0
