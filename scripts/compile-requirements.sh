#!/usr/bin/env bash
# Writes requirements/*.txt from requirements/*.in: exact versions with hashes, for every platform, no registry hosts.
# In: requirements/*.in (and what is pinned already: pass --upgrade to move on). Out: requirements/*.txt.
# dev.txt is compiled first and constrains the others, so that one package has one version everywhere.
set -euo pipefail
cd "$(dirname "$0")/../requirements"
uv=${UV:-../.venv/bin/uv}
compile() {
  local output=$1
  shift
  "$uv" pip compile --quiet --universal --generate-hashes --python-version 3.11 \
    --no-emit-index-url --no-emit-find-links --no-annotate --no-header ${options[@]+"${options[@]}"} "$@" -o "$output"
}
options=("$@")
compile dev.txt build.in core.in spark.in dev.in
compile spark.txt core.in spark.in -c dev.txt
compile core.txt core.in -c dev.txt
compile build.txt build.in -c dev.txt
