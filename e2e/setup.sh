#!/bin/sh
# Installs what a fresh Debian machine lacks besides a Rust and a Go toolchain; does nothing when nothing is missing.
set -eu

missing=""
program() { PATH="$PATH:/usr/local/sbin:/usr/sbin:/sbin" command -v "$1" >/dev/null || missing="$missing $2"; }
file() { # PATTERN PACKAGE
  for found in $1; do [ -e "$found" ] && return; done
  missing="$missing $2"
}

# To build: the protobuf compiler and its standard types, libclang for RocksDB's bindings, a compiler cache.
program protoc protobuf-compiler
file '/usr/include/google/protobuf/empty.proto' libprotobuf-dev
program g++ g++
file '/usr/lib/llvm-*/lib/libclang*.so*' libclang-dev
program strip binutils
program ccache ccache
# To run a Kubernetes: container runtime, pod network, Service addresses, images.
program containerd containerd
program runc runc
file '/usr/lib/cni/bridge' containernetworking-plugins
program iptables iptables
program conntrack conntrack
program buildah buildah
program ip iproute2
program unshare util-linux

for toolchain in cargo go; do
  PATH="$PATH:$HOME/.cargo/bin:/usr/local/go/bin" command -v "$toolchain" >/dev/null || {
    echo "$toolchain is missing: install a Rust (https://rustup.rs) and a Go (https://go.dev/dl) toolchain first" >&2
    exit 1
  }
done

# Old toolchains fail late, and with words that help nobody.
repository=$(cd "$(dirname "$0")/.." && pwd)
older() { [ "$1" != "$2" ] && printf '%s\n%s\n' "$1" "$2" | sort --version-sort --check=quiet; } # HAVE WANTED
too_old() { # NAME HAVE WANTED WHAT
  echo "$1 $2 is too old, $3 or newer is needed: $4" >&2
  exit 1
}
run() { PATH="$PATH:$HOME/.cargo/bin:/usr/local/go/bin" "$@"; }
rust=$(run cargo --version | sed 's/^cargo \([0-9.]*\).*/\1/')
wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repository/Cargo.toml")
! older "$rust" "$wanted" || too_old Rust "$rust" "$wanted" "https://rustup.rs"
# From 1.21 on, Go downloads what a go.mod asks for by itself, unless GOTOOLCHAIN=local forbids it.
go=$(run env GOTOOLCHAIN=local go env GOVERSION | sed 's/^go\([0-9.]*\).*/\1/')
wanted=$(sed -n 's/^go //p' "$repository"/e2e/programs/*/go.mod | sort --version-sort | tail -n 1)
hint="https://go.dev/dl"
case $(run go env GOTOOLCHAIN) in
  local) older "$go" 1.21 || hint="$hint, or let Go download it: go env -w GOTOOLCHAIN=auto" ;;
  *) wanted=1.21 ;;
esac
! older "$go" "$wanted" || too_old Go "$go" "$wanted" "$hint"

[ -n "$missing" ] || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  echo "missing packages (Debian's names):$missing" >&2
  echo "install them, for example: sudo apt-get install --yes --no-install-recommends$missing" >&2
  exit 1
fi
export DEBIAN_FRONTEND=noninteractive
apt-get update -qq
# shellcheck disable=SC2086 # a list of words
apt-get install --yes --no-install-recommends $missing
