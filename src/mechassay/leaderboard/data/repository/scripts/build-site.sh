#!/usr/bin/env bash
# Builds the pages in site/ from results/.
set -euo pipefail
cd "$(dirname "$0")/.."

rm -rf site
mkdir site
if [ -d results/.recomputed ]; then
  cp -r results/.recomputed site/recomputed
fi
if [ -n "$(find results -mindepth 2 -maxdepth 2 -name submission.json)" ]; then
  mechassay leaderboard build results -o site
else
  echo "<!doctype html><meta charset=utf-8><title>Board</title><p>No submission yet." > site/index.html
fi
