#!/usr/bin/env bash
# Shows what gitvirt does, on real parts: a git server, a registry, libvirt, and guests that boot.
#
#   hack/demo.sh          the whole story, then everything it made is removed
#   KEEP=1 hack/demo.sh   leaves it running and says what to try
#   hack/demo.sh clean    removes what KEEP=1, or a run that was killed, left behind
#
# Everything is below /var/lib/gitvirt-demo (DEMO_DIR); a domain is removed only if its files are there.
set -euo pipefail
cd "$(dirname "$0")/.."
root=$PWD
. hack/lib.sh

demo=${DEMO_DIR:-/var/lib/gitvirt-demo}
uri=qemu:///system
state=$demo/state
work=$demo/work
proof_limit=${DEMO_PROOF_LIMIT:-90} # seconds for a guest to boot and say what it was told
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_NOSYSTEM=1 GIT_TERMINAL_PROMPT=0

# --- the stages, with their times -------------------------------------------------------------------------------

stage_name=
stage_start=0
demo_start=$(now)
timings=()

end_stage() {
  if [ -n "$stage_name" ]; then timings+=("$(printf '%8s  %s' "$(seconds_since "$stage_start")" "$stage_name")"); fi
  stage_name=
}

stage() {
  end_stage
  stage_name=$1
  stage_start=$(now)
  printf '\n== %s\n' "$1"
}

# show runs a command and prints it first, the way a user would type it.
show() {
  printf '$ %s\n' "${*//$demo\//}"
  "$@"
}

# --- processes that the demo starts -------------------------------------------------------------------------------

# born prints when a process was started, in ticks since boot: with the pid it names a process for good.
born() { sed 's/.*) //' "/proc/$1/stat" 2>/dev/null | cut -d' ' -f20; }

# daemon NAME COMMAND... starts a process in a session of its own, with its output in NAME.log, and records it.
daemon() {
  local name=$1 pid
  shift
  setsid "$@" >>"$demo/$name.log" 2>&1 </dev/null 9>&- &
  pid=$!
  record_process "$name" "$pid"
}

record_process() { printf '%s %s\n' "$2" "$(born "$2")" >"$demo/processes/$1"; }

running() {
  local pid ticks
  [ -s "$demo/processes/$1" ] || return 1
  read -r pid ticks <"$demo/processes/$1"
  [ "$(born "$pid")" = "$ticks" ]
}
ended() { ! running "$1"; }

end_process() {
  local pid
  if running "$1"; then
    read -r pid _ <"$demo/processes/$1"
    kill "$pid" 2>/dev/null || true
    if ! wait_for 15 ended "$1"; then kill -9 "$pid" 2>/dev/null || true; fi
  fi
  rm -f "$demo/processes/$1"
}

# --- removing what was made ---------------------------------------------------------------------------------------

libvirt_answers() { timeout 60 virsh -q -c "$uri" version >/dev/null 2>&1; }

# our_domains prints the domains that have files below the demo's folder.
our_domains() {
  local domain domains xml
  domains=$(virsh -q -c "$uri" list --all --name)
  for domain in $domains; do
    xml=$(virsh -q -c "$uri" dumpxml "$domain" 2>/dev/null) || continue
    case $xml in *"$state/"*) printf '%s\n' "$domain" ;; esac
  done
}

remove_all() {
  local domain domains name
  [ -d "$demo/processes" ] || return 0
  end_process controller
  # An agent whose controller was killed goes on; the folder it was given says that it is the demo's.
  pkill -f "gitvirt-agent .*--state-dir $state/" 2>/dev/null || true
  for name in "$demo"/processes/*; do
    case ${name##*/} in '*' | libvirtd | virtlogd) ;; *) end_process "${name##*/}" ;; esac
  done
  # When libvirtd died with the last run and was the demo's own, somebody has to be there to remove the domains.
  if [ -s "$demo/processes/libvirtd" ] && ended libvirtd; then start_libvirt; fi
  if libvirt_answers; then
    domains=$(our_domains)
    for domain in $domains; do
      virsh -q -c "$uri" destroy "$domain" >/dev/null 2>&1 || true
      virsh -q -c "$uri" undefine --nvram "$domain" >/dev/null
    done
    domains=$(our_domains)
    [ -z "$domains" ] || die "these domains could not be removed: $domains"
  elif pgrep -f "qemu-system.*$state/" >/dev/null; then
    die "guests of the demo run in $state and libvirtd, which could stop them, does not answer"
  fi
  end_process libvirtd
  end_process virtlogd
  if [ -f "$demo/kvm-mode" ]; then chmod "$(cat "$demo/kvm-mode")" /dev/kvm || true; fi
  rm -rf --one-file-system "$demo"
}

show_logs() {
  local log
  for log in "$demo"/*.log "$state"/agent/vms/*/*/console.log; do
    [ -s "$log" ] || continue
    warn "--- the end of $log"
    tail -n 25 "$log" | cut -c1-400 >&2
  done
}

# shellcheck disable=SC2317 # the trap calls it
finish() {
  local status=$?
  trap - EXIT
  trap '' INT TERM HUP
  stop_progress
  if [ "$status" -ne 0 ] && [ "$status" -ne 130 ] && [ "$status" -ne 143 ]; then
    show_logs
    warn "the demo failed in: ${stage_name:-the preparation}"
  fi
  if [ "$status" -eq 0 ] && [ -n "${KEEP:-}" ]; then exit 0; fi
  say
  say "cleaning up"
  remove_all
  exit "$status"
}

# --- the parts ----------------------------------------------------------------------------------------------------

port_is_free() { ! (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# free_port FIRST prints the first free port of 127.0.0.1 from FIRST on.
free_port() {
  local port=$1
  until port_is_free "$port"; do port=$((port + 1)); done
  printf '%s\n' "$port"
}

start_libvirt() {
  if [ -c /dev/kvm ] && [ "$(stat -c %a /dev/kvm)" = 600 ]; then
    stat -c %a /dev/kvm >"$demo/kvm-mode"
    chmod 666 /dev/kvm
    say "  /dev/kvm had mode 0600, with which libvirt probes QEMU again at every call; it is 0666 until the demo ends"
  fi
  if libvirt_answers; then
    say "  using the libvirtd that runs here"
    return 0
  fi
  if [ -d /run/systemd/system ]; then
    say "  starting libvirtd with systemctl; it stays on"
    systemctl start virtlogd.socket libvirtd
  else
    say "  no libvirtd runs and there is no systemd: starting virtlogd and libvirtd until the demo ends"
    if ! virt-admin -q -c virtlogd:///system server-list >/dev/null 2>&1; then daemon virtlogd virtlogd; fi
    daemon libvirtd tini -s -- libvirtd
  fi
  wait_for 60 libvirt_answers || die "libvirtd does not answer at $uri"
}

registry_answers() { curl -fsS -o /dev/null "http://127.0.0.1:$registry_port/v2/" 2>/dev/null; }

start_registry() {
  registry_port=$(free_port 5000)
  mkdir -p "$demo/registry"
  cat >"$demo/registry.yml" <<END
version: 0.1
log: {level: error, accesslog: {disabled: true}}
storage: {filesystem: {rootdirectory: $demo/registry}}
http: {addr: 127.0.0.1:$registry_port}
END
  daemon registry env OTEL_TRACES_EXPORTER=none docker-registry serve "$demo/registry.yml"
  wait_for 15 registry_answers || die "the registry does not answer on port $registry_port"
  image=localhost:$registry_port/gitvirt/guest:1
  bin/ociimage -from "$guest/guest.oci" -name "$image" -push >/dev/null
  say "  the guest's image is at $image"
}

start_git_server() {
  mkdir -p "$demo/git"
  git init -q --bare -b main "$demo/git/fleet.git"
  git -C "$demo/git/fleet.git" config http.receivepack true
  daemon gitserver bin/gitserver -root "$demo/git" -url-file "$demo/git.url"
  wait_for 10 test -s "$demo/git.url" || die "the git server does not start"
  git_url=$(cat "$demo/git.url")/fleet.git
  git clone -q "$git_url" "$work" 2>/dev/null
  git -C "$work" config user.name "Demo User"
  git -C "$work" config user.email demo@example.com
  git -C "$work" checkout -q -B main
  say "  the repository is at $git_url"
}

# copy_manifests FOLDER TARGET copies manifests into a folder of the clone, with the registry that really runs.
copy_manifests() {
  cp -R "$1/." "$work/$2"
  if [ "$registry_port" != 5000 ]; then
    find "$work" -name '*.yaml' -exec sed -i "s,localhost:5000/,localhost:$registry_port/," {} +
  fi
}

commit_and_push() {
  git -C "$work" add -A
  git -C "$work" commit -q -m "$1"
  git -C "$work" push -q origin "HEAD:$2"
  say "  pushed to $2: $(git -C "$work" log -1 --format='%h %s')"
}

console() { printf '%s\n' "$state/agent/vms/default/$1/console.log"; }

# said VM LINE reports whether the guest said something on its serial console.
said() { grep -qaF -- "$2" "$(console "$1")" 2>/dev/null; }

# booted VM TIMES reports whether the guest came up so many times.
booted() { [ "$(grep -caF 'gitvirt-guest: ready' "$(console "$1")" 2>/dev/null)" -ge "$2" ]; }

# prove WHAT CHECK... waits for a check and fails loudly when it does not come true in time.
prove() {
  local what=$1
  shift
  progress "proof: $what" wait_for "$proof_limit" still_alive_and "$@" || die "no proof: $what"
}

# still_alive_and CHECK... ends the waiting at once when the controller is gone.
still_alive_and() {
  "$@" && return 0
  running controller || { echo "the controller has ended"; exit 1; }
  return 1
}

domain_is_gone() { virsh -q -c "$uri" list --all --name >"$demo/domains" && ! grep -qx "$1" "$demo/domains"; }

status_is_at() {
  git -C "$work" fetch -q origin +refs/heads/gitvirt/status:refs/remotes/origin/gitvirt/status 2>/dev/null &&
    git -C "$work" grep -qF "$1" refs/remotes/origin/gitvirt/status
}

# --- the story ----------------------------------------------------------------------------------------------------

need_root "the demo (it runs virtual machines)"
case ${1:-} in
clean)
  remove_all
  say "nothing of the demo is left"
  exit 0
  ;;
'') ;;
*) die "usage: hack/demo.sh [clean]" ;;
esac

exec 9>/run/gitvirt-demo.lock
flock -n 9 || die "another demo runs on this machine"

stage "Packages, programs, a guest to run"
hack/setup.sh
progress "make build" make -s build || die "the build failed"
progress "building the demo's git server and image tool" go build -o bin/ ./hack/gitserver ./hack/ociimage
hack/guest/build.sh
guest=$(hack/guest/path.sh)

if [ -d "$demo" ]; then
  say "removing what an earlier demo left in $demo"
  remove_all
fi
mkdir -p "$demo/processes" "$state"
chmod 711 "$demo" "$state"
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

stage "libvirt, a registry and a git server"
start_libvirt
for name in web-1 web-2 web-3 db-1; do
  domain_is_gone "default_$name" || die "this host has a domain default_$name already, which the demo would have to touch"
done
start_registry
start_git_server

stage "The first push: three machines"
copy_manifests examples/quickstart .
commit_and_push "Two web servers and a database" main
say
show bin/gitvirt plan --git "$git_url" --rev main --state-dir "$state"

stage "The controller makes it so"
port=$(free_port 7480)
export GITVIRT_SERVER=http://127.0.0.1:$port
daemon controller bin/gitvirt run --git "$git_url" --branch main --state-dir "$state" --libvirt-uri "$uri" \
  --listen "127.0.0.1:$port" --interval 2s
say "  gitvirt run --git $git_url --branch main --interval 2s"
prove "web-1 read its user data" said web-1 "quickstart: web-1 serves: hello from web-1"
prove "web-2 read its user data" said web-2 "quickstart: web-2 serves: hello from web-2"
prove "db-1 read its user data from a Secret and has its data disk" said db-1 "quickstart: db-1 has a password of 18 characters and a disk of 524288 sectors"
prove "each has its own name" said web-1 "gitvirt-guest: hostname web-1"
say
say "web-1's serial console:"
sed 's/^/  | /' "$(console web-1)" | tr -d '\r'
say
show bin/gitvirt get vms
say
show virsh -c "$uri" list --all

stage "The second push: one changed, one new, one gone"
git -C "$work" checkout -q -b grow
copy_manifests examples/quickstart-next/vms vms
git -C "$work" rm -q vms/db-1.yaml
commit_and_push "More memory for web-1, a third web server, no database" grow
say
say "What merging it would do, before anyone merges:"
show bin/gitvirt plan --git "$git_url" --rev grow --state-dir "$state"
say
git -C "$work" checkout -q main
git -C "$work" merge -q --ff-only grow
git -C "$work" push -q origin main
revision=$(git -C "$work" rev-parse HEAD)
say "  merged: main is at ${revision:0:7}"
prove "web-3 is new and read its user data" said web-3 "quickstart: web-3 serves: hello from web-3"
prove "web-1 was restarted" booted web-1 2
prove "web-1 has more memory" said web-1 "gitvirt-guest: memory 12"
prove "db-1 is gone" domain_is_gone default_db-1
if booted web-2 2; then die "web-2 was restarted although nothing changed for it"; fi
say "  web-2 ran on undisturbed"
say
say "A removed machine's data is kept until somebody says otherwise:"
show bin/gitvirt disks --state-dir "$state"
say
show bin/gitvirt events

stage "The status is in git as well"
prove "the status branch tells of ${revision:0:7}" status_is_at "$revision"
say
show git -C "$work" show origin/gitvirt/status:README.md
say
file=$(git -C "$work" ls-tree -r --name-only origin/gitvirt/status | grep 'web-1\.yaml$')
show git -C "$work" show "origin/gitvirt/status:$file"
end_stage

say
say "The demo took $(seconds_since "$demo_start"):"
printf '%s\n' "${timings[@]}"

if [ -n "${KEEP:-}" ]; then
  cat <<END

It is still running. Things to try, from $root:
  export GITVIRT_SERVER=$GITVIRT_SERVER
  bin/gitvirt get vms -o wide
  bin/gitvirt describe web-1
  virsh -c $uri console default_web-1          # Enter gives a shell, Ctrl-] leaves
  virsh -c $uri destroy default_web-2          # it is back in a moment; then: bin/gitvirt events
  virsh -c $uri setmem default_web-2 65536 --config   # drift, put right within seconds
  cd $work && git pull                          # edit vms/*.yaml, commit, push
  bin/gitvirt plan --git $git_url --state-dir $state
  tail -f $demo/controller.log
Remove it all with:
  hack/demo.sh clean
END
fi
