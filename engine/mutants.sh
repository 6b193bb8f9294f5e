#!/usr/bin/env bash
# Mutation tests of dengine-core: changes the source in one place at a time, and looks whether a test notices.
# Called by `make mutants`; docs/testing.md says what it finds. Works on a copy of the tree.
#
#   mutants.sh all [K/N]     what the promises hang on, and a sample of the rest; the K-th of N parts, from 0
#   mutants.sh diff BASE     what changed since BASE, for at most MUTANTS_SECONDS (450) seconds
#   mutants.sh report        what all parts so far came to
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

# All of these: lease, votes and terms, who waits for which entry, messages, opening the log.
WHOLE='^engine/core/src/(consensus/(lease|messages|validate|driver/(mod|terms))|replica/(lease|pending)|log/open)\.rs:'
# Of the others so many.
SAMPLE=320
# cargo-mutants 27.1 lets nobody choose among those that delete a field: all of these are in.
FIELDS=': delete field '
# Besides the unit tests. They double what is built for a mutant, and the unit tests catch most.
MORE_TESTS=(--cargo-arg=--test=crash --cargo-arg=--test=log)
# Below this share of viable mutants caught, in percent, the whole run fails.
SCORE_MIN=95

WORK=${CARGO_TARGET_DIR:-target}/mutants
mkdir -p "$WORK"
WORK=$(cd "$WORK" && pwd)
TREE=$WORK/tree
# Of its own, so that a mutant is an incremental build, and nothing else is built anew because of it.
export CARGO_TARGET_DIR=$WORK/target
export PROPTEST_CASES=${PROPTEST_CASES:-64}

# Another version makes other mutants, and gives them other names.
VERSION=27.1.0
ensure_tool() {
    [ "$(cargo mutants --version 2>/dev/null)" = "cargo-mutants $VERSION" ] && return
    echo "installing cargo-mutants $VERSION, once: about five minutes"
    env -u CARGO_TARGET_DIR cargo install --quiet --locked --version "$VERSION" cargo-mutants
}

# Modification times are kept, so that cargo builds only what changed since the last copy.
copy_tree() {
    rm -rf "$TREE" && mkdir -p "$TREE"
    git ls-files -z --cached --others --exclude-standard |
        tar --create --null --files-from=- --ignore-failed-read --file=- 2>/dev/null |
        tar --extract --directory="$TREE" --file=-
}

mutants() { (cd "$TREE" && cargo mutants --in-place "$@"); }

# Names of mutants on stdin to arguments that select exactly these.
exactly() { sed -e 's/[][\.*^$(){}?+|/]/\\&/g' -e 's/^/--re=^/' -e 's/$/$/'; }

# The same mutants are drawn from the same source, and mostly the same from a similar one. awk reads to the end: sort would
# die of head's closing the pipe, and with it the script.
draw() { LC_ALL=C sort --random-sort --random-source=<(yes dengine) | awk -v n="$1" 'NR <= n'; }

count() { { cat "$@" 2>/dev/null || true; } | wc -l; }

# $1: what was done; then folders with results. What survived the unit tests alone was tried again with more of them: the first
# results are in mutants.out.old then.
report() {
    local what=$1 caught missed timeout unviable viable
    shift
    caught=$(count "${@/%//mutants.out/caught.txt}" "${@/%//mutants.out.old/caught.txt}")
    missed=$(count "${@/%//mutants.out/missed.txt}")
    timeout=$(count "${@/%//mutants.out/timeout.txt}" "${@/%//mutants.out.old/timeout.txt}")
    unviable=$(count "${@/%//mutants.out/unviable.txt}" "${@/%//mutants.out.old/unviable.txt}")
    viable=$((caught + missed))
    echo
    echo "$what: $((viable + timeout + unviable)) mutants; $viable viable, $caught of them caught;" \
        "$timeout ran out of time, $unviable did not compile"
    [ "$viable" -eq 0 ] || awk -v c="$caught" -v v="$viable" 'BEGIN { printf "score: %.1f %%\n", 100 * c / v }'
    if [ "$missed" -gt 0 ]; then
        echo "survivors:"
        { cat "${@/%//mutants.out/missed.txt}" 2>/dev/null || true; } | sort -t: -k1,1 -k2,2n | sed 's/^/  /'
    fi
    [ "$SCORE_MIN" -eq 0 ] || [ "$viable" -gt 0 ] || { echo "no mutant was tried: that says nothing" >&2; return 1; }
    [ $((100 * caught)) -ge $((SCORE_MIN * viable)) ]
}

# cargo-mutants ends with 2 if some survived and 3 if some ran out of time, which the report says better.
tolerate() {
    local status=0
    "$@" || status=$?
    case $status in 0 | 2 | 3) ;; *) return "$status" ;; esac
}

# Tries those that survived the unit tests with more tests.
again() {
    local results=$1/mutants.out
    [ -s "$results/missed.txt" ] || return 0
    mapfile -t chosen < <(exactly <"$results/missed.txt")
    # The others that delete a field would be in again, were they not taken for caught.
    grep -F "$FIELDS" "$WORK/listed" | grep -vxFf "$results/missed.txt" >>"$results/previously_caught.txt"
    tolerate mutants --line-col=true --output "$1" --iterate "${MORE_TESTS[@]}" "${chosen[@]}"
}

run_all() {
    local shard=${1:-0/1}
    local out=$WORK/all/${shard/\//-of-}
    ensure_tool
    copy_tree
    mutants --list --line-col=true >"$WORK/listed"
    {
        grep -E "$WHOLE|$FIELDS" "$WORK/listed"
        grep -Ev "$WHOLE|$FIELDS" "$WORK/listed" | draw "$SAMPLE"
    } | sort >"$WORK/chosen"
    echo "$(wc -l <"$WORK/chosen") of $(wc -l <"$WORK/listed") mutants, part $shard"
    mapfile -t chosen < <(exactly <"$WORK/chosen")
    rm -rf "$out" && mkdir -p "$out"
    tolerate mutants --line-col=true --output "$out" --shard "$shard" --sharding round-robin "${chosen[@]}"
    again "$out"
    report "part $shard" "$out"
}

run_diff() {
    local base total left seconds=${MUTANTS_SECONDS:-450} out=$WORK/diff status=0 begin
    if ! base=$(git merge-base "$1" HEAD 2>/dev/null); then
        echo "mutants: nothing to compare with, for there is no $1 here"
        return 0
    fi
    git diff --no-ext-diff "$base" -- 'engine/core/src' >"$WORK/changed.diff"
    if [ ! -s "$WORK/changed.diff" ]; then
        echo "mutants: nothing in engine/core/src changed since $1"
        return 0
    fi
    ensure_tool
    begin=$SECONDS
    copy_tree
    mutants --list --in-diff "$WORK/changed.diff" >"$WORK/listed-diff"
    total=$(wc -l <"$WORK/listed-diff")
    if [ "$total" -eq 0 ]; then
        echo "mutants: what changed since $1 has none"
        return 0
    fi
    echo "$total mutants in what changed since $1; for $seconds seconds, in random order"
    rm -rf "$out" && mkdir -p "$out"
    seconds=$((seconds - (SECONDS - begin)))
    (cd "$TREE" && timeout --signal=INT --kill-after=20 "$((seconds > 1 ? seconds : 1))" cargo mutants --in-place \
        --line-col=true --output "$out" "${MORE_TESTS[@]}" --shuffle --in-diff "$WORK/changed.diff") || status=$?
    # 124 and 137: time was up.
    case $status in 0 | 2 | 3 | 124 | 137) ;; *) return "$status" ;; esac
    SCORE_MIN=0 report "changed since $1" "$out"
    left=$((total - $(count "$out"/mutants.out/{caught,missed,timeout,unviable}.txt)))
    echo "left out for lack of time: $left of $total"
}

case ${1:-} in
all) run_all "${2:-}" ;;
diff) run_diff "${2:?the commit or branch to compare with}" ;;
report) report "all parts so far" "$WORK"/all/* ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
