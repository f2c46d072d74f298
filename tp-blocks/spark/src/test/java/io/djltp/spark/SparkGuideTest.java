package io.djltp.spark;

import org.testng.Assert;
import org.testng.annotations.Test;

import scala.util.Properties;

import java.io.IOException;
import java.io.StringWriter;
import java.net.URI;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.List;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

import javax.tools.JavaCompiler;
import javax.tools.JavaFileObject;
import javax.tools.SimpleJavaFileObject;
import javax.tools.ToolProvider;

/** The blocks of Java on the page about Spark compile. */
public class SparkGuideTest {

    private static final Path PAGE =
            Path.of(System.getProperty("basedir", "."), "..", "..", "docs", "spark.md");
    private static final Pattern BLOCK = Pattern.compile("(?ms)^```java$(.*?)^```$");
    private static final String BEFORE =
            """
            import io.djltp.layout.ParallelMode;
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
        List<JavaFileObject> blocks = new ArrayList<>();
        Matcher matcher = BLOCK.matcher(Files.readString(PAGE));
        while (matcher.find()) {
            String code = BEFORE.formatted(blocks.size(), matcher.group(1));
            blocks.add(
                    new SimpleJavaFileObject(
                            URI.create("string:///Guide" + blocks.size() + ".java"),
                            JavaFileObject.Kind.SOURCE) {
                        @Override
                        public CharSequence getCharContent(boolean ignoreErrors) {
                            return code;
                        }
                    });
        }
        Assert.assertEquals(blocks.size(), 3);
        JavaCompiler compiler = ToolProvider.getSystemJavaCompiler();
        StringWriter errors = new StringWriter();
        Path classes = Files.createTempDirectory("guide");
        List<String> options =
                List.of(
                        "-proc:none",
                        "-d",
                        classes.toString(),
                        "-classpath",
                        System.getProperty("java.class.path"));
        Assert.assertTrue(
                compiler.getTask(errors, null, null, options, null, blocks).call(),
                errors.toString());
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
