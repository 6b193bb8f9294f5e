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
