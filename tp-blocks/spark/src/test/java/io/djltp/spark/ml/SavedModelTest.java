package io.djltp.spark.ml;

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
import org.testng.annotations.Test;

import java.awt.image.BufferedImage;
import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Set;
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

    /** A model whose folder was copied in part. */
    @Test(timeOut = 60_000)
    public void aMissingFileIsNamed() throws IOException {
        Path folder = saved();
        Files.delete(folder.resolve("djl").resolve(SavedNetwork.PARAMETERS));
        IllegalArgumentException e =
                Assert.expectThrows(
                        IllegalArgumentException.class,
                        () -> ParallelClassificationModel.load(folder.toString()));
        Assert.assertEquals(
                e.getMessage(),
                "The saved model has no file djl/classifier-0000.params: copy the model's folder"
                        + " again, or save the model again");
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
