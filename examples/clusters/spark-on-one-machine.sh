#!/usr/bin/env bash
# One machine as a standalone cluster of Spark, to try examples/clusters/spark.sh: a master and some workers.
#   examples/clusters/spark-on-one-machine.sh start DIR [WORKERS [CORES [MEMORY]]]    prints what to export
#   examples/clusters/spark-on-one-machine.sh stop DIR
# With SPARK_HOME, that of a distribution of Spark; without, of the jars that Maven has for this build.
# PORT: that of the master (17077); its page and the page and port of each worker are any free ones.
set -euo pipefail
command=${1:?start or stop}
mkdir -p "${2:?a folder}"
dir=$(cd "$2" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)

stop() {
    local pids=()
    for pidfile in "$dir"/worker*.pid "$dir"/master.pid; do
        [ ! -f "$pidfile" ] || pids+=("$(cat "$pidfile")")
        rm -f "$pidfile"
    done
    for pid in ${pids[@]+"${pids[@]}"}; do
        kill "$pid" 2>/dev/null || continue
        for _ in $(seq 1 150); do
            kill -0 "$pid" 2>/dev/null || continue 2
            sleep 0.2
        done
        echo "spark-on-one-machine.sh: process $pid has not ended within 30 s" >&2
    done
}

if [ "$command" = stop ]; then
    stop
    exit
fi
workers=${3:-2}
cores=${4:-1}
memory=${5:-3g}
port=${PORT:-17077}
host=127.0.0.1

# A distribution has jars and bin/spark-class; of the jars of Maven this makes as much of one.
if [ -z "${SPARK_HOME:-}" ]; then
    version() { sed -n "s:.*<$1.version>\(.*\)</$1.version>.*:\1:p" "$root/pom.xml"; }
    cat >"$dir/pom.xml" <<P
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>local</groupId><artifactId>spark</artifactId><version>1</version>
  <dependencies><dependency>
    <groupId>org.scala-lang</groupId><artifactId>scala-library</artifactId><version>$(version scala)</version>
  </dependency><dependency>
    <groupId>org.apache.spark</groupId><artifactId>spark-mllib_2.13</artifactId><version>$(version spark)</version>
  </dependency></dependencies>
</project>
P
    plugin=org.apache.maven.plugins:maven-dependency-plugin
    plugin=$plugin:$(sed -n '/maven-dependency-plugin/{n;s:.*<version>\(.*\)</version>.*:\1:p;}' "$root/pom.xml")
    "$root/mvnw" -q -B -ntp -f "$dir/pom.xml" "$plugin:build-classpath" -Dmdep.outputFile="$dir/jars.txt" >&2
    export SPARK_HOME=$dir/spark
    rm -rf "$SPARK_HOME"
    mkdir -p "$SPARK_HOME/jars" "$SPARK_HOME/bin"
    tr ':' '\n' <"$dir/jars.txt" | xargs -I{} ln -sf {} "$SPARK_HOME/jars"
    cat >"$SPARK_HOME/bin/spark-class" <<'S'
#!/usr/bin/env bash
export SPARK_HOME=$(cd "$(dirname "$0")/.." && pwd) SPARK_SCALA_VERSION=2.13
java=${JAVA_HOME:+$JAVA_HOME/bin/}java
readarray -d '' -t words < <("$java" -cp "$SPARK_HOME/jars/*" org.apache.spark.launcher.Main "$@")
exec "${words[1]#$'\n'}" "${words[@]:2}" # the first line is empty
S
    printf '#!/usr/bin/env bash\nexec "$(dirname "$0")/spark-class" org.apache.spark.deploy.SparkSubmit "$@"\n' \
        >"$SPARK_HOME/bin/spark-submit"
    chmod +x "$SPARK_HOME/bin/"*
fi
export SPARK_SCALA_VERSION=2.13

start() { # name, class, arguments
    local name=$1
    shift
    "$SPARK_HOME/bin/spark-class" "$@" >"$dir/$name.log" 2>&1 &
    echo $! >"$dir/$name.pid"
}

await() { # text, file
    for _ in $(seq 1 300); do
        ! grep -q "$1" "$dir/$2" || return 0
        sleep 0.2
    done
    echo "spark-on-one-machine.sh: $dir/$2 does not say '$1':" >&2
    tail -n 20 "$dir/$2" >&2
    stop
    exit 1
}

start master org.apache.spark.deploy.master.Master --host "$host" --port "$port" --webui-port 0
await "I have been elected leader" master.log
for i in $(seq 1 "$workers"); do
    start "worker$i" org.apache.spark.deploy.worker.Worker --host "$host" --webui-port 0 \
        --cores "$cores" --memory "$memory" --work-dir "$dir/work$i" "spark://$host:$port"
    await "Successfully registered with master" "worker$i.log"
done
echo "export SPARK_HOME=$SPARK_HOME MASTER=spark://$host:$port"
