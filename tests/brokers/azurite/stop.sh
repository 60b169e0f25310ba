#!/bin/bash
# usage: stop.sh DATA_FOLDER [-9]
# Ends the server that start.sh started on that folder.
exec "$(dirname "$0")/../kafka/stop.sh" "$@"
