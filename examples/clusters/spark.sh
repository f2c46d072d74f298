#!/usr/bin/env bash
# The lemmatiser under spark-submit: the arguments are those of LemmatiserOnSpark.
#   export SPARK_HOME=... MASTER=spark://host1:7077
#   EXECUTORS=8 examples/clusters/spark.sh --ranks 8 --words 1000000
# Started again when an executor is lost, and going on from the last checkpoint:
#   examples/clusters/spark.sh --checkpoints /mnt/shared/run --attempts 3
# EXECUTORS: how many (2, as --ranks has). CORES: of each (1). MEMORY: its Java heap (1g).
# OVERHEAD: its memory outside of that, where the weights are (2g). DEPLOY: client or cluster.
# More words for spark-submit are in SPARK_OPTIONS. For a program of your own, APP and CLASS.
set -euo pipefail
: "${SPARK_HOME:?the folder of Spark}" "${MASTER:?such as spark://host1:7077}"
root=$(cd "$(dirname "$0")/../.." && pwd)
jars=$root/examples/spark/target/jars.txt
if [ ! -f "$jars" ] || [ -n "$(find "$root"/pom.xml "$root"/*/pom.xml "$root"/*/spark/pom.xml "$root"/*/src/main "$root"/*/spark/src/main \
        -type f -newer "$jars" -print -quit)" ]; then
    (cd "$root" && ./mvnw -q -B -ntp -Pspark -pl :examples-spark -am package -Dmaven.test.skip=true -Dfmt.skip -Dnullaway.skip) >&2
    touch "$jars"
fi
cores=${CORES:-1}

# One task an executor: spark.task.cpus is spark.executor.cores. No Internet: DJL finds libtorch among the jars.
# shellcheck disable=SC2086 # words
exec "$SPARK_HOME/bin/spark-submit" --master "$MASTER" --deploy-mode "${DEPLOY:-client}" \
    --num-executors "${EXECUTORS:-2}" --total-executor-cores $((${EXECUTORS:-2} * cores)) \
    --executor-cores "$cores" --conf spark.task.cpus="$cores" \
    --executor-memory "${MEMORY:-1g}" --conf spark.executor.memoryOverhead="${OVERHEAD:-2g}" \
    --conf spark.dynamicAllocation.enabled=false \
    --conf spark.driver.maxResultSize=2g \
    --conf spark.executor.extraJavaOptions=-Dai.djl.offline=true \
    --conf spark.driver.extraJavaOptions=-Dai.djl.offline=true \
    ${SPARK_OPTIONS:-} \
    --jars "$(tr ':' ',' <"$jars")" \
    --class "${CLASS:-io.djltp.examples.spark.LemmatiserOnSpark}" \
    "${APP:-$root/examples/spark/target/examples-spark-0.1.0.jar}" "$@"
