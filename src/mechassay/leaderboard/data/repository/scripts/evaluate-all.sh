#!/usr/bin/env bash
# Evaluates every submission into results/NAME, and removes the results of those that are gone.
# Cells that are done already are not computed again. All options go to `leaderboard evaluate`.
set -euo pipefail
cd "$(dirname "$0")/.."

refused=""
for folder in submissions/*/; do
  name=$(basename "$folder")
  if [ ! -d "$folder" ] || [ -L "submissions/$name" ]; then
    continue
  fi
  status=0
  mechassay leaderboard evaluate "submissions/$name" --track track.yaml -o "results/$name" "$@" ||
    status=$?
  if [ "$status" -eq 1 ]; then
    echo "$name: a cell failed; results/$name/tables.md has the others." >&2
  elif [ "$status" -ne 0 ]; then
    refused="$refused $name"
  fi
done
for folder in results/*/; do
  name=$(basename "$folder")
  if [ -d "$folder" ] && [ ! -d "submissions/$name" ]; then
    echo "$name: is no submission any more; its results are removed." >&2
    rm -r "results/$name"
  fi
done
if [ -n "$refused" ]; then
  echo "Not evaluated:$refused" >&2
  exit 2
fi
