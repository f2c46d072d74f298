package io.djltp.spark;

import org.apache.spark.SparkConf;
import org.apache.spark.sql.SparkSession;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** Sessions of Spark for tests. */
public final class TestCluster {

    private TestCluster() {}

    /** Returns two executors, each a JVM of one core. */
    public static SparkSession twoExecutors() throws IOException {
        return twoExecutors(new SparkConf());
    }

    /** Returns two executors, each a JVM of one core. */
    public static SparkSession twoExecutors(SparkConf conf) throws IOException {
        return start("local-cluster[2,1,1024]", conf);
    }

    /** Returns a session on a master. */
    public static SparkSession start(String master, SparkConf conf) throws IOException {
        // Spark looks for its jars there, of which the class path has all
        Files.createDirectories(Path.of(System.getenv("SPARK_HOME"), "jars"));
        Path work = Files.createDirectories(Path.of("target", "spark")).toAbsolutePath();
        conf.set("spark.executor.extraClassPath", System.getProperty("java.class.path"));
        conf.set(
                "spark.executor.extraJavaOptions",
                "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Dai.djl.offline=true -Djava.io.tmpdir="
                        + Files.createDirectories(work.resolve("tmp")));
        conf.set("spark.executor.heartbeatInterval", "500ms");
        conf.set("spark.ui.enabled", "false");
        conf.set("spark.local.dir", work.toString());
        conf.set("spark.sql.warehouse.dir", work.resolve("warehouse").toString());
        conf.set("spark.sql.shuffle.partitions", "3");
        conf.set("spark.driver.host", "localhost");
        return SparkSession.builder().appName("tp-spark").master(master).config(conf).getOrCreate();
    }

    /** Does something in another thread, as soon as a stage of a session is at work. */
    public static void whenAJobRuns(SparkSession spark, Runnable action) {
        Thread watcher =
                new Thread(
                        () -> {
                            while (spark.sparkContext().statusTracker().getActiveStageIds().length
                                    == 0) {
                                Thread.onSpinWait();
                            }
                            action.run();
                        });
        watcher.start();
    }
}
