#!/bin/sh
# compile.sh OBJECT COMMAND…: runs nvcc; what ptxas tells of each kernel (registers, shared and local
# memory) goes to OBJECT.ptxas, everything else to standard error.
set -u
object=$1
shift
mkdir -p "$(dirname "$object")"
"$@" 2>"$object.ptxas"
status=$?
grep -vE '^ptxas info|^ *[0-9]+ bytes stack frame|^$' "$object.ptxas" >&2
exit $status
