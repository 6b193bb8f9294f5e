#!/usr/bin/env bash
# Mutation tests of the core, which is the packages below: changes the source in one place at a time,
# and looks whether a test notices.
# Called by `make mutants`; docs/testing.md says what it finds. Works on a copy of the tree.
#
#   mutants.sh all [K/N]     what the promises hang on, and a sample of the rest; the K-th of N parts, from 0
#   mutants.sh diff BASE     what changed since BASE, for at most MUTANTS_SECONDS (450) seconds
#   mutants.sh report        what all parts so far came to
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/../.."

# What is changed: folders of engine/, each the package dengine-FOLDER. Where the rules are in them is
# in .cargo/mutants.toml.
PACKAGES=(raft log kv snapshot data-dir)
# All of these: lease and what it rests on, votes and terms, who waits for which entry, messages, opening the log.
WHOLE='^engine/(raft/src/(consensus/(config|lease|messages|validate|driver/(heartbeats|mod|terms))|replica/(lease|pending))|log/src/open/mod)\.rs:'
# Of the others so many.
SAMPLE=320
# These unit tests take nine tenths of the time of all, for they write tens of thousands of keys, or simulate a member for
# minutes. Only what the others let pass is tried with them, and only where they say something.
LATER=(replica::timed:: the_applier_never_waits_and behind_a_disk_that_is_slower_than
    expiry_keeps_up_with_the_writes range_deletes_in_one_call memory_has_a_bound_and_used_keys
    range_deletes_of_one_command_are a_frequently_refreshed_key tests::visits::)
LATER_WHERE='^engine/(kv/src|raft/src/replica)/'
LATER_TESTS=(--test-package=dengine-kv --test-package=dengine-raft --timeout=600)
# By what is changed: the packages whose tests run it too. With them come tests that are executables of
# their own (of the log, of crashes). They multiply what is built for a mutant, so they are for what its
# package's unit tests let pass. The time is said, for cargo-mutants measures that package alone.
declare -A MORE_TESTS=([log]='log snapshot data-dir raft crash' [kv]='kv snapshot raft crash' [snapshot]='snapshot data-dir raft')
MORE=(--cargo-arg=--tests --timeout=120)
# Below this share of viable mutants caught, in percent, the whole run fails.
SCORE_MIN=95
# Set for what changed: the number of $SECONDS at which to end.
END=

WORK=${CARGO_TARGET_DIR:-target}/mutants
mkdir -p "$WORK"
WORK=$(cd "$WORK" && pwd)
export PROPTEST_CASES=${PROPTEST_CASES:-64}

# Another run would put other source under the tests of this one.
exec 9>"$WORK/lock"
flock --nonblock 9 || { echo "mutants: something else runs in $WORK" >&2; exit 1; }

# A mutant keeps one core busy: most of its time is an incremental build of one crate. So as many are tried at once as there are
# cores, each in a lane: a tree and a target folder of its own (0.6 GB), so that nothing else is built again because of it.
CORES=$(nproc)
LANES=${MUTANTS_LANES:-$((CORES < 4 ? CORES : 4))}

use_lane() {
    TREE=$WORK/lane-$1/tree
    export CARGO_TARGET_DIR=$WORK/lane-$1/target
}

# Calls "$@" with the lane's number in each lane, all at once.
in_lanes() {
    local lane lanes=() status=0
    for ((lane = 0; lane < LANES; lane++)); do
        (use_lane "$lane" && "$@" "$lane") &
        lanes+=($!)
    done
    for lane in "${lanes[@]}"; do wait "$lane" || status=$?; done
    return "$status"
}

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
    # What was built last is a mutant, and newer than all of this.
    local package
    for package in "${PACKAGES[@]}"; do touch "$TREE/engine/$package/src/lib.rs"; done
}

# Dependencies are built once, and copied to the other lanes.
prepare_lanes() {
    local lane
    for ((lane = 0; lane < LANES; lane++)); do
        use_lane "$lane"
        copy_tree
        if [ "$lane" -gt 0 ] && [ ! -e "$CARGO_TARGET_DIR" ]; then
            (use_lane 0 && cd "$TREE" &&
                cargo test --quiet --locked --profile mutants "${PACKAGES[@]/#/--package=dengine-}" --lib --no-run)
            cp -a --reflink=auto "$WORK/lane-0/target" "$CARGO_TARGET_DIR"
        fi
    done
    use_lane 0
}

# By $END, a number of $SECONDS, if that is set.
mutants() {
    local limit=()
    [ -z "$END" ] || limit=(timeout --signal=INT --kill-after=20 "$((END > SECONDS ? END - SECONDS : 1))")
    # A number that every machine keeps: what the build of the unchanged tree took says nothing, for it may have been built before.
    (cd "$TREE" && "${limit[@]}" cargo mutants --in-place --line-col=true --build-timeout=300 "$@")
}

# The same mutants are drawn from the same source, and mostly the same from a similar one. awk reads to the end: sort would
# die of head's closing the pipe, and with it the script.
draw() { LC_ALL=C sort --random-sort --random-source=<(yes dengine) | awk -v n="$1" 'NR <= n'; }

# What files $1.txt say of the folders with results that follow.
names() { find "${@:2}" -name "$1.txt" -exec cat {} + | sort -u; }

# What survived the first tests may have been caught by later ones.
still_missed() { names missed "$@" | comm -23 - <({ names caught "$@" && names timeout "$@"; } | sort); }

# $1: what was done; then folders with results.
report() {
    local what=$1 caught missed timeout unviable viable
    shift
    caught=$(names caught "$@" | wc -l)
    timeout=$(names timeout "$@" | wc -l)
    unviable=$(names unviable "$@" | wc -l)
    still_missed "$@" >"$WORK/missed"
    missed=$(wc -l <"$WORK/missed")
    viable=$((caught + missed))
    echo
    echo "$what: $((viable + timeout + unviable)) mutants; $viable viable, $caught of them caught;" \
        "$timeout ran out of time, $unviable did not compile"
    [ "$viable" -eq 0 ] || awk -v c="$caught" -v v="$viable" 'BEGIN { printf "score: %.1f %%\n", 100 * c / v }'
    if [ "$missed" -gt 0 ]; then
        echo "survivors:"
        sort -t: -k1,1 -k2,2n "$WORK/missed" | sed 's/^/  /'
    fi
    [ "$SCORE_MIN" -eq 0 ] || [ "$viable" -gt 0 ] || { echo "no mutant was tried: that says nothing" >&2; return 1; }
    [ $((100 * caught)) -ge $((SCORE_MIN * viable)) ]
}

# cargo-mutants ends with 2 if some survived and 3 if some ran out of time, which the report says better; timeout ends with 124
# or 137 if time was up.
tolerate() {
    local status=0
    "$@" || status=$?
    case $status in
    0 | 2 | 3) ;;
    124 | 137) [ -n "$END" ] ;;
    *) return "$status" ;;
    esac
}

# pass FOLDER NAMES ARGUMENTS...: the mutants in the file NAMES. cargo-mutants 27.1 lets nobody choose among those that delete a
# field, but leaves out whatever it takes for caught before.
pass() {
    mkdir -p "$1/mutants.out"
    [ -z "$END" ] || [ "$SECONDS" -lt "$END" ] || return 0
    grep -vxFf "$2" "$WORK/listed" >"$1/mutants.out/previously_caught.txt" || true
    tolerate mutants --output "$1" --iterate --shuffle "${@:3}"
}

# try FOLDER LANE: the lane's share of what is chosen; with quick tests, and what survives them with more.
try() {
    local out=$1/lane-$2 package more
    mkdir -p "$out"
    awk -v lane="$2" -v lanes="$LANES" 'NR % lanes == lane' "$WORK/chosen" >"$out/chosen"
    [ -s "$out/chosen" ] || return 0
    pass "$out/quick" "$out/chosen" -- -- "${LATER[@]/#/--skip=}"
    names missed "$out/quick" >"$out/survived-quick"
    [ -s "$out/survived-quick" ] || return 0
    for package in "${!MORE_TESTS[@]}"; do
        grep "^engine/$package/" "$out/survived-quick" >"$out/survived-quick-$package" || continue
        read -ra more <<<"${MORE_TESTS[$package]}"
        pass "$out/more-$package" "$out/survived-quick-$package" "${MORE[@]}" \
            "${more[@]/#/--test-package=dengine-}" -- -- "${LATER[@]/#/--skip=}"
    done
    still_missed "$out" | grep -E "$LATER_WHERE" >"$out/survived-more" || return 0
    pass "$out/later" "$out/survived-more" "${LATER_TESTS[@]}" -- -- "${LATER[@]}"
}

run_all() {
    local shard=${1:-0/1}
    local part=${shard%/*} parts=${shard#*/}
    local out=$WORK/all/$part-of-$parts
    ensure_tool
    prepare_lanes
    mutants --list >"$WORK/listed"
    {
        grep -E "$WHOLE" "$WORK/listed"
        grep -Ev "$WHOLE" "$WORK/listed" | draw "$SAMPLE"
    } | sort >"$WORK/chosen-all"
    awk -v part="$part" -v parts="$parts" 'NR % parts == part' "$WORK/chosen-all" >"$WORK/chosen"
    echo "part $shard: $(wc -l <"$WORK/chosen") of the $(wc -l <"$WORK/chosen-all") that are chosen of" \
        "$(wc -l <"$WORK/listed") mutants, $LANES at a time"
    rm -rf "$out"
    in_lanes try "$out"
    report "part $shard" "$out"
}

run_diff() {
    local base total tried end out=$WORK/diff
    if ! base=$(git merge-base "$1" HEAD 2>/dev/null); then
        echo "mutants: nothing to compare with, for there is no $1 here"
        return 0
    fi
    local sources=("${PACKAGES[@]/#/engine/}")
    git diff --no-ext-diff "$base" -- "${sources[@]/%//src}" >"$WORK/changed.diff"
    if [ ! -s "$WORK/changed.diff" ]; then
        echo "mutants: nothing in ${sources[*]/%//src} changed since $1"
        return 0
    fi
    ensure_tool
    end=$((SECONDS + ${MUTANTS_SECONDS:-450}))
    prepare_lanes
    mutants --list >"$WORK/listed"
    mutants --list --in-diff "$WORK/changed.diff" >"$WORK/chosen"
    total=$(wc -l <"$WORK/chosen")
    if [ "$total" -eq 0 ]; then
        echo "mutants: what changed since $1 has none"
        return 0
    fi
    END=$end
    echo "$total mutants in what changed since $1; for $((END - SECONDS)) seconds, in random order, $LANES at a time"
    rm -rf "$out"
    in_lanes try "$out"
    SCORE_MIN=0 report "changed since $1" "$out"
    tried=$(for kind in caught missed timeout unviable; do names "$kind" "$out"; done | sort -u | wc -l)
    echo "left out for lack of time: $((total - tried)) of $total"
}

case ${1:-} in
all) run_all "${2:-}" ;;
diff) run_diff "${2:?the commit or branch to compare with}" ;;
report) report "all parts so far" "$WORK/all" ;;
*)
    sed -n '2,9s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
    ;;
esac
