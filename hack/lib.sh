# shellcheck shell=bash
# Functions shared by the scripts of this folder. Source it; it changes nothing but shell functions and variables.

# GITVIRT_CACHE holds what is expensive to make and never belongs to a work tree: tools, the guest, downloads.
GITVIRT_CACHE=${GITVIRT_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/gitvirt}

# The versions of the Go tools, in one place.
# shellcheck disable=SC2034 # used by the scripts that source this file
GOLANGCI_LINT_VERSION=v2.12.2
# shellcheck disable=SC2034
PROTOC_GEN_GO_VERSION=v1.36.11
# shellcheck disable=SC2034
PROTOC_GEN_GO_GRPC_VERSION=v1.6.1
# shellcheck disable=SC2034
ACTIONLINT_VERSION=v1.7.12

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }

# die MESSAGE... ends the script; the message says what to do.
die() {
  printf 'error: %s\n' "$*" >&2
  exit 1
}

# now prints the milliseconds since the epoch.
now() { date +%s%3N; }

# seconds_since START prints the time since START (from now), such as "3.4 s".
seconds_since() {
  local elapsed=$(($(now) - $1))
  printf '%d.%d s' $((elapsed / 1000)) $((elapsed % 1000 / 100))
}

# progress WHAT COMMAND... runs COMMAND with its output in a file. After two seconds it says that it is still at it,
# on a terminal every second in place, elsewhere every 10 seconds. If COMMAND fails, the end of its output is shown.
# Its process is in progress_pid meanwhile, for stop_progress in a trap: bash makes it deaf to Ctrl-C. Where progress_limit is
# set, COMMAND is stopped after so many seconds, and has failed.
progress_pid=
progress_limit=
progress() {
  local what=$1 log pid start status=0 ticks=0 shown=
  shift
  log=$(mktemp "${TMPDIR:-/tmp}/gitvirt-progress.XXXXXX")
  start=$(now)
  "$@" >"$log" 2>&1 </dev/null &
  pid=$!
  progress_pid=$pid
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.1
    ticks=$((ticks + 1))
    if [ -n "$progress_limit" ] && [ $(($(now) - start)) -gt $((progress_limit * 1000)) ]; then
      echo "stopped after $progress_limit s: it should have ended long ago" >>"$log"
      stop_progress
      break
    fi
    if [ "$ticks" -lt 20 ]; then continue; fi
    if [ -t 1 ]; then
      if [ $((ticks % 10)) -eq 0 ]; then
        printf '\r  %s ... %d s' "$what" $((($(now) - start) / 1000))
        shown=1
      fi
    elif [ $(((ticks - 20) % 100)) -eq 0 ]; then
      say "  $what ... $((($(now) - start) / 1000)) s"
    fi
  done
  wait "$pid" || status=$?
  progress_pid=
  if [ -n "$shown" ]; then printf '\r\033[K'; fi
  if [ "$status" -ne 0 ]; then
    warn "  $what: failed after $(seconds_since "$start")"
    tail -n 20 "$log" | sed 's/^/    /' >&2
  else
    say "  $what: $(seconds_since "$start")"
  fi
  rm -f "$log"
  return "$status"
}

stop_progress() {
  if [ -n "$progress_pid" ]; then
    pkill -P "$progress_pid" 2>/dev/null || true
    kill "$progress_pid" 2>/dev/null || true
  fi
}

# retry COMMAND... runs it up to three times, for what depends on a network.
retry() {
  local attempt
  for attempt in 1 2 3; do
    if "$@"; then return 0; fi
    if [ "$attempt" -lt 3 ]; then sleep $((attempt * 2)); fi
  done
  return 1
}

# wait_for SECONDS COMMAND... runs COMMAND every 0.1 seconds until it succeeds.
wait_for() {
  local deadline=$(($(now) + $1 * 1000))
  shift
  until "$@"; do
    if [ "$(now)" -gt "$deadline" ]; then return 1; fi
    sleep 0.1
  done
}

need_root() {
  if [ "$(id -u)" -ne 0 ]; then
    die "$1 needs root: run it as root or with sudo -E"
  fi
}

# one_build_at_a_time WHAT waits until no other script builds the same thing into the cache, and keeps others out until this one ends.
one_build_at_a_time() {
  mkdir -p "$GITVIRT_CACHE"
  exec 9>"$GITVIRT_CACHE/$1.lock"
  flock -n 9 || {
    say "$1: waiting for another build"
    flock 9
  }
}

# go_tool NAME MODULE VERSION prints the path of a Go tool and builds it first if it is not there. Each version has
# a file of its own outside the work tree, so branches that want different versions do not fight.
go_tool() {
  local name=$1 module=$2 version=$3 dir=$GITVIRT_CACHE/bin tmp
  if [ ! -x "$dir/$name-$version" ]; then
    mkdir -p "$dir"
    tmp=$(mktemp -d "$dir/.$name.XXXXXX")
    if ! GOBIN=$tmp GOFLAGS='-trimpath -gcflags=all=-dwarf=false -ldflags=-w' GOGC=400 progress "building $name $version (once)" retry go install "$module@$version" >&2; then
      rm -rf "$tmp"
      die "cannot build $name $version; is the Go module proxy ($(go env GOPROXY)) within reach?"
    fi
    mv "$tmp/$name" "$dir/$name-$version"
    rm -rf "$tmp"
  fi
  say "$dir/$name-$version"
}

golangci_lint() {
  go_tool golangci-lint github.com/golangci/golangci-lint/v2/cmd/golangci-lint "$GOLANGCI_LINT_VERSION"
}
