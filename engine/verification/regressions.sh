#!/bin/sh
# Says which of the files and tests that docs/found.md names, as what holds a finding, do not exist.
# In backquotes a word with a slash or that ends in .rs is a file or a folder, one in small letters
# with two underscores is a test, in the file named before it in that row if there is one, and one
# with a single underscore, or a metric, stands somewhere in what is no documentation; all others
# name other things. A file that is not in backquotes is not looked for, so that is an error too. A
# row that names nothing says why.
set -eu
cd "$(dirname "$0")/../.."
table=${1:-docs/found.md}
known=$(mktemp -d)
trap 'rm -r "$known"' EXIT
git ls-files | sed 's|.*|/&/|' >"$known/files"
git grep -oE '\b(fn|mod) [a-z0-9_]+' -- '*.rs' | sed 's/:.* /:/' >"$known/where"
sed 's/.*:/:/; s/$/:/' "$known/where" >"$known/tests"

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

# Tests that are not in the file named before them, and files that are not in backquotes.
misplaced() {
    awk '
        NR == FNR { where[$2] = where[$2] "/" $1 " "; next }
        !/^\| .* \|$/ { next }
        {
            sub(/^\| .* \| /, "")
            file = ""
            for (i = 1; i <= NF; i++) {
                if (i % 2) {
                    if ($i ~ /\.rs/) print FILENAME ":" FNR ": a file that is not in backquotes"
                    continue
                }
                if ($i ~ /\//) file = ""
                if ($i ~ /\.rs$/) file = $i
                sub(/.*::/, "", $i)
                if (file && $i ~ /_.*_/ && $i in where && !index(where[$i], "/" file " "))
                    print FILENAME ":" FNR ": " $i " is not in " file
            }
        }' FS=: "$known/where" FS='`' "$table"
}

{
    misplaced
    grep -n '| none |$' "$table" | sed "s|\([0-9]*\):.*|$table:\1: neither a test nor why there is none|"
    named | while read -r word; do
        if missing "$word"; then
            grep -nF "\`$word\`" "$table" | sed "s|\([0-9]*\):.*|$table:\1: there is no $word|"
        fi
    done
} | grep . >&2 && exit 1
exit 0
