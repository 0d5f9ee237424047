# shellcheck shell=bash
# The processes of the cluster: started with a log, recorded, looked at and ended. Sourced by cluster.sh.
# shellcheck disable=SC2154 # env.sh sets cluster

# born prints when a process was started, in ticks since boot: with the pid it names a process for good. One that has ended
# and waits for its parent to notice, which may take seconds, is none.
born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | awk '$1 != "Z" { print $20 }'; }

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

# daemon NAME COMMAND... starts a process in a session of its own, with its output in logs/NAME.log, and records it.
daemon() {
  local name=$1
  shift
  setsid "$@" >>"$cluster/logs/$name.log" 2>&1 </dev/null 9>&- &
  record "$name" $!
}

# child_of PID prints the only child of a process.
child_of() { pgrep -P "$1" | head -n 1 | grep .; }

# strays lists processes of this cluster that nobody recorded, because the script that started them was killed meanwhile. Its
# folder is in their arguments.
strays() {
  local exe pid
  for exe in /proc/[0-9]*/exe; do
    case $(readlink "$exe" 2>/dev/null) in
    */etcd | */kube-apiserver | */kube-controller-manager | */kube-scheduler | */unshare)
      pid=${exe#/proc/}
      if tr '\0' ' ' <"${exe%exe}cmdline" | grep -qF "$cluster/"; then printf '%s\n' "${pid%/exe}"; fi
      ;;
    esac
  done 2>/dev/null
}
no_strays() {
  local pid
  for pid in $(strays); do kill -9 "$pid" 2>/dev/null || true; done
  [ -z "$(strays)" ]
}

# in_node NODE COMMAND... runs a command in all namespaces of a node, where the cluster's own programs come first.
in_node() {
  local init
  init=$(pid_of "$1/init") || die "$1 does not run: make cluster starts it"
  shift
  PATH=/run/kubernetes:$PATH nsenter -t "$init" -m -p -n -u -i --wd=/ -- "$@"
}

# node_daemon NODE PART COMMAND... starts a process inside a node, as a child of the node's first process.
node_daemon() {
  local node=$1 part=$2 inside
  shift 2
  # shellcheck disable=SC2016 # the shell inside expands it
  inside=$(in_node "$node" bash -c 'setsid "$@" >&3 2>&3 3>&- </dev/null & echo $!' bash "$@" 3>>"$cluster/logs/$node/$part.log" 9>&-)
  # One that has ended already has no pid to record; whoever waits for it says so.
  outside=
  wait_for 5 pid_outside "$node" "$inside" || true
  if [ -n "$outside" ]; then record "$node/$part" "$outside"; fi
}

# pid_outside NODE PID puts the pid that the host knows a node's process by into outside. It fails while the process is not
# yet a child of the node's first one.
pid_outside() {
  local init pid
  init=$(pid_of "$1/init") || return 0
  in_node "$1" test -d "/proc/$2" || return 0
  for pid in $(pgrep -P "$init"); do
    if [ "$(awk '$1 == "NSpid:" { print $NF }' "/proc/$pid/status" 2>/dev/null)" = "$2" ]; then outside=$pid; fi
  done
  [ -n "$outside" ]
}

# end_process NAME [SECONDS] asks a process to end, and kills it when it takes longer than SECONDS, 0 for at once.
end_process() {
  local pid seconds=${2:-5}
  if pid=$(pid_of "$1"); then
    if [ "$seconds" -gt 0 ]; then
      kill "$pid" 2>/dev/null || true
      kill -CONT "$pid" 2>/dev/null || true
    fi
    if [ "$seconds" -eq 0 ] || ! wait_for "$seconds" ended "$1"; then
      kill -9 "$pid" 2>/dev/null || true
      wait_for 20 ended "$1" || die "$1 (process $pid) does not end"
    fi
  fi
  rm -f "$cluster/processes/$1"
}

# failed NAME says that a component does not work and shows the end of its log.
failed() {
  local log=$cluster/logs/$1.log
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
