#!/bin/sh
# Runs `go` with this folder's package completed by etcd's tests/common: the compiler sees the files of the module
# cache as if they were here. Left out are the runners that ours takes the place of, and what is of users and roles.
set -eu
cd "$(dirname "$0")"
module=go.etcd.io/etcd/tests/v3
go mod download "$module"
upstream=$(go list -m -f '{{.Dir}}' "$module")/common

overlay=$(mktemp)
trap 'rm "$overlay"' EXIT
{
    printf '{"Replace": {'
    separator=
    for file in "$upstream"/*_test.go; do
        case ${file##*/} in
            unit_test.go | e2e_test.go | integration_test.go) continue ;;
            *auth* | role_test.go | user_test.go) continue ;;
        esac
        printf '%s\n"%s/%s": "%s"' "$separator" "$PWD" "${file##*/}" "$file"
        separator=,
    done
    printf '}}\n'
} >"$overlay"
GOFLAGS="${GOFLAGS:-} -overlay=$overlay" go "$@"
