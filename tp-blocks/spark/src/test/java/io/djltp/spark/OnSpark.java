package io.djltp.spark;

import static org.apache.spark.sql.functions.col;

import org.apache.spark.SparkConf;
import org.apache.spark.ml.functions;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;

/** A test with a session of Spark. */
public abstract class OnSpark {

    /** Two executors, each a JVM of one core. */
    protected static final String TWO_EXECUTORS = "local-cluster[2,1,1024]";

    /** Everything in this JVM, on one core. */
    protected static final String LOCAL = "local[1]";

    protected SparkSession spark;

    private final String master;
    private final SparkConf conf = new SparkConf();

    /** Takes a master, and the names and values of settings in turns. */
    protected OnSpark(String master, String... settings) {
        this.master = master;
        for (int i = 0; i < settings.length; i += 2) {
            conf.set(settings[i], settings[i + 1]);
        }
    }

    /** Starts the session, before what subclasses need. */
    @BeforeClass
    public final void startSpark() throws IOException {
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
        spark =
                SparkSession.builder()
                        .appName("tp-spark")
                        .master(master)
                        .config(conf)
                        .getOrCreate();
    }

    /** Stops the session. */
    @AfterClass(alwaysRun = true)
    public final void stopSpark() {
        if (spark != null) {
            spark.stop();
        }
    }

    /** Returns points around the four directions, as a vector and as x and y, with their names. */
    protected final Dataset<Row> directions(int rows) {
        return spark.range(rows)
                .selectExpr("id % 4 * pi() / 2 + id * 0.01 as angle", "int(id) as number")
                .selectExpr(
                        "array(sin(angle), cos(angle), 1d) as point",
                        "element_at(array('north', 'east', 'south', 'west'), number % 4 + 1)"
                                + " as direction",
                        "number")
                .select(
                        functions.array_to_vector(col("point")).as("features"),
                        col("direction"),
                        col("number"),
                        col("point").getItem(0).as("x"),
                        col("point").getItem(1).as("y"));
    }

    /** Does something once a job of Spark's runs. */
    protected final void whenAJobRuns(Runnable action) {
        new Thread(
                        () -> {
                            while (spark.sparkContext().statusTracker().getActiveStageIds().length
                                    == 0) {
                                Thread.onSpinWait();
                            }
                            action.run();
                        })
                .start();
    }
}
