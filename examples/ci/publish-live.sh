#!/bin/sh
# Puts what lives onto the branch gitvirt/live of a repository, as its only commit, for the jobs of CI. Nothing in it is secret. Run
# it every few minutes where gitvirt runs, by cron or a timer, as somebody who may push that branch.
#
# Usage: publish-live.sh REPOSITORY [FLAG of gitvirt snapshot]...
set -eu
repository=${1:?"usage: publish-live.sh REPOSITORY [FLAG of gitvirt snapshot]..."}
shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
gitvirt snapshot "$@" >"$work/live.json"
git init --quiet "$work"
git -C "$work" add live.json
git -C "$work" -c user.name=gitvirt -c user.email=gitvirt@localhost commit --quiet --message 'What lives'
git -C "$work" push --quiet --force "$repository" HEAD:refs/heads/gitvirt/live
