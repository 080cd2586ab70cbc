# Sourced by ./quickstart and ./check: brings the machine to the point where build/augur exists.
# Each stage looks first and does nothing when its work is already done, so a second run needs no network.
# shellcheck shell=bash

system_packages=(
  build-essential ccache cmake git ninja-build python3-venv
  clang libclang-rt-dev # sanitizers and fuzzing
  libbenchmark-dev libcli11-dev libfmt-dev libgtest-dev libpcre2-dev libutf8proc-dev
  libyaml-dev nlohmann-json3-dev
  libjs-chart.js # embedded in reports
)

say() { printf '\033[1m== %d:%02d  %s\033[0m\n' $((SECONDS / 60)) $((SECONDS % 60)) "$*"; } # with the time since the start
die() { printf 'augur: %s\n' "$*" >&2; exit 2; }

# install_system_packages NAME...: those that are not there yet.
install_system_packages() {
  local missing=()
  local name
  for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'install ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing system packages: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "missing packages ${missing[*]}; run as root, or install sudo"
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# For the tests that look at a report. Ubuntu has Chromium as a snap alone; there those tests are skipped.
install_browser() {
  if command -v chromium >/dev/null || ! apt-cache policy chromium 2>/dev/null | grep -q 'Candidate: [0-9]'; then return; fi
  install_system_packages chromium
}

site_packages() { "$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }

# make_venv DIR REQUIREMENTS [BASE]: a virtual environment holding the pinned packages; with BASE, layered on that one,
# so that what is installed there is not installed again.
make_venv() {
  local dir=$1 requirements=$2 base=${3:-}
  if cmp -s "$requirements" "$dir/installed-requirements.txt"; then return; fi
  say "installing Python packages into $dir"
  [ -x "$dir/bin/python" ] || python3 -m venv "$dir"
  [ -z "$base" ] || realpath "$(site_packages "$base")" >"$(site_packages "$dir")/base.pth"
  "$dir/bin/python" -m pip install --quiet --disable-pip-version-check -r "$requirements"
  # `import augur` in this environment finds the source tree, which loads build/libaugur_torch.so.
  realpath python >"$(site_packages "$dir")/augur.pth"
  cp "$requirements" "$dir/installed-requirements.txt"
}

# install_apart FOLDER REQUIREMENTS VENV: packages alone, without what they depend on, in a folder of an environment.
install_apart() {
  local folder=$1 requirements=$2 venv=$3
  if cmp -s "$requirements" "$folder/installed-requirements.txt"; then return; fi
  say "installing Python packages into $folder"
  "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --upgrade --target "$folder" \
    -r "$requirements"
  cp "$requirements" "$folder/installed-requirements.txt"
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

# build_augur [TARGET...]: all targets unless some are named.
build_augur() {
  if [ ! -f build/build.ninja ]; then
    say "configuring build/"
    PATH="/usr/local/cuda/bin:$PATH" cmake --preset default >build-configure.log || {
      cat build-configure.log >&2
      exit 1
    }
    rm -f build-configure.log
  fi
  say "building build/augur"
  ninja -C build --quiet "$@"
}

set_up_python() { # everything but the build
  python3 -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    die "Python 3.11 or newer is needed and $(python3 --version) found; install it and put it first in PATH"
  install_system_packages "${system_packages[@]}"
  make_venv .venv requirements.txt
}

# set_up [TARGET...]: everything build/augur needs, and the named targets, or all.
set_up() {
  set_up_python
  build_augur "$@"
}
