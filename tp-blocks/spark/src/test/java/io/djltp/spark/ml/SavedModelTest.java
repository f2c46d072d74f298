package io.djltp.spark.ml;

import static java.nio.charset.StandardCharsets.UTF_8;

import ai.djl.Device;
import ai.djl.Model;
import ai.djl.inference.Predictor;
import ai.djl.modality.Classifications;
import ai.djl.modality.cv.Image;
import ai.djl.modality.cv.ImageFactory;
import ai.djl.modality.cv.translator.ImageClassificationTranslator;
import ai.djl.ndarray.types.DataType;
import ai.djl.nn.SequentialBlock;
import ai.djl.nn.core.Linear;

import org.apache.spark.sql.Dataset;
import org.apache.spark.sql.Row;
import org.testng.Assert;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.awt.image.BufferedImage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;
import java.util.List;
import java.util.Set;
import java.util.function.UnaryOperator;
import java.util.stream.Collectors;
import java.util.stream.Stream;

/** Models in files: what is written, and what cannot be read. */
public class SavedModelTest extends OnThreeClasses {

    public SavedModelTest() {
        super(2);
    }

    private Path saved() throws IOException {
        Path folder = Files.createTempDirectory("saved");
        model.write().overwrite().save(folder.toString());
        return folder;
    }

    /** Replaces what a file has. */
    private static void change(Path file, UnaryOperator<byte[]> change) throws IOException {
        Files.write(file, change.apply(Files.readAllBytes(file)));
    }

    /** Deletes Hadoop's own checksum of a file, which a copy by other means leaves behind. */
    private static void deleteChecksum(Path file) throws IOException {
        Files.delete(file.resolveSibling("." + file.getFileName() + ".crc"));
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
        for (int i = 0; i < 2; i++) { // with Hadoop's own checksum, which fails too, and without
            String message = refusal(folder);
            Assert.assertTrue(
                    message.matches(
                            "The file .*/djl/%s is not the one that was saved: it has %d bytes .*, and %d .* were written. Copy .*"
                                    .formatted(name, Files.size(file), before)),
                    message);
            if (i == 0) {
                deleteChecksum(file);
            }
        }
    }

    @Test(timeOut = 60_000)
    public void aMissingFileIsNamed() throws IOException {
        Path folder = saved();
        Path file = folder.resolve("djl").resolve(SavedNetwork.PARAMETERS);
        long before = Files.size(file);
        Files.delete(file);
        String message = refusal(folder);
        Assert.assertTrue(
                message.matches(
                        "The file .*/djl/%s is missing, to which %d bytes were written. Copy .*"
                                .formatted(SavedNetwork.PARAMETERS, before)),
                message);
    }

    private static String refusal(Path folder) {
        return Assert.expectThrows(
                        IllegalStateException.class,
                        () -> ParallelClassificationModel.load(folder.toString()))
                .getMessage();
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
                deleteChecksum(part);
            }
        }
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> ParallelClassificationModel.load(folder.toString()));
        Assert.assertTrue(e.getMessage().contains("do not say which files"), e.getMessage());
    }

    private static Set<String> djlFiles(ParallelClassificationModel model, Path folder)
            throws IOException {
        model.saveAsDjl(folder);
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(each -> each.getFileName().toString()).collect(Collectors.toSet());
        }
    }

    @Test(timeOut = 60_000)
    public void withoutNamesThereIsNoFileOfNames() throws IOException {
        Assert.assertEquals(
                djlFiles(model, Files.createTempDirectory("djl")),
                Set.of("classifier-0000.params", "network.json", "losses.json"));
        ParallelClassificationModel loaded = ParallelClassificationModel.load(saved().toString());
        Assert.assertEquals(loaded.getClassNames().length, 0);
        Row first = loaded.transform(rows).first();
        Assert.assertEquals(first, model.transform(rows).first());
        Row best = first.<Row>getList(first.fieldIndex("topClasses")).get(0);
        Assert.assertEquals(best.getString(1), Long.toString(best.getLong(0)));
    }

    @Test(timeOut = 60_000)
    public void aTranslatorOfDjlReadsTheNames() throws Exception {
        Dataset<Row> pixels =
                rows.selectExpr("array(features[0], features[1], 0f) as features", "label");
        Path folder = Files.createTempDirectory("djl");
        Assert.assertEquals(
                djlFiles(classifier().setClassNames("red", "green", "blue").fit(pixels), folder),
                Set.of("classifier-0000.params", "network.json", "losses.json", "synset.txt"));
        ImageClassificationTranslator translator =
                ImageClassificationTranslator.builder()
                        .addTransform(pixel -> pixel.toType(DataType.FLOAT32, false))
                        .build();
        try (Model plain = Model.newInstance("classifier", Device.cpu(), "PyTorch")) {
            plain.setBlock(new SequentialBlock().add(Linear.builder().setUnits(3).build()));
            plain.load(folder);
            try (Predictor<Image, Classifications> predictor = plain.newPredictor(translator)) {
                Classifications found =
                        predictor.predict(
                                ImageFactory.getInstance()
                                        .fromImage(
                                                new BufferedImage(
                                                        1, 1, BufferedImage.TYPE_INT_RGB)));
                Assert.assertEquals(found.getClassNames(), List.of("red", "green", "blue"));
            }
        }
    }
}
