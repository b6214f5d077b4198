#!/bin/sh
# Runs the suite on the Python at hand (with the coverage gate) and on every other supported one of this machine, each
# in an environment of its own; on 3.12 and newer the conformance suite runs once more with eager tasks. The tests of
# batchlib.torch run on the Python at hand only: torch is several times as large as everything else together. Says at
# the end what ran and which interpreter was not there.
set -u
cd "$(dirname "$0")/.."
report="" status=0

run() { # run NAME COMMAND...
    name=$1
    shift
    printf '\n=== %s\n' "$name"
    if "$@"; then report="$report\n  passed   $name"; else report="$report\n  FAILED   $name" status=1; fi
}

eager() { # eager VERSION PYTHON
    case $1 in 3.11) return ;; esac
    run "Python $1, eager tasks" env BATCHLIB_EAGER_TASKS=1 "$2" -m pytest -n "${JOBS:-auto}" tests/conformance
}

at_hand=$(scripts/venv.sh at-hand) || exit 1
run "Python $at_hand, the one at hand" "${MAKE:-make}" test
eager "$at_hand" .venv/bin/python

for version in 3.11 3.12 3.13; do
    [ "$version" != "$at_hand" ] || continue
    scripts/venv.sh test "$version"
    case $? in
        0)
            run "Python $version, without torch" env BATCHLIB_WITHOUT_TORCH=1 ".venv-$version/bin/python" -m pytest -n "${JOBS:-auto}"
            eager "$version" ".venv-$version/bin/python"
            ;;
        3) report="$report\n  not run  Python $version: this interpreter was not there" ;;
        *) report="$report\n  FAILED   Python $version: no environment" status=1 ;;
    esac
done

printf "\nmake test-all:$report\n"
exit $status
