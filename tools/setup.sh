# Sourced by ./quickstart and ./check: brings the machine to the point where build/augur exists.
# Each stage looks first and does nothing when its work is already done, so a second run needs no network.
# shellcheck shell=bash

program_packages=(
  build-essential ccache cmake git ninja-build python3-venv
  libboost-dev libcli11-dev libfmt-dev libpcre2-dev libutf8proc-dev libyaml-dev nlohmann-json3-dev
  libjs-chart.js # embedded in reports
)
check_packages=(
  clang libclang-rt-dev # sanitizers and fuzzing
  libgtest-dev
)

say() { printf '\033[1m== %d:%02d  %s\033[0m\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; } # with the time since the start
die() { printf 'augur: %s\n' "$*" >&2; exit 2; }
has_gpu() { [[ $(nvidia-smi -L 2>/dev/null) == *GPU* ]]; } # not by grep -q, which ends nvidia-smi by a signal

# show_progress COMMAND...: shows how long it has taken and the last line it wrote: in place on a terminal, a line every
# 15 seconds elsewhere. Where it fails, all it wrote.
show_progress() {
  local log start=$SECONDS shown=$SECONDS status=0 line
  log=$(mktemp)
  "$@" >"$log" 2>&1 &
  local command=$!
  trap 'kill $command 2>/dev/null; exit 130' INT TERM # what runs in the background does not hear Ctrl-C
  while kill -0 $command 2>/dev/null; do
    sleep 0.5
    line=$(tail -c 2000 "$log" | tr '\r' '\n' | grep -v '^ *$' | tail -1 | cut -c1-"$((${COLUMNS:-100} - 10))") || true
    if [ -t 1 ]; then
      printf '\r\033[K%5d s  %s' $((SECONDS - start)) "$line"
    elif [ $((SECONDS - shown)) -ge 15 ]; then
      shown=$SECONDS
      printf '%5d s  %s\n' $((SECONDS - start)) "$line"
    fi
  done
  wait $command || status=$?
  trap - INT TERM
  [ ! -t 1 ] || printf '\r\033[K'
  [ $status -eq 0 ] || cat "$log" >&2
  rm -f "$log"
  return $status
}

# install_system_packages NAME...: those that are not there yet.
install_system_packages() {
  local missing=()
  local name
  for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  say "installing system packages: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      { printf 'augur: missing packages %s; run as root, or install sudo\n' "${missing[*]}" >&2 && return 2; }
    as_root=(sudo)
  fi
  "${as_root[@]}" true || return # asks for a password now
  show_progress "${as_root[@]}" apt-get update || say "apt-get update failed; going on with the lists that are there"
  show_progress "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 install -y --no-install-recommends "${missing[@]}"
}

# For the tests that look at a page. Ubuntu has Chromium as a snap alone; there, and without network, they are skipped.
install_browser() {
  if command -v chromium >/dev/null || ! [[ $(apt-cache policy chromium 2>/dev/null) == *"Candidate: "[0-9]* ]]; then return; fi
  install_system_packages chromium || say "Chromium could not be installed: tests of pages will be skipped"
}

site_packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# install_with_uv VENV REQUIREMENTS: unpacks torch's 3 GB with all cores, in a fourth of pip's time, from where pip is told
# to take packages. Fails where pip is told more than that. Cut off, it may leave half a package that counts as
# installed: VENV/unfinished then holds a line, and the next time all is installed anew.
uv=uv==0.13.8
install_with_uv() {
  local python=$1/bin/python requirements=$2 settings name value sources=() again=()
  settings=$("$python" -m pip config list) || return
  ! grep -qE '\.(extra-index-url|no-index|trusted-host|client-cert|proxy|constraint|no-binary|only-binary)=|\\n' \
    <<<"$settings" || return
  for name in index-url find-links cert; do
    value=$(sed -n "s/^[^=]*\.$name='\(.*\)'\$/\1/p" <<<"$settings" | head -1)
    case $name:$value in
    *:) ;;
    cert:*) local -x SSL_CERT_FILE=$value ;;
    *) sources+=("--$name" "$value") ;;
    esac
  done
  "$python" -m pip install --quiet --disable-pip-version-check "$uv" || return
  [ ! -s "$1/unfinished" ] || again=(--reinstall)
  echo uv >"$1/unfinished"
  UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT:-180} "$python" -m uv --no-config pip install --python "$python" "${sources[@]}" \
    "${again[@]}" -r "$requirements"
}

install_with_pip() { "$1/bin/python" -m pip install --progress-bar off --disable-pip-version-check --no-compile "${@:2}"; }

# with_included REQUIREMENTS: the file and those that it includes.
with_included() { echo "$1" && sed -n 's/^-r //p' "$1"; }

# installed DIR REQUIREMENTS: whether what it asks for now is there.
installed() {
  local file
  for file in $(with_included "$2"); do cmp -s "$file" "$1/installed-$file" || return; done
}

note_installed() { # note_installed DIR REQUIREMENTS
  local file
  for file in $(with_included "$2"); do cp "$file" "$1/installed-$file"; done
}

# make_venv DIR REQUIREMENTS [BASE]: a virtual environment holding the pinned packages; with BASE, layered on that one,
# so that what is installed there is not installed again.
make_venv() {
  local dir=$1 requirements=$2 base=${3:-} again=()
  ! installed "$dir" "$requirements" || return 0
  say "installing Python packages into $dir"
  if [ ! -x "$dir/bin/python" ] || [ -e "$dir/unfinished" ]; then
    mkdir -p "$dir" && touch "$dir/unfinished"
    show_progress python3 -m venv "$dir"
  fi
  if [ -n "$base" ]; then # which uv would not see
    realpath "$(site_packages "$base")" >"$(site_packages "$dir")/base.pth"
    show_progress install_with_pip "$dir" -r "$requirements"
  elif ! show_progress install_with_uv "$dir" "$requirements"; then
    say "uv could not install them; pip does"
    [ ! -s "$dir/unfinished" ] || again=(--force-reinstall)
    show_progress install_with_pip "$dir" "${again[@]}" -r "$requirements"
  fi
  rm -f "$dir/unfinished"
  # `import augur` in this environment finds the source tree, which loads build/libaugur_torch.so.
  realpath python >"$(site_packages "$dir")/augur.pth"
  note_installed "$dir" "$requirements"
}

# install_apart FOLDER REQUIREMENTS VENV: packages alone, without what they depend on, in a folder of an environment.
install_apart() {
  local folder=$1 requirements=$2 venv=$3
  ! installed "$folder" "$requirements" || return 0
  say "installing Python packages into $folder"
  show_progress install_with_pip "$venv" --no-deps --upgrade --target "$folder" -r "$requirements"
  note_installed "$folder" "$requirements"
}

# Environments for the adapters' tests, one per framework, with the oldest version that is supported in a folder apart.
adapters=(trl verl)
make_adapter_venvs() {
  local name
  for name in "${adapters[@]}"; do
    make_venv ".venv-$name" "requirements-$name.txt" .venv
    install_apart ".venv-$name/oldest" "requirements-$name-oldest.txt" ".venv-$name"
  done
}

# configure OPTION...: CMake's configuration of build/ with these options ON: a new one has the others OFF, one that is
# there keeps them as they are.
configure() {
  local missing=() option
  if [ ! -f build/build.ninja ]; then
    missing=(-DAUGUR_CUDA=OFF -DAUGUR_TESTS=OFF)
  fi
  for option in "$@"; do
    grep -qs "^$option:BOOL=ON$" build/CMakeCache.txt || missing+=("-D$option=ON")
  done
  ! grep -qs "^AUGUR_TORCH:BOOL=OFF$" build/CMakeCache.txt || missing+=(-DAUGUR_TORCH=ON)
  local -x PATH="/usr/local/cuda/bin:$PATH"
  local no_nvcc='^CMAKE_CUDA_COMPILER:.*NOTFOUND$' # CMake would not look again for one that has come since
  ! { grep -qs "$no_nvcc" build/CMakeCache.txt && command -v nvcc >/dev/null; } || missing+=(-UCMAKE_CUDA_COMPILER)
  [ ${#missing[@]} -gt 0 ] || return 0
  say "configuring build/"
  show_progress cmake --preset default "${missing[@]}"
  ! grep -qs "$no_nvcc" build/CMakeCache.txt || say "no nvcc 13 was found: this builds for CPUs alone"
}

# build_augur [TARGET...]: all targets unless some are named.
build_augur() {
  say "building build/augur"
  NINJA_STATUS="[%f of %t] " show_progress ninja -C build "$@"
  [ -z "${setting_up:-}" ] || exec {setting_up}>&-
}

# Compiles what needs no torch, a third of a build, in the background. A fault shows again in the whole build.
start_build_without_torch() {
  [ ! -f build/build.ninja ] || return 0
  cmake --preset default -DAUGUR_TORCH=OFF -DAUGUR_CUDA=OFF -DAUGUR_TESTS=OFF >/dev/null 2>&1 || return 0
  nice ninja -C build -j "$(nproc)" >/dev/null 2>&1 &
}
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT # Ctrl-C ends what runs in the background, too

# One at a time from here to the end of build_augur: two would write the same files.
wait_for_others() {
  mkdir -p build
  exec {setting_up}>build/setting-up
  flock -n "$setting_up" && return
  say "waiting for another ./quickstart or ./check in this folder"
  flock "$setting_up"
}

# set_up_python REQUIREMENTS [PACKAGE...]: everything but the build; Debian's packages and those of the program.
set_up_python() {
  command -v python3 >/dev/null || install_system_packages python3 python3-venv # a container's image may have none
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "Python 3.11 or newer is needed and $(python3 --version) found; install it and put it first in PATH"
  install_system_packages "${program_packages[@]}" "${@:2}"
  wait_for_others
  ! installed .venv "$1" || return 0
  start_build_without_torch
  make_venv .venv "$1"
  kill $(jobs -p) 2>/dev/null || true # the whole build goes on with what it has made
  wait
}
