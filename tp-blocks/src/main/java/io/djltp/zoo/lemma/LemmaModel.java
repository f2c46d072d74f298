package io.djltp.zoo.lemma;

import ai.djl.Application;

import io.djltp.zoo.ModelFolder;
import io.djltp.zoo.ParallelModelLoader;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.List;
import java.util.zip.CRC32;
import java.util.zip.CheckedInputStream;

/** The lemmatiser of English words that is in the jar of this library. */
public final class LemmaModel {

    private static final String ARTIFACT_ID = "lemma-en";

    private static final List<String> NAMES =
            List.of(ModelFolder.WEIGHTS, ModelFolder.PROPERTIES, LemmaLabels.FILE);

    private LemmaModel() {}

    /**
     * Returns what loads the model.
     *
     * @return the loader
     */
    public static ParallelModelLoader newLoader() {
        return new ParallelModelLoader(
                Application.NLP.TEXT_CLASSIFICATION,
                ARTIFACT_ID,
                new Resources(),
                LemmaTranslatorFactory.class);
    }

    /** The files beside this class. */
    private static final class Resources implements ParallelModelLoader.Source {

        /** {@inheritDoc} */
        @Override
        public String getVersion() throws IOException {
            CRC32 sum = new CRC32();
            for (String name : NAMES) {
                try (InputStream file = new CheckedInputStream(open(name), sum)) {
                    file.transferTo(OutputStream.nullOutputStream());
                }
            }
            return Long.toHexString(sum.getValue());
        }

        /** {@inheritDoc} */
        @Override
        public void write(Path folder) throws IOException {
            for (String name : NAMES) {
                try (InputStream file = open(name)) {
                    Files.copy(file, folder.resolve(name));
                }
            }
        }

        private static InputStream open(String name) throws IOException {
            InputStream file = LemmaModel.class.getResourceAsStream(ARTIFACT_ID + "/" + name);
            if (file == null) {
                throw new FileNotFoundException("The jar has no " + ARTIFACT_ID + "/" + name);
            }
            return file;
        }
    }
}
