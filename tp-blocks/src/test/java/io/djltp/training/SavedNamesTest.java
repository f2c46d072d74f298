package io.djltp.training;

import static io.djltp.testing.Blocks.linear;
import static io.djltp.testing.Refusals.throwsArgument;

import static org.testng.Assert.assertEquals;

import ai.djl.Model;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;
import ai.djl.util.Utils;

import org.testng.annotations.Test;

import java.io.IOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.stream.Stream;

/** Any name that can be one of a file can be one of a model. */
public class SavedNamesTest {

    @Test(timeOut = 60_000)
    public void namesOfFilesOnly() throws IOException {
        Path folder = Files.createTempDirectory("names");
        try (Model model = Model.newInstance("net")) {
            model.setBlock(linear(2));
            model.getBlock().initialize(model.getNDManager(), DataType.FLOAT32, new Shape(1, 3));
            for (String name : List.of("a/b", "a/", "/a")) {
                throwsArgument(
                        () -> AtomicSave.save(model, folder, name), "\"" + name + "\" leads");
                assertEquals(names(folder), List.of());
            }
            AtomicSave.save(model, folder, "ü ? $(x) #1");
            AtomicSave.save(model, folder, "");
            assertEquals(names(folder), List.of("net-0000.params", "ü ? $(x) #1-0000.params"));
        } finally {
            Utils.deleteQuietly(folder);
        }
    }

    private static List<String> names(Path folder) throws IOException {
        try (Stream<Path> files = Files.list(folder)) {
            return files.map(each -> each.getFileName().toString()).sorted().toList();
        }
    }
}
