package io.djltp.zoo.minilm;

import ai.djl.Application;
import ai.djl.ndarray.NDManager;

import io.djltp.zoo.ModelFiles;
import io.djltp.zoo.ModelFolder;
import io.djltp.zoo.ParallelModelLoader;

import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * all-MiniLM-L6-v2 in the zoo. Its weights are taken from the ONNX file of another artifact and put
 * into a model folder in DJL's cache, once.
 */
public final class MiniLmModel {

    private MiniLmModel() {}

    /**
     * Returns what loads the model.
     *
     * @return the loader
     */
    public static ParallelModelLoader newLoader() {
        return new ParallelModelLoader(
                Application.NLP.TEXT_EMBEDDING,
                "all-MiniLM-L6-v2",
                new ConvertedFiles(),
                MiniLmTranslatorFactory.class);
    }

    /** The files of a model folder, made of those of the other artifact. */
    private static final class ConvertedFiles implements ModelFiles {

        /** {@inheritDoc} */
        @Override
        public String getVersion() throws IOException {
            return "1-" + MiniLmFiles.modelLength();
        }

        /** {@inheritDoc} */
        @Override
        public void write(Path folder) throws IOException {
            try (NDManager manager = NDManager.newBaseManager();
                    InputStream tokenizer = MiniLmFiles.tokenizer()) {
                MiniLm network = new MiniLm(BertSizes.MINI_LM);
                MiniLmWeights.load(network, manager);
                Files.copy(tokenizer, folder.resolve(WordPieces.FILE));
                ModelFolder.builder()
                        .setNetwork(network)
                        .setBlockFactory(MiniLmBlockFactory.class)
                        .optTranslatorFactory(MiniLmTranslatorFactory.class)
                        .build()
                        .save(folder);
            }
        }
    }
}
