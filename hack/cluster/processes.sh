# shellcheck shell=bash
# The processes of the cluster: started with a log, recorded, looked at and ended. Sourced by cluster.sh.
# shellcheck disable=SC2154 # env.sh sets cluster

# born prints when a process was started, in ticks since boot: with the pid it names a process for good.
born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

record() {
  mkdir -p "$cluster/processes/$(dirname "$1")"
  printf '%s %s\n' "$2" "$(born "$2")" >"$cluster/processes/$1"
}

# pid_of NAME prints the pid of a recorded process, as the host sees it, and fails when it does not run.
pid_of() {
  local pid ticks
  [ -s "$cluster/processes/$1" ] || return 1
  read -r pid ticks <"$cluster/processes/$1"
  [ "$(born "$pid")" = "$ticks" ] || return 1
  printf '%s\n' "$pid"
}
running() { pid_of "$1" >/dev/null; }
ended() { ! running "$1"; }

# daemon NAME COMMAND... starts a process in a session of its own, with its output in logs/NAME.log, and records it. What
# only waits for another is NAME.parent and shares that one's log.
daemon() {
  local name=$1 log=$cluster/logs/${1%.parent}.log
  shift
  mkdir -p "$(dirname "$log")"
  setsid "$@" >>"$log" 2>&1 </dev/null 9>&- &
  record "$name" $!
}

# child_of PID prints the only child of a process.
child_of() { pgrep -P "$1" | head -n 1 | grep .; }

# in_node NODE COMMAND... runs a command in all namespaces of a node.
in_node() {
  local init
  init=$(pid_of "$1/init") || die "$1 does not run: make cluster starts it"
  shift
  nsenter -t "$init" -m -p -n -u -i --wd=/ -- "$@"
}

# node_daemon NODE PART COMMAND... starts a process inside a node and records its pid as the host sees it.
node_daemon() {
  local node=$1 part=$2 init parent
  shift 2
  init=$(pid_of "$node/init")
  daemon "$node/$part.parent" nsenter -t "$init" -m -p -n -u -i --wd=/ -- "$@"
  parent=$(pid_of "$node/$part.parent") && wait_for 5 child_of "$parent" >/dev/null || return 0
  record "$node/$part" "$(child_of "$parent")"
}

end_process() {
  local pid
  if pid=$(pid_of "$1"); then
    kill "$pid" 2>/dev/null || true
    kill -CONT "$pid" 2>/dev/null || true
    if ! wait_for 20 ended "$1"; then
      kill -9 "$pid" 2>/dev/null || true
      wait_for 20 ended "$1" || die "$1 (process $pid) does not end"
    fi
  fi
  rm -f "$cluster/processes/$1"
}

# failed NAME says that a component does not work and shows the end of its log.
failed() {
  local log=$cluster/logs/${1%.parent}.log
  warn "error: $1 $2; the end of $log:"
  if [ -s "$log" ]; then tail -n 20 "$log" | cut -c1-300 | sed 's/^/    /' >&2; fi
  warn "make cluster goes on from here once the cause is gone; make cluster-down removes everything"
  exit 1
}

# ready NAME SECONDS COMMAND... waits until COMMAND succeeds, and no longer than the component lives.
ready() {
  local name=$1 seconds=$2
  shift 2
  # shellcheck disable=SC2317 # wait_for calls it
  ready_or_ended() { ended "$name" || "$@" >/dev/null 2>&1; }
  if ! wait_for "$seconds" ready_or_ended "$@"; then failed "$name" "is not ready after $seconds s"; fi
  running "$name" || failed "$name" "has ended"
}
