#!/usr/bin/env bash
# Puts the branch `results` of origin into the folder results/: an empty one if there is none yet.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
git ls-remote --exit-code origin refs/heads/results > /dev/null || status=$?
if [ "$status" -eq 0 ]; then
  git fetch --quiet --no-tags origin "+refs/heads/results:refs/remotes/origin/results"
  start=refs/remotes/origin/results
elif [ "$status" -eq 2 ]; then
  export GIT_AUTHOR_NAME=board GIT_AUTHOR_EMAIL=board@localhost
  export GIT_COMMITTER_NAME=board GIT_COMMITTER_EMAIL=board@localhost
  start=$(git commit-tree "$(git mktree < /dev/null)" -m "No results yet")
else
  exit "$status"
fi
if [ -e results/.git ]; then
  git -C results checkout --quiet --force --detach "$start"
else
  git worktree prune
  git worktree add --quiet --detach results "$start"
fi
