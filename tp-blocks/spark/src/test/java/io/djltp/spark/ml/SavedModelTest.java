package io.djltp.spark.ml;

import static java.nio.charset.StandardCharsets.UTF_8;

import io.djltp.spark.TestCluster;

import org.apache.spark.SparkConf;
import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.apache.spark.sql.SparkSession;
import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.function.UnaryOperator;
import java.util.stream.Stream;

/** Models in files: what is written, and what is refused when it is read. */
public class SavedModelTest {

    private SparkSession spark;
    private Dataset<Row> rows;
    private ParallelClassificationModel model;

    @BeforeClass
    public void start() throws IOException {
        spark = TestCluster.start("local[1]", new SparkConf());
        rows =
                spark.range(24)
                        .selectExpr("array(1f, float(id % 3)) as features", "id % 3 as label");
        model = classifier().fit(rows);
    }

    @AfterClass(alwaysRun = true)
    public void stop() {
        if (spark != null) {
            spark.stop();
        }
    }

    private static ParallelClassifier classifier() {
        return new ParallelClassifier().setRanks(2).setBatchSize(8).setEpochs(2);
    }

    private Path saved() throws IOException {
        Path folder = Files.createTempDirectory("saved");
        model.write().overwrite().save(folder.toString());
        return folder;
    }

    /** Replaces what a file has, and its checksum of Hadoop's, as a copy by other means does. */
    private static void change(Path file, UnaryOperator<byte[]> change) throws IOException {
        Files.write(file, change.apply(Files.readAllBytes(file)));
        Files.deleteIfExists(file.resolveSibling("." + file.getFileName() + ".crc"));
    }

    @DataProvider
    public Object[][] changes() {
        UnaryOperator<byte[]> cut = content -> Arrays.copyOf(content, content.length / 2);
        UnaryOperator<byte[]> bit =
                content -> {
                    content[content.length - 1] ^= 1;
                    return content;
                };
        return new Object[][] {
            {SavedNetwork.PARAMETERS, cut},
            {SavedNetwork.PARAMETERS, bit},
            {SavedNetwork.NETWORK, cut},
            {SavedNetwork.LOSSES, cut},
        };
    }

    @Test(dataProvider = "changes", timeOut = 60_000)
    public void aFileThatIsNotWhatWasSavedIsToldWhenItIsLoaded(
            String name, UnaryOperator<byte[]> change) throws IOException {
        Path folder = saved();
        Path file = folder.resolve("djl").resolve(name);
        long before = Files.size(file);
        change(file, change);
        IllegalStateException e =
                Assert.expectThrows(
                        IllegalStateException.class,
                        () -> ParallelClassificationModel.load(folder.toString()));
        Assert.assertTrue(
                e.getMessage()
                        .matches(
                                "The file .*/djl/%s is not the one that was saved: it has %d bytes .*, and %d .* were written. Copy .*"
                                        .formatted(name, Files.size(file), before)),
                e.getMessage());
    }

    @Test(timeOut = 60_000)
    public void aFolderWithoutMarksIsRefused() throws IOException {
        Path folder = saved();
        try (Stream<Path> parts = Files.list(folder.resolve("metadata"))) {
            for (Path part : parts.filter(each -> each.toString().contains("/part-")).toList()) {
                change(
                        part,
                        text ->
                                new String(text, UTF_8)
                                        .replace("\"files\"", "\"other\"")
                                        .getBytes(UTF_8));
            }
        }
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> ParallelClassificationModel.load(folder.toString()));
        Assert.assertTrue(e.getMessage().contains("do not say which files"), e.getMessage());
    }
}
