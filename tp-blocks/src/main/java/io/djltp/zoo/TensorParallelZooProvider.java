package io.djltp.zoo;

import ai.djl.Application;
import ai.djl.repository.zoo.Criteria;
import ai.djl.repository.zoo.ModelZoo;
import ai.djl.repository.zoo.ZooProvider;

import io.djltp.internal.files.FolderZoo;
import io.djltp.internal.files.SideFolder;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.zip.CRC32;

/**
 * Tells DJL of the model of this jar: {@code optGroupId("io.djltp")}, {@code
 * optArtifactId("lemma-en")}, a small lemmatiser of English words.
 */
public final class TensorParallelZooProvider implements ZooProvider {

    /** Creates a provider. */
    public TensorParallelZooProvider() {}

    /** {@inheritDoc} */
    @Override
    public ModelZoo getModelZoo() {
        return new Zoo();
    }

    /** Slices can be read from files only: those of the jar are put into DJL's cache once. */
    private static final class Zoo extends FolderZoo {

        private static final String NAME = "lemma-en";
        private static final List<String> FILES = // of a ClassModel
                List.of(
                        ModelFolder.WEIGHTS,
                        ModelFolder.PROPERTIES,
                        "labels.txt",
                        "counts.txt",
                        "model.json");

        Zoo() {
            super("io.djltp", Application.NLP.TEXT_CLASSIFICATION, NAME);
        }

        @Override
        protected Path find(Criteria<?, ?> criteria, Map<String, Object> arguments)
                throws IOException {
            CRC32 version = new CRC32(); // others have another version
            for (String name : FILES) {
                try (InputStream file = open(name)) {
                    version.update(file.readAllBytes());
                }
            }
            Path folder =
                    SideFolder.cached(
                            NAME + "-" + Long.toHexString(version.getValue()), Zoo::writeFolder);
            Properties properties = ModelFolder.properties(folder);
            arguments.putIfAbsent("translatorFactory", properties.getProperty("translatorFactory"));
            return folder;
        }

        private static void writeFolder(Path folder) throws IOException {
            for (String name : FILES) {
                try (InputStream file = open(name)) {
                    Files.copy(file, folder.resolve(name));
                }
            }
        }

        private static InputStream open(String name) {
            return Zoo.class.getResourceAsStream(NAME + "/" + name);
        }
    }
}
