#!/usr/bin/env bash
# Kills and freezes processes of training jobs at random, and shows how the others end.
#   examples/chaos.sh [KILLS [SEED]]      100 kills, and another seed each time
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

echo "chaos: building ..." >&2
(cd "$here" && ./mvnw -q -B -ntp package -DskipTests -Dfmt.skip -Dnullaway.skip) >&2
target=$here/examples/target
exec "$java" -XX:+UseSerialGC -cp "$target/test-classes:$here/tp-engine-bridge/target/test-classes:$target/classes:$(cat "$target/dependencies.txt")" \
    io.djltp.examples.chaos.Chaos "$@"
