package io.djltp.spark;

import org.testng.Assert;
import org.testng.annotations.Test;

import scala.util.Properties;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import javax.tools.ToolProvider;

/** The blocks of Java about Spark, on the page about clusters, compile. */
public class SparkGuideTest {

    private static final Path PAGE =
            Path.of(System.getProperty("basedir", "."), "..", "..", "docs", "cluster.md");
    private static final Pattern BLOCK =
            Pattern.compile(
                    "(?ms)^<!-- java skipped: compiled by SparkGuideTest.*?-->\\s+"
                            + "^```java$(.*?)^```$");
    private static final String BEFORE =
            """
            import io.djltp.rank.ParallelMode;
            import io.djltp.rank.ParallelConfig;
            import io.djltp.spark.*;
            import io.djltp.spark.ml.*;
            import java.nio.file.Path;
            import org.apache.spark.sql.*;
            class Guide%d {
                void read(SparkSession spark, Dataset<Row> training, Dataset<Row> test)
                        throws Exception {
                    %s
                }
            }
            """;

    @Test
    public void everyBlockCompiles() throws IOException {
        Path folder = Files.createTempDirectory("guide");
        List<String> command = new ArrayList<>(List.of("-proc:none", "-d", folder.toString()));
        command.addAll(List.of("-classpath", System.getProperty("java.class.path")));
        Matcher matcher = BLOCK.matcher(Files.readString(PAGE));
        int blocks = 0;
        for (; matcher.find(); blocks++) {
            Path file = folder.resolve("Guide" + blocks + ".java");
            Files.writeString(file, BEFORE.formatted(blocks, matcher.group(1)));
            command.add(file.toString());
        }
        Assert.assertEquals(blocks, 2);
        ByteArrayOutputStream errors = new ByteArrayOutputStream();
        int status =
                ToolProvider.getSystemJavaCompiler()
                        .run(null, null, errors, command.toArray(new String[0]));
        Assert.assertEquals(status, 0, errors.toString());
    }

    @Test
    public void theVersionsAreThoseOfTheTests() throws IOException {
        String page = Files.readString(PAGE);
        Assert.assertEquals(
                versionOf("spark-mllib_2.13", page),
                org.apache.spark.package$.MODULE$.SPARK_VERSION());
        Assert.assertEquals(versionOf("scala-library", page), Properties.versionNumberString());
    }

    /** Returns the version in the block of XML that names a dependency. */
    private static String versionOf(String artifact, String page) {
        Matcher matcher =
                Pattern.compile(
                                "<artifactId>%s</artifactId>\\s*<version>(.*)</version>"
                                        .formatted(Pattern.quote(artifact)))
                        .matcher(page);
        Assert.assertTrue(matcher.find(), artifact);
        return matcher.group(1);
    }
}
