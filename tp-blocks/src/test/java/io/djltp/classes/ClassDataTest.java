package io.djltp.classes;

import ai.djl.ndarray.NDArray;
import ai.djl.ndarray.NDManager;
import ai.djl.training.dataset.Batch;
import ai.djl.util.Utils;

import io.djltp.classes.ClassData.Format;

import org.testng.Assert;
import org.testng.annotations.AfterClass;
import org.testng.annotations.BeforeClass;
import org.testng.annotations.DataProvider;
import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

public class ClassDataTest {

    private Path folder;
    private NDManager manager;

    @BeforeClass
    public void create() throws IOException {
        folder = Files.createTempDirectory("classes");
        manager = NDManager.newBaseManager();
    }

    @AfterClass(alwaysRun = true)
    public void close() {
        manager.close();
        Utils.deleteQuietly(folder);
    }

    @DataProvider
    public Object[][] files() {
        return new Object[][] {
            {
                Format.FASTTEXT,
                "__label__a one two\n\n__label__b __label__a  three\t\r\nno label\nx __label__c y",
                "[a, b, c]",
                "one two [0]|three\t [0, 1]|no label []|x y [2]"
            },
            {
                Format.LIBSVM,
                "# generated\n3,1 2:0.5 7:-1e-3 # that\n\n10 0:1\n 4:2\n1\n",
                "[1, 3, 10]",
                "[2, 7] [0.5, -0.001] [0, 1]|[0] [1.0] [2]|[4] [2.0] []|[] [] [0]"
            },
            {
                Format.XC_OLD,
                "3 5 4\n3,0 4:1\n 0:0.25\n\n",
                "[0, 1, 2, 3]",
                "[4] [1.0] [0, 3]|[0] [0.25] []|[] [] []"
            },
        };
    }

    @Test(dataProvider = "files", timeOut = 60_000)
    public void rowsAreWhatTheFileSays(Format format, String text, String classes, String rows)
            throws IOException {
        Path file = write(text);
        ClassData data = ClassData.builder(file).optTextFeatures(line -> new int[] {1, 2}).build();
        Assert.assertEquals(data.getFormat(), format);
        Assert.assertEquals(data.getClasses().toString(), classes);
        Assert.assertEquals(String.join("|", rowsOf(data)), rows);
        Assert.assertEquals(data.size(), rows.split("\\|").length);
    }

    @Test(timeOut = 60_000)
    public void batchesHaveTheRows() throws Exception {
        Path file = write("2 5:0.5 1:2\n1,2 9:1\n 1:3\n");
        ClassData data = ClassData.builder(file).build();
        List<String> found = new ArrayList<>();
        for (Batch batch : data.newDataset(2, false, 0).getData(manager, null, 0, 0)) {
            found.add(
                    text(batch.getData().get(0))
                            + text(batch.getData().get(1))
                            + text(batch.getLabels().get(0))
                            + batch.getIndices());
            batch.close();
        }
        Assert.assertEquals(
                found,
                List.of(
                        "(2, 2)[6, 2, 10, 0](2, 2)[0.5, 2.0, 1.0, 0.0](2, 2)[1, -1, 0, 1][0, 1]",
                        "(1, 1)[2](1, 1)[3.0](1, 1)[-1][2]"));
    }

    private static String text(NDArray array) {
        return array.getShape() + Arrays.toString(array.toArray());
    }

    private Path write(String text) throws IOException {
        return Files.writeString(Files.createTempFile(folder, "data", ".txt"), text);
    }

    static List<String> rowsOf(ClassData data) throws IOException {
        try (var rows = data.stream()) {
            return rows.map(
                            row ->
                                    (row.text() == null ? "" : row.text() + " ")
                                            + (row.ids() == null
                                                    ? ""
                                                    : Arrays.toString(row.ids()) + " ")
                                            + (row.values() == null
                                                    ? ""
                                                    : Arrays.toString(row.values()) + " ")
                                            + Arrays.toString(row.classes()))
                    .toList();
        }
    }
}
