#!/usr/bin/env bash
# Kills trainings that save themselves every few steps (SIGKILL at random moments, of one process or two), resumes
# them, and compares their weights in the end with those of trainings that nobody has killed.
#   examples/kill-and-resume.sh [KILLS [AT_ONCE [SEED]]]      200 kills, two trainings at once, another seed each time
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
java=${JAVA_HOME:+$JAVA_HOME/bin/}java

echo "kill-and-resume: building ..." >&2
(cd "$here" && ./mvnw -q -B -ntp package -DskipTests -Dfmt.skip -Dnullaway.skip) >&2
target=$here/examples/target
exec "$java" -XX:+UseSerialGC -Dai.djl.offline=true -Dorg.slf4j.simpleLogger.defaultLogLevel=error \
    -cp "$target/test-classes:$here/tp-engine-bridge/target/test-classes:$target/classes:$(cat "$target/dependencies.txt")" \
    io.djltp.examples.chaos.KillAndResume "$@"
