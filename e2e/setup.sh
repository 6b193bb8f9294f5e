#!/bin/sh
# setup.sh [PURPOSE]: makes sure, in seconds, that this machine can do what PURPOSE needs, before anything long begins.
#   dengine     the server and its tools: build them, run them (no Go, no containers)
#   dist        also what ships, which is optimized by a profile
#   images      dist, and the container images (no container runtime)
#   lint        dengine, and Go: to format it
#   bench       dist, and Go: to build etcd
#   torture     dengine, and network namespaces
#   kubernetes  everything for a local Kubernetes (the default); with E2E_USE_CURRENT_CONTEXT=1, for that of kubectl
#   test        torture and kubernetes, and Go: to build etcd
# Every check does in small what the build will do. What is missing is installed (Debian, as root) or named.
# Ends with 0 when all of it works, and otherwise with 1 and the reason on standard error.
set -eu

repository=$(cd "$(dirname "$0")/.." && pwd)
CC=${CC:-cc}
CXX=${CXX:-c++}
PATH="$PATH:${HOME:-/root}/.cargo/bin:/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin"
export PATH
work=$(mktemp -d)
trap 'rm -rf "$work" || true' EXIT
trap 'exit 1' HUP INT TERM

# What a build or a run asks for, and the Debian packages that give it. Each is a function works_NAME below.
packages_of() {
  case $1 in
    cxx) echo g++ ;;
    protoc) echo protobuf-compiler libprotobuf-dev ;;
    libclang) echo libclang-dev ;;
    ccache) echo ccache ;;
    certificates) echo ca-certificates ;;
    strip) echo binutils ;;
    profdata) echo llvm-19 ;;
    buildah) echo buildah netavark ;; # Newer ones start nothing without their network program.
    containerd) echo containerd runc ;;
    network_plugins) echo containernetworking-plugins ;;
    conntrack) echo conntrack ;;
    iptables) echo iptables ;;
    ip) echo iproute2 ;;
    namespaces) echo util-linux ;;
  esac
}

purpose=${1:-kubernetes}
needs="certificates cxx protoc libclang ccache"
go=no root=no current=no
dist() { needs="$needs profdata"; }
images() { needs="$needs strip buildah"; }
torture() { needs="$needs ip iptables" root=yes; }
kubernetes() {
  images
  if [ "${E2E_USE_CURRENT_CONTEXT:-}" = 1 ]; then
    current=yes
    command -v helm >/dev/null || go=yes
  else
    needs="$needs containerd network_plugins conntrack namespaces ip iptables" go=yes root=yes
  fi
}
case $purpose in
  dengine) ;;
  dist) dist ;;
  images) dist && images ;;
  lint) go=yes ;;
  bench) dist && go=yes ;;
  torture) torture ;;
  kubernetes) kubernetes ;;
  test) torture && kubernetes && go=yes ;;
  *) echo "unknown purpose $purpose: dengine, dist, images, lint, bench, torture, kubernetes or test" >&2; exit 1 ;;
esac
needs=$(printf '%s\n' $needs | awk '!seen[$0]++')

# RocksDB, and whatever links: C and C++ with their standard libraries.
works_cxx() {
  cat >main.cc <<'END'
#include <filesystem>
#include <string>
int main() { return std::string("linked").size() == 6 && std::filesystem::exists("/") ? 0 : 1; }
END
  echo 'int main(void) { return 0; }' >main.c
  $CC main.c -o main_c && ./main_c && $CXX -std=c++20 main.cc -o main_cc && ./main_cc
}

# Our .proto files import well-known types, which Debian has in a package of their own.
works_protoc() {
  cat >main.proto <<'END'
syntax = "proto3";
import "google/protobuf/empty.proto";
message Main { google.protobuf.Empty empty = 1; }
END
  ${PROTOC:-protoc} ${PROTOC_INCLUDE:+"-I$PROTOC_INCLUDE"} -I. --include_imports --descriptor_set_out=main.bin main.proto
}

# The library that clang-sys, and so RocksDB's bindings, would open: the names and folders it looks for, the highest
# version, and of those the first. libclang-cpp.so is another library.
libclang() {
  if [ -n "${LIBCLANG_PATH:-}" ]; then
    [ ! -f "$LIBCLANG_PATH" ] || { echo "$LIBCLANG_PATH"; return; }
    set -- "$LIBCLANG_PATH"
  else
    prefix=$("${LLVM_CONFIG_PATH:-llvm-config}" --prefix 2>/dev/null) || prefix=/nowhere
    set -- "$prefix/bin" "$prefix/lib" "$prefix/lib64"
    old_ifs=$IFS; IFS=:
    # shellcheck disable=SC2086 # split at colons
    set -- "$@" ${LD_LIBRARY_PATH:-} ${LIBRARY_PATH:-}
    IFS=$old_ifs
    set -- "$@" /usr/local/llvm*/lib* /usr/local/lib*/*/* /usr/local/lib*/* /usr/local/lib* /usr/lib*/*/* /usr/lib*/* /usr/lib*
  fi
  for folder in "$@"; do
    for file in "$folder"/libclang.so "$folder"/libclang-*.so "$folder"/libclang.so.* "$folder"/libclang-*.so.*; do
      [ -f "$file" ] || continue
      name=${file##*/}
      case $name in
        *-cpp.*) ;;
        libclang.so.*) echo "${name#libclang.so.} $file" ;;
        libclang-*) echo "${name#libclang-} $file" ;;
        *) echo "0 $file" ;;
      esac
    done
  done | sort --stable --version-sort --reverse --key=1,1 | sed -n '1s/^[^ ]* //p'
}

# Loads libclang as bindgen does, and has it read a header that asks for what RocksDB's asks for: those headers are
# clang's own, and a libclang without them is of no use.
works_libclang() {
  library=$(libclang)
  [ -n "$library" ] || {
    echo "there is no libclang.so, libclang-*.so or libclang.so.* (libclang-cpp.so is another library)" \
      "${LIBCLANG_PATH:+in LIBCLANG_PATH=$LIBCLANG_PATH}"
    return 1
  }
  # Without a compiler there is nothing to try it with yet.
  command -v "${CC##* }" >/dev/null || return 0
  cat >header.h <<'END'
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
uint64_t sum(size_t count, bool plus, va_list rest);
END
  cat >load.c <<'END'
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
typedef struct { const void *data; unsigned flags; } String;
static void *library;
static void *get(const char *name) {
  void *found = dlsym(library, name);
  if (!found) { fprintf(stderr, "%s\n", dlerror()); exit(1); }
  return found;
}
int main(int count, char **words) { /* LIBRARY HEADER ARGUMENT… */
  library = dlopen(words[1], RTLD_NOW);
  if (!library) { fprintf(stderr, "%s\n", dlerror()); return 1; }
  void *(*create)(int, int) = get("clang_createIndex");
  void *(*parse)(void *, const char *, const char *const *, int, void *, unsigned, unsigned) = get("clang_parseTranslationUnit");
  unsigned (*diagnostics)(void *) = get("clang_getNumDiagnostics");
  void *(*diagnostic)(void *, unsigned) = get("clang_getDiagnostic");
  int (*severity)(void *) = get("clang_getDiagnosticSeverity");
  String (*format)(void *, unsigned) = get("clang_formatDiagnostic");
  const char *(*text)(String) = get("clang_getCString");
  void *unit = parse(create(0, 0), words[2], (const char *const *)words + 3, count - 3, NULL, 0, 0);
  if (!unit) { fprintf(stderr, "%s cannot read %s\n", words[1], words[2]); return 1; }
  int bad = 0;
  for (unsigned at = 0; at < diagnostics(unit); at++)
    if (severity(diagnostic(unit, at)) >= 3) { bad = 1; fprintf(stderr, "%s\n", text(format(diagnostic(unit, at), 1))); }
  return bad;
}
END
  # shellcheck disable=SC2086 # a list of words
  $CC -w load.c -o load -ldl && ./load "$library" header.h ${BINDGEN_EXTRA_CLANG_ARGS:-} ||
    { echo "(that was $library)"; return 1; }
}

works_ccache() { echo 'int cached;' >cached.c && { ! command -v cc >/dev/null || ccache cc -c cached.c -o cached.o; } && ccache --version; }
works_strip() { strip --version; }

# For profile-guided optimization of what ships: one that understands what programs of this compiler count, and writes
# what it reads; the compiler's own, or an LLVM's. As e2e/src/product/trained.rs finds it.
works_profdata() {
  command -v rustc >/dev/null || return 0
  tools=$(rustc --print target-libdir)/../bin
  found=$(
    [ ! -x "$tools/llvm-profdata" ] || echo "$tools/llvm-profdata"
    for version in $(seq 19 40); do command -v "llvm-profdata-$version" || true; done
    command -v llvm-profdata || true
  )
  [ -n "$found" ] || { echo "there is no llvm-profdata of LLVM 19 or newer"; return 1; }
  # Without a linker there is nothing to try it with yet.
  command -v "${CC##* }" >/dev/null || return 0
  echo 'fn main() {}' >main.rs
  rustc --edition 2024 -C profile-generate main.rs && LLVM_PROFILE_FILE=counted ./main ||
    { echo "(this rustc cannot count how often code runs: install Rust with rustup)"; return 1; }
  for program in $found; do
    "$program" merge --output merged counted && rustc --edition 2024 -C profile-use="$PWD/merged" main.rs 2>used || continue
    # What it cannot read it ignores, with a warning.
    [ -s used ] || return 0
    cat used
  done
  echo "(rustup component add llvm-tools installs the one that is this compiler's)"
  return 1
}

# Cargo and Go download over TLS.
works_certificates() {
  for bundle in "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
    [ ! -s "$bundle" ] || return 0
  done
  echo "no certificates of certification authorities in /etc/ssl"
  return 1
}

# An image from nothing, as ours are.
works_buildah() {
  mkdir -p context && echo file >context/file && printf 'FROM scratch\nCOPY file /\n' >context/Dockerfile
  echo '{"default": [{"type": "insecureAcceptAnything"}]}' >policy.json
  buildah --root "$PWD/storage" --runroot "$PWD/run" --storage-driver vfs \
    bud --isolation chroot --signature-policy policy.json --tag localhost/set-up context
}

works_containerd() { containerd --version && ctr --version && runc --version; }
works_network_plugins() { # Not in PATH: iproute2 has a `bridge` too.
  for plugin in bridge host-local loopback; do
    [ -x "/usr/lib/cni/$plugin" ] || { echo "/usr/lib/cni/$plugin is missing"; return 1; }
  done
}
works_conntrack() { conntrack --version; }
works_iptables() { iptables --version; }
works_ip() { ip -Version; }
works_namespaces() { unshare --version && setsid --version && setpriv --version && mount --version; }

# Each in an empty folder, with what it says kept for the case that it fails.
try() {
  mkdir -p "$work/$1"
  (cd "$work/$1" && "works_$1") >"$work/$1.log" 2>&1 </dev/null
}
failing() {
  for one in $needs; do try "$one" || printf '%s ' "$one"; done
}

problems="$work/problems"
: >"$problems"
problem() { echo "$*" >>"$problems"; }
give_up() { cat "$problems" >&2; exit 1; }

# Old toolchains fail late, and with words that help nobody.
older() { [ "$1" != "$2" ] && printf '%s\n%s\n' "$1" "$2" | sort --version-sort --check=quiet; } # HAVE WANTED
too_old() { problem "$1 $2 is too old, $3 or newer is needed: $4"; } # NAME HAVE WANTED WHAT
check_rust() {
  for program in rustc cargo; do
    command -v $program >/dev/null || { problem "$program is missing: install Rust first, https://rustup.rs"; return; }
  done
  said=$(cd "$repository" && rustc --version 2>&1 && cargo --version 2>&1) || { problem "Rust does not work: $said"; return; }
  have=$(echo "$said" | sed -n 's/^rustc \([0-9.]*\).*/\1/p')
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
  ! older "$have" "$wanted" || too_old Rust "$have" "$wanted" "https://rustup.rs"
}
check_go() {
  command -v go >/dev/null || { problem "go is missing: install Go first, https://go.dev/dl"; return; }
  said=$(GOTOOLCHAIN=local go env GOVERSION 2>&1) || { problem "Go does not work: $said"; return; }
  have=$(echo "$said" | sed 's/^go\([0-9.]*\).*/\1/')
  wanted=$(sed -n 's/^go //p' "$repository"/e2e/local-kubernetes/programs/*/go.mod | sort --version-sort | tail -n 1)
  hint="https://go.dev/dl"
  # From 1.21 on, Go downloads what a go.mod asks for by itself, unless GOTOOLCHAIN=local forbids it.
  case $(go env GOTOOLCHAIN) in
    local) older "$have" 1.21 || hint="$hint, or let Go download it: go env -w GOTOOLCHAIN=auto" ;;
    *) wanted=1.21 ;;
  esac
  ! older "$have" "$wanted" || too_old Go "$have" "$wanted" "$hint"
}

check_rust
[ $go = no ] || check_go
user=$(id -u)
[ $root = no ] || [ "$user" = 0 ] || problem "root is missing: $purpose makes network namespaces and mounts"
[ $current = no ] || command -v kubectl >/dev/null ||
  problem "kubectl is missing: E2E_USE_CURRENT_CONTEXT=1 uses the cluster that it points at"

broken=$(failing)
missing=""
for one in $broken; do missing="$missing $(packages_of "$one")"; done
install="apt-get install --yes --no-install-recommends$missing"
if [ -n "$missing" ] && { [ "$user" != 0 ] || ! command -v apt-get >/dev/null; }; then
  for one in $broken; do
    problem "$one: missing or broken; Debian's package: $(packages_of "$one")"
    tail -n 3 "$work/$one.log" | sed 's/^/    /' >>"$problems"
  done
  problem "to install it all: sudo $install"
fi
[ ! -s "$problems" ] || give_up
if [ -n "$missing" ]; then
  echo "Installing, which takes a minute or three:$missing"
  export DEBIAN_FRONTEND=noninteractive
  # Some other repository of this machine may be out of order; what is needed may come all the same.
  apt-get update -qq </dev/null || echo "apt-get update failed; going on" >&2
  # shellcheck disable=SC2086 # a list of words
  $install -qq -o DPkg::Lock::Timeout=300 </dev/null
  for one in $(failing); do
    problem "$one does not work, although $(packages_of "$one") is installed:"
    tail -n 20 "$work/$one.log" | sed 's/^/    /' >>"$problems"
  done
  [ ! -s "$problems" ] || give_up
fi

# Rust needs a linker, so it is tried last.
works_rust() { echo 'fn main() {}' >main.rs && rustc --edition 2024 main.rs && ./main; }
try rust || {
  problem "Rust does not compile and link a program:"
  tail -n 20 "$work/rust.log" >>"$problems"
  give_up
}

# A person who waits for the first time is told for what.
target=${CARGO_TARGET_DIR:-$repository/target}
programs=${XDG_CACHE_HOME:-${HOME:-/root}/.cache}/dengine/programs
expect=""
ls "$target"/release/build/librocksdb-sys-*/out/librocksdb.a >/dev/null 2>&1 ||
  expect="  Rust, in $target: 20 to 35 minutes, most of it RocksDB\n"
case $needs in
  *containerd*) ls "$programs"/kubernetes-*/kubectl >/dev/null 2>&1 ||
    expect="$expect  Kubernetes from its Go source, in $programs: 11 minutes; etcd, CoreDNS and Helm: 4\n" ;;
esac
[ -z "$expect" ] ||
  printf 'Ready. What has not been built here yet, with its time on two cores (here: %s):\n%bThe next time takes seconds.\n' "$(nproc)" "$expect"
