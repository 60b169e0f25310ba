#!/bin/bash
# usage: blobs.sh HOST:PORT create
#        blobs.sh HOST:PORT list PREFIX
#
# Asks Azurite with Microsoft's own client, which checks ours: makes the container "syncline", or prints the name and the length of
# each blob, one a line, in the order of names.
set -eu
[ $# -ge 2 ] || { sed -n 2,6p "$0" | cut -c3- >&2; exit 2; }
here=$(cd "$(dirname "$0")" && pwd)
. "$here/modules.sh"
NODE_PATH=$modules/node_modules exec node "$here/blobs.js" "$@"
