#!/usr/bin/env bash
# The set-up that ./run and ./test share. Source it from the top of the checkout:
#
#     source scripts/setup.sh
#     setup_python run      # or: test (adds what linters and tests need)
#     setup_java            # sets and exports JAVA_HOME
#     setup_kernels         # compiles the numba kernels into their cache on disk
#
# In: requirements/*.txt, pyproject.toml. Out: .venv in the checkout, and nothing else in it; JAVA_HOME.
# What was set up is remembered as a copy of its inputs, so a second run does nothing. Progress goes to stderr.
# A failure prints one line and exits with 2. Written for bash 3.2 (macOS) and up, on Debian-like systems and macOS.

checkout=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$checkout/.venv
python=$venv/bin/python

say() { printf '%s\n' "$*" >&2; }

fail() {
  say "$*"
  exit 2
}

# Root may install packages of the system; other users get a line that says what to install.
install_with_apt() {
  [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || return 1
  say "Installing $1 with apt-get"
  mkdir -p "$checkout/.state"
  {
    apt-get -q update
    DEBIAN_FRONTEND=noninteractive apt-get -q install -y --no-install-recommends "$@"
  } >"$checkout/.state/apt.log" 2>&1 </dev/null
}

# Homebrew refuses root, and asks its user nothing.
install_with_brew() {
  [ "$(id -u)" != 0 ] && command -v brew >/dev/null || return 1
  say "Installing $1 with Homebrew"
  mkdir -p "$checkout/.state"
  brew install "$@" >"$checkout/.state/brew.log" 2>&1 </dev/null
}

python_is_usable() {
  "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

find_python() {
  local candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3 python3.13 python3.12 python3.11 python3.14; do
    if python_is_usable "$candidate"; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

create_venv() {
  local base
  base=$(find_python) || { install_with_apt python3 python3-venv && base=$(find_python); } ||
    fail "Python 3.11 or newer is missing: install it (Debian: apt-get install python3 python3-venv)."
  if ! "$base" -c 'import ensurepip, venv' 2>/dev/null; then
    install_with_apt python3-venv ||
      fail "Python's venv module is missing: install it (Debian: apt-get install python3-venv)."
  fi
  rm -rf "$venv"
  "$base" -m venv "$venv" || fail "cannot create a virtual environment at $venv"
}

# Everything an environment depends on: where it is, and what it was made from.
inputs_of() {
  printf '%s\n' "$checkout"
  cat "$checkout/pyproject.toml" "$checkout/requirements/build.txt" "$checkout/requirements/$1.txt"
  "$python" "$checkout/hatch_build.py" --inputs # installing compiles them
}

is_set_up() {
  [ -f "$venv/set-up.$1" ] && inputs_of "$1" | cmp -s - "$venv/set-up.$1" && "$python" -c '' 2>/dev/null
}

pip_install() {
  PIP_USER=0 "$python" -m pip --disable-pip-version-check --no-input install "$@" \
    >>"$venv/set-up.log" 2>&1 </dev/null
}

# setup_python run|test: .venv with the product, Spark, and (test) what tests need. Hash-pinned, built without isolation,
# so that no build step fetches anything that is not pinned either.
setup_python() {
  local wanted=spark
  [ "$1" = test ] && wanted=dev
  if [ "$wanted" = spark ] && is_set_up dev; then return; fi
  if is_set_up "$wanted"; then return; fi
  if ! [ -x "$python" ] || ! python_is_usable "$python" || [ "$(cat "$venv/place" 2>/dev/null)" != "$checkout" ]; then
    create_venv
    printf '%s\n' "$checkout" >"$venv/place"
  fi
  rm -f "$venv"/set-up.*
  say "Setting up .venv (once; a few minutes, mostly Spark): $venv/set-up.log"
  pip_install --no-deps --require-hashes -r "$checkout/requirements/build.txt" &&
    pip_install --no-deps --require-hashes --no-build-isolation -r "$checkout/requirements/$wanted.txt" &&
    pip_install --no-deps --no-build-isolation --editable "$checkout" ||
    fail "set-up failed: $(grep -E '^ *(ERROR|error)' "$venv/set-up.log" | tail -n 1) (see $venv/set-up.log)"
  compgen -G "$checkout/src/stratalog/wire/walk.*.so" >/dev/null ||
    say "No C compiler: brokers take records at half the speed or less. Install one (Debian: apt-get install gcc python3-dev), then rm -r .venv"
  inputs_of "$wanted" >"$venv/set-up.$wanted"
}

java_is_usable() {
  local version
  version=$("$1" -version 2>&1 </dev/null | sed -n '1s/.*version "\([0-9]*\).*/\1/p')
  [ -n "$version" ] && [ "$version" -ge 17 ]
}

# Prints the home of a Java 17 or newer: JAVA_HOME's, PATH's, then the usual places.
find_java() {
  local candidate
  for candidate in ${JAVA_HOME:+"$JAVA_HOME/bin/java"} "$(command -v java)" \
    "$(/usr/libexec/java_home -v 17+ 2>/dev/null)/bin/java" \
    /opt/homebrew/opt/openjdk*/bin/java /usr/local/opt/openjdk*/bin/java /usr/lib/jvm/*/bin/java; do
    if [ -x "$candidate" ] && java_is_usable "$candidate"; then
      "$candidate" -XshowSettings:properties -version 2>&1 </dev/null | sed -n 's/^ *java\.home = //p'
      return
    fi
  done
  return 1
}

install_java() {
  install_with_apt openjdk-17-jre-headless || install_with_apt default-jre-headless || install_with_brew openjdk@17
}

setup_java() {
  JAVA_HOME=$(find_java) ||
    { install_java && JAVA_HOME=$(find_java); } ||
    fail "Java 17 or newer is missing and Spark needs it: install it (Debian: apt-get install openjdk-17-jre-headless; macOS: brew install openjdk@17) or set JAVA_HOME."
  export JAVA_HOME
}

setup_kernels() {
  cat "$checkout"/src/stratalog/kernels/*.py | cmp -s - "$venv/kernels.warm" && return
  say "Compiling the decoding kernels (once)"
  "$python" -c 'from stratalog.kernels.decode import warm; warm()' >&2 || fail "cannot compile the decoding kernels"
  cat "$checkout"/src/stratalog/kernels/*.py >"$venv/kernels.warm"
}
