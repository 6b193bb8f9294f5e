#!/bin/bash
# test-setup.sh [SUITE…]: does set-up do what it says on a fresh Debian (bookworm and trixie, unless SUITE says otherwise)?
# test-setup.sh shell SUITE [COMMAND…]: a shell in a fresh root with a copy of this checkout, for what takes longer.
#
# A machine that has built DEngine before proves nothing, so this makes throw-away roots: bare, with an LLVM that is not
# all of it, for root and for another user. In them, set-up runs with all its proofs, for each purpose; the long build does not.
# The roots get this machine's Rust and Go, read-only, and its mirror and keyring. As root, on Debian; four to six minutes.
# Everything is mounted in a mount namespace of its own, so that nothing stays mounted whatever ends this.
set -euo pipefail

repository=$(cd "$(dirname "$0")/.." && pwd)
export PATH="$PATH:$HOME/.cargo/bin:/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin"
cache=${XDG_CACHE_HOME:-$HOME/.cache}/dengine/roots
today=$(date +%Y%m%d)

die() { echo "test-setup: $*" >&2; exit 1; }

# --- the machine's own mirror and keyring ---

find_mirror() {
  local entry file
  # apt itself reads whichever of its two formats this machine has.
  entry=$(apt-get indextargets --format '$(REPO_URI) $(RELEASE) $(COMPONENT) $(SOURCESENTRY)' 'Created-By: Packages' |
    awk -v codename="$(. /etc/os-release && echo "${VERSION_CODENAME:-}")" '$2 == codename && $3 == "main" { print $1, $4; exit }')
  [ -n "$entry" ] || die "apt here names no mirror of this Debian: is it one?"
  mirror=${entry% *} file=${entry#* }
  keyring=$(sed -nE 's/^Signed-By: *(\/[^ ]*).*/\1/p; s/^deb .*signed-by=(\/[^] ,]*).*/\1/p' "${file%:*}" | head -n 1)
  for candidate in "$keyring" /usr/share/keyrings/debian-archive-keyring.{pgp,gpg}; do
    [ ! -s "$candidate" ] || { keyring=$candidate; return; }
  done
  keyring=$work/keyring.gpg
  cat /etc/apt/trusted.gpg.d/*.gpg >"$keyring" || die "found no keyring of Debian's"
}

# --- roots ---

# Runs a function of this file in namespaces of its own; what it starts and mounts ends with it, and it with its parent.
isolated() {
  export work mirror keyring
  exec setpriv --pdeathsig KILL env --chdir / \
    unshare --mount --pid --fork --kill-child --propagation private bash "$repository/e2e/test-setup.sh" --isolated "$@"
}

# SUITE ARCHIVE: a minimal Debian as a tar archive.
bootstrap() {
  local suite=$1 archive=$2 root=$2.root script=/usr/share/debootstrap/scripts/$1
  mkdir -p "$root"
  mount -t tmpfs -o size=2g,mode=755 tmpfs "$root" # Thousands of small syncs otherwise.
  [ -e "$script" ] || script=/usr/share/debootstrap/scripts/sid # This machine is older than the suite.
  debootstrap --force-check-gpg --keyring="$keyring" --variant=minbase "$suite" "$root" "$mirror" "$script" >"$archive.log" 2>&1 ||
    { tail -n 20 "$archive.log" >&2; die "debootstrap $suite failed"; }
  rm -rf "$root"/var/cache/apt/archives/*.deb
  tar --one-file-system -C "$root" -cf "$archive.unfinished" .
  mv "$archive.unfinished" "$archive"
}

# SUITE NAME: sets `root` to a new root, as bare as Debian gets, with a user `dev` and a copy of the checkout.
new_root() {
  local suite=$1 archive=$cache/$1-$today.tar
  root=$work/$suite-$2
  (
    flock 9
    [ -s "$archive" ] || (isolated bootstrap "$suite" "$archive")
    rm -rf "$archive.root" "$archive.log"
  ) 9>"$cache/$suite.lock"
  mkdir -p "$root"
  tar -C "$root" -xpf "$archive"
  cp --dereference /etc/resolv.conf /etc/hosts "$root/etc/"
  echo "deb [signed-by=/etc/apt/keyrings/${keyring##*/}] $mirror $suite main" >"$root/etc/apt/sources.list"
  mkdir -p "$root/etc/apt/keyrings"
  cp "$keyring" "$root/etc/apt/keyrings/"
  # What a root without a reboot to survive can do without.
  echo force-unsafe-io >"$root/etc/dpkg/dpkg.cfg.d/throw-away"
  printf 'Acquire::Languages "none";\nAPT::Sandbox::User "root";\nBinary::apt-get::APT::Keep-Downloaded-Packages "true";\n' \
    >"$root/etc/apt/apt.conf.d/99throw-away"
  printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
  chmod 755 "$root/usr/sbin/policy-rc.d"
  echo 'dev:x:1000:1000::/home/dev:/bin/bash' >>"$root/etc/passwd"
  echo 'dev:x:1000:' >>"$root/etc/group"
  echo 'dev:100000:65536' | tee -a "$root/etc/subuid" >>"$root/etc/subgid"
  mkdir -p "$root/home/dev" "$root/dengine"
  (
    cd "$repository"
    git -c safe.directory='*' ls-files -z --cached --others --exclude-standard | xargs -0 ls -d 2>/dev/null |
      tar --no-recursion --files-from - -c
  ) | tar -C "$root/dengine" -x
  chown -R 1000:1000 "$root/home/dev" "$root/dengine"
}

read_only() { # FROM TO
  mkdir -p "$2"
  mount --bind "$1" "$2"
  mount -o remount,bind,ro "$2"
}

# ROOT USER TOOLCHAINS COMMAND…: runs it in the root as on a machine of its own.
enter() {
  local root=$1 user=$2 toolchains=$3 home=/root archives name=${1##*/} id=1000 path=/usr/local/bin:/usr/bin:/bin
  shift 3
  case $user in
    root) id=0 path=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ;;
    *) home=/home/$user ;;
  esac
  mount --bind "$root" "$root"
  mount -t proc proc "$root/proc"
  mount --rbind --make-rslave /sys "$root/sys"
  mount --rbind --make-rslave /dev "$root/dev"
  archives=$cache/${name%%-*}-$today.packages
  mkdir -p "$archives"
  mount --bind "$archives" "$root/var/cache/apt/archives"
  case $toolchains in *rust*)
    read_only "$(realpath "${CARGO_HOME:-$HOME/.cargo}/bin")" "$root$home/.cargo/bin"
    read_only "$(realpath "${RUSTUP_HOME:-$HOME/.rustup}")" "$root$home/.rustup"
    chown $id:$id "$root$home/.cargo" ;; # Crates are the root's own.
  esac
  case $toolchains in *go*) read_only "$(go env GOROOT)" "$root/usr/local/go" ;; esac
  cd "$root"
  pivot_root . .
  umount --lazy .
  cd /dengine
  exec setpriv --reuid $id --regid $id --init-groups \
    env --ignore-environment HOME=$home USER="$user" PATH=$path LANG=C.UTF-8 "$@"
}

# --- what is tested ---

# NAME EXIT ROOT USER TOOLCHAINS COMMAND…: runs it, and keeps what it says in $said.
expect() {
  local name=$1 wanted=$2 status=0 started=$SECONDS
  shift 2
  said=$(isolated enter "$@" 2>&1 </dev/null) || status=$?
  [ "$status" = "$wanted" ] || failed "$name: ended with $status instead of $wanted"
  echo "ok    $suite: $name ($((SECONDS - started)) s)"
}
failed() {
  printf 'FAILED %s: %s. It said:\n%s\n' "$suite" "$1" "$(tail -n 40 <<<"$said" | sed 's/^/    /')"
  exit 1
}
says() { grep --quiet --fixed-strings -- "$1" <<<"$said" || failed "it did not say \"$1\""; }
silent() { ! grep --quiet --extended-regexp -- "$1" <<<"$said" || failed "it said $1"; }
present() { grep --quiet --line-regexp "Package: $1" "$root/var/lib/dpkg/status" || failed "$1 is not installed"; }
absent() { ! grep --quiet --line-regexp "Package: $1" "$root/var/lib/dpkg/status" || failed "$1 is installed"; }

# Nothing but Debian: whoever may not install is told exactly what to install, and it is enough.
bare() {
  local line setup=e2e/setup.sh
  new_root "$suite" bare
  expect "bare, no Rust: says so" 1 "$root" dev "" $setup dengine
  says "rustc is missing"
  expect "bare, a user: told what to install" 1 "$root" dev rust $setup dengine
  silent 'rustc|go is missing|containerd|buildah'
  line=$(sed -n 's/^to install it all: sudo //p' <<<"$said")
  [ -n "$line" ] || failed "it named no command that installs"
  # shellcheck disable=SC2086 # a command line
  expect "that line, as root" 0 "$root" root "" sh -c "apt-get update -qq && $line -qq"
  expect "after it, the user can build the server" 0 "$root" dev rust $setup dengine
  says "Ready."
  absent containerd
  absent buildah
  # A Rust with rustup's llvm-tools lacks nothing.
  if ! [ -x "$(rustc --print target-libdir)/../bin/llvm-profdata" ]; then
    expect "what ships, as a user: told what to install" 1 "$root" dev rust $setup dist
    says "profdata: missing or broken; Debian's package: llvm-19"
  fi
  expect "what ships, as root" 0 "$root" root rust $setup dist
  absent buildah

  expect "images, as root: without Go and container runtime" 0 "$root" root rust $setup images
  present buildah
  absent containerd
  expect "images, as a user" 0 "$root" dev rust $setup images
  expect "a local Kubernetes without Go: says so" 1 "$root" root rust $setup kubernetes
  says "go is missing"
  absent containerd
  expect "a local Kubernetes, as a user: needs root" 1 "$root" dev rust,go $setup kubernetes
  says "root is missing"
  expect "a local Kubernetes, as root" 0 "$root" root rust,go $setup
  says "Installing"
  says "Kubernetes from its Go source"
  present containerd
  for purpose in lint bench test; do
    expect "again, for $purpose: nothing to install" 0 "$root" root rust,go $setup $purpose
    silent Installing
  done
}

# Things that are there, and are not what the build asks for.
misleading() {
  local version setup=e2e/setup.sh
  new_root "$suite" misleading
  expect "an LLVM" 0 "$root" root "" sh -c 'apt-get update -qq &&
    apt-get install -qq --yes --no-install-recommends llvm protobuf-compiler &&
    version=$(ls -d /usr/lib/llvm-*) && apt-get install -qq --yes --no-install-recommends libclang-cpp${version##*-}'
  find "$root/usr/lib" -name 'libclang-cpp.so*' | grep --quiet . || failed "there is no libclang-cpp.so to be taken for libclang"
  expect "an LLVM without libclang, a protoc without its types: a user is told" 1 "$root" dev rust $setup dengine
  says "libclang: missing or broken; Debian's package: libclang-dev"
  says "protoc: missing or broken"
  expect "an old Rust: says so" 1 "$root" dev rust sh -c 'mkdir /tmp/old && for program in rustc cargo; do
    printf "#!/bin/sh\necho $program 1.70.0\n" >/tmp/old/$program && chmod 755 /tmp/old/$program; done &&
    PATH=/tmp/old:$PATH e2e/setup.sh dengine'
  says "Rust 1.70.0 is too old"
  expect "the same as root: installed, and proven" 0 "$root" root rust $setup dengine
  says "Installing"
  present libclang-dev
  # A libclang without clang's own headers loads, and reads nothing.
  find "$root/usr/lib" -path '*/lib/clang/*' -name stddef.h | grep --quiet . || failed "where are clang's headers?"
  find "$root/usr/lib" -path '*/lib/clang/*' -name stddef.h -delete
  expect "a libclang without its headers: not taken for one" 1 "$root" dev rust $setup dengine
  says "stddef.h"
}

test_suite() {
  suite=$1
  bare
  rm -rf --one-file-system "$root"
  misleading
}

test_suites() {
  local children="" status=0
  for suite in "$@"; do
    test_suite "$suite" &
    children="$children $!"
  done
  for child in $children; do wait "$child" || status=1; done
  return $status
}

# --- the command line ---

if [ "${1:-}" = --isolated ]; then
  shift
  "$@"
  exit
fi
[ "$(id -u)" = 0 ] || die "as root: it makes and enters other roots"
command -v debootstrap >/dev/null || { apt-get update -qq && apt-get install -qq --yes --no-install-recommends debootstrap; } >/dev/null
command -v rustup >/dev/null || die "the roots get this machine's Rust from rustup, and there is none"
mkdir -p "$cache"
find "$cache" -mindepth 1 -maxdepth 1 ! -name "*-$today*" ! -name '*.lock' ! -name 'work.*' -exec rm -rf {} +
find "$cache" -mindepth 1 -maxdepth 1 -name 'work.*' -mmin +600 -exec rm -rf --one-file-system {} +
work=$(mktemp -d "$cache/work.XXXXXX")
trap 'rm -rf --one-file-system "$work"' EXIT
trap 'exit 1' HUP INT TERM
find_mirror

if [ "${1:-}" = shell ]; then
  suite=${2:?a suite, such as bookworm}
  shift 2
  [ $# -gt 0 ] || set -- bash
  new_root "$suite" shell
  # Behind a proxy this machine trusts more authorities than Debian does, and what is downloaded comes through it.
  cp --dereference "${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}" "$root/etc/authorities.crt"
  (isolated enter "$root" root rust,go env SSL_CERT_FILE=/etc/authorities.crt "$@")
  exit
fi

[ $# -gt 0 ] || set -- bookworm trixie
(isolated test_suites "$@") </dev/null &
trap 'kill $!; wait; exit 1' HUP INT TERM
wait $! || die "failed"
echo "Set-up works on a fresh $* ($SECONDS s)"
