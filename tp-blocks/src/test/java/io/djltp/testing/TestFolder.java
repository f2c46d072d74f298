package io.djltp.testing;

import ai.djl.util.Utils;

import org.testng.annotations.BeforeMethod;

import java.nio.file.Files;
import java.nio.file.Path;

/** Empty folders for tests, deleted when the JVM ends; who extends it has one for each test. */
public class TestFolder {

    private static final Path ROOT = make(null);

    static {
        Runtime.getRuntime().addShutdownHook(new Thread(() -> Utils.deleteQuietly(ROOT)));
    }

    protected Path folder;

    protected TestFolder() {}

    @BeforeMethod
    public void makeFolder() {
        folder = create();
    }

    /** Makes a folder that no other test has. */
    public static Path create() {
        return make(ROOT);
    }

    private static Path make(Path parent) {
        return Unchecked.call(
                () ->
                        parent == null
                                ? Files.createTempDirectory("djltp")
                                : Files.createTempDirectory(parent, "test"));
    }
}
